"""The summary of a run: what `run --json` prints, what a manifest contains, and what every page reads.

The fields are in the order in which they are written. A field that a run does not set is not written; one that it sets to None has
no value, for the reason under `notes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, with_config
from typing_extensions import TypedDict  # Pydantic needs it before Python 3.12.

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.untrusted import said
from leakbench.core.verdict_words import INCONCLUSIVE

__all__ = [
    "Amount",
    "AuditedTraining",
    "EpsilonSummary",
    "Names",
    "Number",
    "ObserverEpsilon",
    "Plain",
    "PrintedNumber",
    "Summary",
    "Tap",
    "Violation",
    "misfit",
]

Number: TypeAlias = int | float
"""A number as JSON has it: a whole one remains a whole one."""

Share: TypeAlias = Annotated[int, Field(ge=0, le=1)] | Annotated[float, Field(ge=0, le=1)]
"""A number in [0, 1]."""

Amount: TypeAlias = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)]
"""A number of at least 0."""

Count: TypeAlias = Annotated[int, Field(ge=1)]
"""A whole number of at least 1."""

Plain: TypeAlias = str | int | float | bool | None
"""A single value."""


def _having(*names: str) -> AfterValidator:
    """Return a validator of a mapping that needs some fields, whose lists have equal lengths."""

    def check(fields: dict[str, Any]) -> dict[str, Any]:
        for name in names:
            if name not in fields:
                raise ValueError(f"{name} is missing")
        if len({len(value) for value in fields.values() if isinstance(value, list)}) > 1:
            raise ValueError("got lists of several lengths, expected one")
        return fields

    return AfterValidator(check)


Attribute: TypeAlias = Annotated[dict[str, Share | None], _having("right", "low", "high", "null", "bound")]
"""How often a ranking tells a category of a record right."""

Curve: TypeAlias = Annotated[dict[str, list[Number]], _having("at", "asr")]

Statistic: TypeAlias = Annotated[dict[str, int | float | bool | None], _having("value", "percentile", "honest_median")]
"""A statistic of a malicious server's model among those of honest models."""

Conspicuous: TypeAlias = Annotated[
    dict[str, Statistic], _having("architecture", "rows_alike", "d_snr", "lit_alone", "loss")
]

Knowledge: TypeAlias = Annotated[
    dict[str, Plain], _having("batch_size", "learning_rate", "defense", "labels", "public")
]


@with_config(ConfigDict(extra="forbid"))
class MechanismFields(TypedDict):
    """The fields of `leakbench.privacy.mechanism.Mechanism`."""

    noise_multiplier: Number
    sampling_rate: Number
    steps: int
    sampling: str


@with_config(ConfigDict(extra="forbid"))
class MixtureFields(TypedDict):
    """The fields of `leakbench.privacy.mechanism.Mixture`."""

    mechanisms: Sequence[MechanismFields]
    clients: int
    holders: int
    per_round: int
    draw: str
    steps: int


class SeenFields(TypedDict):
    """The fields of `leakbench.privacy.bounds.Seen`."""

    sigma: Number
    releases: int
    before: Sequence[MechanismFields | MixtureFields]


@with_config(ConfigDict(extra="allow"))
class OverRounds(TypedDict):
    """What was measured at each round of a leakage point: lists of equal lengths; and the round that leaks most."""

    rounds: list[int]
    asr: list[Share | None]
    identified: list[Share | None]
    worst: int


