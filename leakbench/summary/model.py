"""The summary of a run: what `run --json` prints, what a manifest contains, and what every page reads.

The fields are in the order in which they are written. A field that a run does not set is not written; one that it sets to None has
no value, for the reason under `notes`. Earlier versions wrote fewer fields and other verdicts; `Summary.of` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from leakbench.core.errors import InputError
from leakbench.measure.rates import Rate
from leakbench.summary.verdict_words import FORMER, FORMER_REASON, INCONCLUSIVE

__all__ = ["Claim", "Epsilon", "Names", "Number", "Observed", "Summary", "Tap", "Violation"]

Number: TypeAlias = int | float
"""A number as JSON has it: a whole one remains a whole one."""

NEEDED = (
    "round",
    "batch",
    "victims",
    "networks",
    "verdict",
    "observations",
    "clients",
    "local_iterations",
    "local_batch",
)
"""Fields of a leakage point that always have a value."""


class _Fields(BaseModel):
    """Fields of a summary; unknown ones, as of another version, are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON with the fields that were set."""
        return self.model_dump(exclude_unset=True)

    def replaced(self, **fields: Any) -> Self:
        """Return a copy with other values of some fields."""
        return self.model_copy(update=fields)


class Names(_Fields):
    """What a run measured: names of recipes, seed and hash; an external update has no seed and no hash."""

    defense: str = ""
    attack: str = ""
    dataset: str = ""
    seed: int | None = None
    hash: str = ""


class Tap(_Fields):
    """What was measured at one leakage point: shares in [0, 1], medians, and the verdict."""

    round: int = 0
    batch: int = 1
    victims: int = 0
    networks: int = 1
    failures: int | None = None
    asr: Number | None = None
    asr_low: Number | None = None
    asr_high: Number | None = None
    asr_exact_low: Number | None = None
    asr_exact_high: Number | None = None
    asr_above_null: Number | None = None
    precision: Number | None = None
    verbatim: Number | None = None
    verbatim_low: Number | None = None
    verbatim_high: Number | None = None
    null_asr: Number | None = None
    null_asr_low: Number | None = None
    null_asr_high: Number | None = None
    recognised: Number | None = None
    recognised_low: Number | None = None
    recognised_high: Number | None = None
    null_recognised: Number | None = None
    gallery: int | None = None
    identified: Number | None = None
    identified_low: Number | None = None
    identified_high: Number | None = None
    label_ranked: Number | None = None
    label_ranked_low: Number | None = None
    label_ranked_high: Number | None = None
    candidates: int | None = None
    eta: Number | None = None
    null_rmse: Number | None = None
    rmse: Number | None = None
    psnr: Number | None = None
    ssim: Number | None = None
    lpips: Number | None = None
    label_accuracy: Number | None = None
    iterations: Number | None = None
    evaluations: int | None = None
    identified_by_likelihood: Number | None = None
    identified_by_likelihood_low: Number | None = None
    identified_by_likelihood_high: Number | None = None
    identified_by_reconstruction: Number | None = None
    identified_by_reconstruction_low: Number | None = None
    identified_by_reconstruction_high: Number | None = None
    member_auc: Number | None = None
    member_auc_low: Number | None = None
    member_auc_high: Number | None = None
    member_tpr: Number | None = None
    member_tpr_low: Number | None = None
    member_tpr_high: Number | None = None
    label_counts: Number | None = None
    label_counts_low: Number | None = None
    label_counts_high: Number | None = None
    null_label_counts: Number | None = None
    attributes: dict[str, dict[str, Number | None]] | None = None
    feature_accuracy: Number | None = None
    record_match: Number | None = None
    feature_accuracy_low: Number | None = None
    feature_accuracy_high: Number | None = None
    record_match_low: Number | None = None
    record_match_high: Number | None = None
    random_feature_accuracy: Number | None = None
    null_feature_accuracy: Number | None = None
    random_record_match: Number | None = None
    null_record_match: Number | None = None
    seconds: Number | None = None
    fit_seconds: Number | None = None
    fit_public: Number | None = None
    anytime: dict[str, dict[str, list[Number]]] | None = None
    doubts: dict[str, Any] | None = None
    unanswered: dict[str, dict[str, int]] | None = None
    verdict: str = INCONCLUSIVE
    verdict_reason: str | None = None
    verdict_command: str | None = None
    excluded_asr: Number | None = None
    excluded_identified: Number | None = None
    excluded_recognised: Number | None = None
    observations: int = 1
    clients: int = 1
    local_iterations: int = 1
    local_batch: int = 1
    asr_bound: Number | None = None
    identified_bound: Number | None = None
    label_bound: Number | None = None
    label_ranked_bound: Number | None = None
    member_tpr_bound: Number | None = None
    null_label: Number | None = None
    seen: dict[str, Any] | None = None
    rmse_floor: Number | None = None
    rmse_floor_unbiased: Number | None = None
    alone_expected: Number | None = None
    asr_ideal: Number | None = None
    rmse_ideal: Number | None = None
    guaranteed: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _current(cls, fields: Any) -> Any:
        """Translate the verdict of an earlier version; a number or a verdict that is None has its default."""
        if not isinstance(fields, Mapping):
            return fields
        kept = {name: value for name, value in fields.items() if value is not None or name not in NEEDED}
        if kept.get("verdict") in FORMER:
            kept |= {"verdict": FORMER[kept["verdict"]], "verdict_reason": FORMER_REASON}
        return kept

    @property
    def chance(self) -> float:
        """Probability that a random guess identifies a victim, 1 / candidates."""
        return 1 / (self.candidates or 1)

    def value(self, field: str) -> Any:
        """Return the value of a field, as of a measure; None where it has none."""
        return getattr(self, field, None)

    def interval(self, field: str) -> tuple[Number, Number, Number] | None:
        """Return (rate, low, high) of a field with an interval; None where one of them has no value."""
        share, low, high = (self.value(f"{field}{end}") for end in ("", "_low", "_high"))
        return None if share is None or low is None or high is None else (share, low, high)

    def excluded(self, rate: Rate) -> Number | None:
        """Return the smallest rate that the evidence excludes at 95 %."""
        found: Number | None = self.value(rate.excluded)
        return found


class Observed(_Fields):
    """The valid epsilon against one observer, and what it is computed from."""

    valid: Number | None = None
    reason: str | None = None
    q: Number | None = None
    steps: Number | None = None
    sigma_effective: Number | None = None
    participations: Any = None
    without_draw: Number | None = None
    realised: Number | None = None
    realised_count: Number | None = None


class Epsilon(_Fields):
    """The claimed epsilon, and the valid one against the observer of all released models."""

    claimed: Number | None = None
    claimed_formula: str | None = None
    accountant: str | None = None
    valid: Number | None = None
    reason: str | None = None
    unit: str | None = None
    delta: Number | None = None
    observer: str | None = None
    steps: Number | None = None
    q: Number | None = None
    sigma_effective: Number | None = None
    by_tap: dict[str, Observed] | None = None
    caveats: list[str] | None = None
    without_draw: Number | None = None
    realised: Number | None = None
    realised_count: Number | None = None
    by_round: list[Number | None] | None = None
    participations: Any = None


class Violation(_Fields):
    """A measurement that is significantly above its bound, or above the reference of a malicious server."""

    tap: str
    measure: str
    reference: str | None = None
    value: Number | None = None
    low: Number | None = None
    bound: Number | None = None


class Claim(_Fields):
    """A number that the paper of a defense prints, next to the measured one."""

    what: str
    claimed: Number | None = None
    measured: Number | None = None
    source: str | None = None
    comment: str | None = None


class Summary(_Fields):
    """What a run measured, in the order in which it is written."""

    cell: Names = Names()
    protocol: str | None = None
    model: str | None = None
    leak_model: str | None = None
    victim_mode: str | None = None
    init: str | None = None
    reads: str | None = None
    client_optimizer: str | None = None
    join_rounds: bool | None = None
    observations: Any = None
    threat: str | None = None
    threat_letter: str | None = None
    fished: int | None = None
    conspicuous: dict[str, dict[str, Any]] | None = None
    accuracy: Number | None = None
    rounds: int | None = None
    chance: Number | None = None
    undertrained: str | None = None
    epsilon: Epsilon = Epsilon()
    taps: dict[str, Tap] = {}
    over_rounds: dict[str, dict[str, Any]] | None = None
    violations: list[Violation] = []
    warnings: list[str] = []
    notes: dict[str, str] = {}
    distance: dict[str, Any] | None = None
    knowledge: dict[str, Any] | None = None
    claims: list[Claim] | None = None
    folder: str | None = None

    @property
    def has_epsilon(self) -> bool:
        """Whether epsilons were computed; those of an external update are not."""
        return "epsilon" in self.model_fields_set

    @property
    def verdicts(self) -> dict[tuple[str, int], str]:
        """{(leakage point, round): its verdict}; without those that have none, as in early versions."""
        return {
            (name.partition("@")[0], tap.round): tap.verdict
            for name, tap in self.taps.items()
            if "verdict" in tap.model_fields_set
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Summary:
        """Read a summary, also of an earlier version, whose verdicts are translated.

        Raises:
            InputError: For a field of another type.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InputError(f"summary.{place}: {first['msg'].lower()}") from None