class _Fields(BaseModel):
    """Fields of a summary; unknown ones, such as those of another version, are kept."""

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
    batch: Count = 1
    victims: Count = 0
    networks: int = 1
    failures: int | None = None
    asr: Share | None = None
    asr_low: Share | None = None
    asr_high: Share | None = None
    asr_exact_low: Share | None = None
    asr_exact_high: Share | None = None
    asr_above_null: Number | None = None
    precision: Share | None = None
    verbatim: Share | None = None
    verbatim_low: Share | None = None
    verbatim_high: Share | None = None
    null_asr: Share | None = None
    null_asr_low: Share | None = None
    null_asr_high: Share | None = None
    recognised: Share | None = None
    recognised_low: Share | None = None
    recognised_high: Share | None = None
    null_recognised: Share | None = None
    gallery: int | None = None
    identified: Share | None = None
    identified_low: Share | None = None
    identified_high: Share | None = None
    label_ranked: Share | None = None
    label_ranked_low: Share | None = None
    label_ranked_high: Share | None = None
    candidates: Count | None = None
    eta: Number | None = None
    null_rmse: Number | None = None
    rmse: Number | None = None
    psnr: Number | None = None
    ssim: Number | None = None
    lpips: Number | None = None
    label_accuracy: Share | None = None
    iterations: Number | None = None
    evaluations: int | None = None
    identified_by_likelihood: Share | None = None
    identified_by_likelihood_low: Share | None = None
    identified_by_likelihood_high: Share | None = None
    identified_by_reconstruction: Share | None = None
    identified_by_reconstruction_low: Share | None = None
    identified_by_reconstruction_high: Share | None = None
    member_auc: Share | None = None
    member_auc_low: Share | None = None
    member_auc_high: Share | None = None
    member_tpr: Share | None = None
    member_tpr_low: Share | None = None
    member_tpr_high: Share | None = None
    label_counts: Share | None = None
    label_counts_low: Share | None = None
    label_counts_high: Share | None = None
    null_label_counts: Share | None = None
    attributes: dict[str, Attribute] | None = None
    feature_accuracy: Share | None = None
    record_match: Share | None = None
    feature_accuracy_low: Share | None = None
    feature_accuracy_high: Share | None = None
    record_match_low: Share | None = None
    record_match_high: Share | None = None
    random_feature_accuracy: Share | None = None
    null_feature_accuracy: Share | None = None
    random_record_match: Share | None = None
    null_record_match: Share | None = None
    target_error: Amount | None = None
    target_error_low: Number | None = None
    target_error_high: Number | None = None
    null_target_error: Amount | None = None
    edit_distance: Share | None = None
    null_edit_distance: Share | None = None
    nearest_edit_distance: Share | None = None
    nearest_rouge_l: Share | None = None
    exact_match: Share | None = None
    exact_match_low: Share | None = None
    exact_match_high: Share | None = None
    null_exact_match: Share | None = None
    rouge_1: Share | None = None
    rouge_1_low: Share | None = None
    rouge_1_high: Share | None = None
    null_rouge_1: Share | None = None
    rouge_2: Share | None = None
    rouge_2_low: Share | None = None
    rouge_2_high: Share | None = None
    null_rouge_2: Share | None = None
    rouge_l: Share | None = None
    rouge_l_low: Share | None = None
    rouge_l_high: Share | None = None
    null_rouge_l: Share | None = None
    token_accuracy: Share | None = None
    token_accuracy_low: Share | None = None
    token_accuracy_high: Share | None = None
    null_token_accuracy: Share | None = None
    token_recall: Share | None = None
    token_recall_low: Share | None = None
    token_recall_high: Share | None = None
    null_token_recall: Share | None = None
    token_precision: Share | None = None
    token_precision_low: Share | None = None
    token_precision_high: Share | None = None
    null_token_precision: Share | None = None
    length_right: Share | None = None
    length_right_low: Share | None = None
    length_right_high: Share | None = None
    null_length_right: Share | None = None
    seconds: Number | None = None
    fit_seconds: Number | None = None
    fit_public: Number | None = None
    anytime: Annotated[dict[str, Curve], _having("iterations", "evaluations")] | None = None
    doubts: dict[str, int] | None = None
    unanswered: dict[str, Annotated[dict[str, int], _having("examples", "victims")]] | None = None
    verdict: str = INCONCLUSIVE
    verdict_reason: str | None = None
    verdict_command: str | None = None
    excluded_asr: Share | None = None
    excluded_identified: Share | None = None
    excluded_recognised: Share | None = None
    observations: int = 1
    clients: int = 1
    local_iterations: int = 1
    local_batch: Count = 1
    asr_bound: Share | None = None
    identified_bound: Share | None = None
    label_bound: Share | None = None
    label_ranked_bound: Share | None = None
    member_tpr_bound: Share | None = None
    null_label: Share | None = None
    seen: SeenFields | None = None
    rmse_floor: Number | None = None
    rmse_floor_unbiased: Number | None = None
    alone_expected: Number | None = None
    asr_ideal: Share | None = None
    rmse_ideal: Number | None = None
    guaranteed: Share | None = None

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


class ObserverEpsilon(_Fields):
    """The valid epsilon against one observer, and what it is computed from."""

    valid: Amount | None = None
    reason: str | None = None
    q: Number | None = None
    steps: Number | None = None
    sigma_effective: Number | None = None
    participations: Number | str | dict[str, Number | None] | None = None
    without_draw: Number | None = None
    realised: Number | None = None
    realised_count: Number | None = None


class EpsilonSummary(_Fields):
    """The claimed epsilon, and the valid one against the observer of all released models."""

    claimed: Amount | None = None
    claimed_formula: str | None = None
    accountant: str | None = None
    valid: Amount | None = None
    reason: str | None = None
    unit: str | None = None
    delta: Number | None = None
    observer: str | None = None
    steps: Number | None = None
    q: Number | None = None
    sigma_effective: Number | None = None
    by_tap: dict[str, ObserverEpsilon] | None = None
    caveats: list[str] | None = None
    not_covered: list[str] | None = None
    without_draw: Number | None = None
    realised: Number | None = None
    realised_count: Number | None = None
    by_round: list[Number | None] | None = None
    participations: Number | str | dict[str, Number | None] | None = None


class AuditedTraining(_Fields):
    """The audit of the training by canaries, see `leakbench.auditing.one_run.OneRun`."""

    lower_bound: Amount
    lower_bound_family: Amount | None
    delta: Number
    confidence: Share
    unit: str
    canaries: Count
    included: int
    guesses: int
    correct: int
    choices: int
    limits: str
    valid: Amount | None = None
    """Valid epsilon of one example; set only where that of the summary is for a person with several."""

    @property
    def at_least(self) -> Number:
        """The larger lower bound of epsilon."""
        return max(self.lower_bound, self.lower_bound_family or 0.0)


class Violation(_Fields):
    """A measurement that is significantly above its bound, or above the reference of a malicious server."""

    tap: str
    measure: str
    reference: str | None = None
    value: Number | None
    low: Number | None
    bound: Number | None


class PrintedNumber(_Fields):
    """A number that the paper of a defense prints, next to the measured one."""

    what: str
    claimed: Number | None
    measured: Number | None
    source: str
    comment: str | None


class Summary(_Fields):
    """What a run measured, in the order in which it is written."""

    cell: Names = Names()
    protocol: str | None = None
    model: str | None = None
    leak_model: str | None = None
    victim_mode: str | None = None
    init: str | None = None
    trainable: str | None = None
    loss: str | None = None
    reads: str | None = None
    client_optimizer: str | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    algorithm: str | None = None
    proximal: float | None = None
    epochs: int | None = None
    availability: str | None = None
    join_rounds: bool | None = None
    observations: Any = None
    threat: str | None = None
    threat_letter: str | None = None
    fished: int | None = None
    conspicuous: Conspicuous | None = None
    accuracy: Share | None = None
    rounds: int | None = None
    chance: Share | None = None
    undertrained: str | None = None
    epsilon: EpsilonSummary = EpsilonSummary()
    audited: AuditedTraining | None = None
    taps: dict[str, Tap] = {}
    over_rounds: dict[str, Annotated[OverRounds, _having()]] | None = None
    violations: list[Violation] = []
    warnings: list[str] = []
    notes: dict[str, str] = {}
    distance: dict[str, Any] | None = None
    certified: dict[str, list[bool]] | None = None
    knowledge: Knowledge | None = None
    claims: list[PrintedNumber] | None = None
    folder: str | None = None

    @property
    def has_epsilon(self) -> bool:
        """Whether epsilons were computed; those of an external update are not."""
        return "epsilon" in self.model_fields_set

    @property
    def verdicts(self) -> dict[tuple[str, int], str]:
        """{(leakage point, round): its verdict}."""
        return {(LeakagePoint.of(name).tap, tap.round): tap.verdict for name, tap in self.taps.items()}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Summary:
        """Read a summary.

        Raises:
            InputError: For a field of another type.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InputError(f"summary.{misfit(error, fields)}") from None


def misfit(error: ValidationError, fields: Any) -> str:
    """Return a message about the first field that does not fit a model: its place, its value, and the accepted ones.

    Args:
        error: The error of the model.
        fields: The plain data that the model validated.
    """
    if error.error_count() > MOST_WRONG:
        return f"{error.error_count():,} of its values have other types than a run writes"
    wrong = [(_place(each["loc"], each["type"], fields), each) for each in error.errors(include_url=False)]
    first = wrong[0][0]
    # A field that accepts several types has an error for each of them; the deepest and last one is the most exact.
    place, found = max(
        reversed([each for each in wrong if each[0][: len(first)] == first]), key=lambda each: len(each[0])
    )
    at, what = ".".join(place), found["msg"]
    if found["type"] in WHOLE:
        return f"{at}: {WHOLE[found['type']]}"
    if found["type"] == "value_error":
        return f"{at}: {what.removeprefix('Value error, ')}"
    for said_there, here in WORDS.items():
        what = what.replace(said_there, here)
    return f"{at}: got {str(found['input'])[:40]!r}, expected {what.partition(' or instance of ')[0]}"


MOST_WRONG = 1000
"""Largest number of errors that are listed to find the first one: a minute and a gigabyte for a million."""

WHOLE = {"missing": "is missing", "extra_forbidden": "unknown field"}
"""{type of an error: our message}."""

WORDS = {"Input should be ": "", "less than or equal to": "at most", "greater than or equal to": "at least"}
"""{words of pydantic: words of our messages}."""


def _place(names: tuple[int | str, ...], kind: str, fields: Any) -> list[str]:
    """Return the names of the fields on the way to an error, without the names of types."""
    place = []
    for name in names:
        within = name in fields if isinstance(fields, dict) else isinstance(fields, list) and isinstance(name, int)
        if within or (kind == "missing" and name is names[-1]):
            place.append(said(name)[1:-1])
            fields = fields[name] if within else None
    return place
