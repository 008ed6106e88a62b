"""Limits on every attack at a leakage point: bounds by the noise, references of malicious servers, and guarantees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from leakbench.limits.guards import Guard
from leakbench.limits.limits import Limits
from leakbench.limits.reference import Reference
from leakbench.measure.measures import RMSE, deciding
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED, LABELS, MEMBER_FOUND, Rate
from leakbench.measure.rates import VERBATIM as VERBATIM_RATE
from leakbench.measure.statistics import exact_low, proportion
from leakbench.privacy.bounds import Seen
from leakbench.scoring.rankings import RANKINGS
from leakbench.scoring.scores_rankings import FALSE_ALARMS
from leakbench.storage.summary import Tap, Violation
from leakbench.summary.rankings import COLUMN, attribute_bounds

__all__ = [
    "BOUNDS",
    "CANDIDATES",
    "LIMIT",
    "VERBATIM",
    "bounded",
    "guaranteed",
    "limited",
    "references",
    "verbatim_fields",
    "violations",
]

Kappa: TypeAlias = Callable[[Any], float]
Outcomes: TypeAlias = Callable[[pd.DataFrame], tuple[pd.Series, pd.Series]]


@dataclass(frozen=True)
class Bound:
    """A bound on one measurement.

    Args:
        rate: The measurement.
        said: Its name in a list of bounds.
        kappa: Takes the leakage point, with `null_label`, the largest share of one label; returns how often the baseline guess
            is right, in [0, 1].
        outcomes: Takes the rows; returns (whether each was right (n,), the cluster of each (n,)).
    """

    rate: Rate
    said: str
    kappa: Kappa
    outcomes: Outcomes

    @property
    def measure(self) -> str:
        """Field of the measurement."""
        return self.rate.name

    @property
    def field(self) -> str:
        """Field of the bound."""
        return self.rate.bound

    @property
    def name(self) -> str:
        """Name of the measurement in a line about it alone."""
        return self.rate.words if self.rate is LABELS else self.said


def _once(column: str) -> Outcomes:
    """Return the outcomes of what is scored once for each victim, on its first example."""

    def outcomes(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
        first = rows.dropna(subset=[column])
        return first[column], first["victim"]

    return outcomes


def _ranked(rate: Rate) -> Bound:
    """Return the bound on what a ranking of `leakbench.scoring.rankings` tells right."""
    question = RANKINGS[rate.name]
    return Bound(rate, question.said, question.kappa, _once(rate.column))


BOUNDS = (
    # An answer of M guesses is matched to M examples, so that each has M chances to be hit.
    Bound(
        ASR,
        ASR.heading,
        lambda tap: min(1.0, float(tap.batch * tap.null_asr_high)),
        lambda rows: (rows[ASR.column], rows["batch"]),
    ),
    _ranked(IDENTIFIED),
    Bound(
        LABELS,
        "label",
        lambda tap: min(1.0, float(tap.batch * tap.null_label)),
        lambda rows: (rows["label"] == rows["label_guess"], rows["batch"]),
    ),
    _ranked(LABEL_RANKED),
    Bound(MEMBER_FOUND, MEMBER_FOUND.heading, lambda _: FALSE_ALARMS, _once(MEMBER_FOUND.column)),
)
"""All of them, in the order in which they are printed."""


VERBATIM = 1e-3
"""The RMSE up to which an example is rebuilt exactly; a pixel's step of 1 / 255 is four times as much."""

REFERENCES: dict[str, tuple[str, Callable[[pd.DataFrame], pd.Series]]] = {
    VERBATIM_RATE.name: ("alone_expected", lambda rows: rows[RMSE.name] <= VERBATIM),
    ASR.name: ("asr_ideal", lambda rows: rows[ASR.column]),
}
"""{measure: (its reference, rows -> whether each was right)}."""


def verbatim_fields(group: pd.DataFrame) -> dict[str, float | None]:
    """Return the share of examples rebuilt exactly, and its interval by batch; None for texts, which have no RMSE."""
    if deciding(group) is not RMSE:
        return dict.fromkeys(VERBATIM_RATE.ends)
    share, low, high = proportion(
        (group[RMSE.name] <= VERBATIM).to_numpy(), group["batch"].to_numpy(), network=group["network"]
    )
    return dict(zip(VERBATIM_RATE.ends, (share, low, high), strict=True))


def references(name: str, tap: Tap, expected: Reference) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return (the references of a leakage point, notes on the missing ones).

    A server for which reading is worse than guessing guesses as the null attacker does.
    """
    asr, rmse, null = expected.asr, expected.rmse, tap.null_rmse
    fields = {
        "alone_expected": expected.alone,
        "asr_ideal": None if asr is None else max(asr, float(tap.null_asr or 0.0)),
        "rmse_ideal": rmse if rmse is None or null is None else min(rmse, float(null)),
    }
    missing = {
        "alone_expected": expected.no_alone,
        "asr_ideal": expected.no_ideal,
        "rmse_ideal": expected.no_ideal,
    }
    return fields, {f"taps.{name}.{field}": missing[field] for field, value in fields.items() if value is None}


def bounded(tap: Tap, group: pd.DataFrame, guard: Guard) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (the bounds on a leakage point's measurements and their basis, {field: reason for None}).

    Args:
        tap: Its measurements.
        group: Its rows. A reconstruction of M guesses is matched to M examples, so each example has M chances to be hit.
            Identification gives one answer, and so do the ranked classes, which a granted label does not help (`BOUNDS`).
            member_tpr starts from the false positive rate. As for identification, the comparison is with the release without the
            unit (zero-out). That release contains nothing about the victim, which then ranks like any non-member, so that at most
            1 % are found. A test of two full batches that differ by substitution has twice the shift and so a looser bound.
    """
    fields = [bound.field for bound in BOUNDS]
    absent = {**dict.fromkeys(fields), "null_label": guard.commonest, "seen": None}
    if guard.sigma is None:
        return absent, dict.fromkeys(fields, guard.reason)
    releases = 1 if guard.unit == "client" else int(group.groupby(["victim", "example"]).size().max())
    seen = Seen(guard.sigma, guard.views * releases, guard.before)
    measured = tap.replaced(null_label=guard.commonest)
    try:
        gammas = seen.robustness([bound.kappa(measured) for bound in BOUNDS]).tolist()
    except (ArithmeticError, MemoryError, ValueError):
        return absent, dict.fromkeys(fields, "none: the privacy losses span more than can be held")
    found = {**absent, **dict(zip(fields, gammas, strict=True)), "seen": dataclasses.asdict(seen)}
    reasons = dict.fromkeys((field for field in fields if field != ASR.bound), guard.related) if guard.related else {}
    if guard.labels_given:
        reasons["label_bound"] = "none: the labels were granted to the attacker, not inferred"
    return {**found, **dict.fromkeys(reasons)}, reasons


def violations(name: str, tap: Tap, group: pd.DataFrame, confidence: float = 0.95) -> list[Violation]:
    """Return the measurements of a leakage point that are significantly above their bounds: a wrong guarantee, or a bug.

    Also those above what a malicious server may expect. Each has its value and the exact lower limit (`exact_low`, at this
    confidence) that is above the bound.
    """
    found = []
    for measure, reference, value, bound, outcome, cluster in _held(tap, group):
        low = exact_low(outcome.to_numpy(dtype=float), cluster.to_numpy(), confidence)
        if low > bound:
            found.append(Violation(tap=name, measure=measure, reference=reference, value=value, low=low, bound=bound))
    return found


def _held(tap: Tap, group: pd.DataFrame) -> Iterator[tuple[str, str | None, float, float, pd.Series, pd.Series]]:
    """Yield (measure, field of its reference or None, value, bound, whether each was right, the cluster of each).

    A measurement without a value or a bound is left out.
    """
    for held in BOUNDS:
        value, bound = tap.value(held.measure), tap.value(held.field)
        if value is not None and bound is not None:
            yield held.measure, None, value, bound, *held.outcomes(group)
    for attribute, of in (tap.attributes or {}).items():
        if of["right"] is not None and of["bound"] is not None:
            told = group.dropna(subset=[f"{COLUMN}{attribute}"])
            yield f"attribute {attribute}", None, of["right"], of["bound"], told[f"{COLUMN}{attribute}"], told["victim"]
    for measure, (field, right) in REFERENCES.items():
        value, bound = tap.value(measure), tap.value(field)
        if value is not None and bound is not None:
            yield measure, field, value, bound, right(group), group["batch"]


LIMIT = 0.02
"""The largest bound on the identification rate that is called a guarantee."""

CANDIDATES = 1000
"""Number of candidates to which the limit refers. A bound among fewer also applies here: picking one of fewer is easier."""


def guaranteed(tap: Tap, violations: Sequence[Violation]) -> float | None:
    """Return the guaranteed limit of the identification rate at a leakage point; None without a guarantee.

    Args:
        tap: The summary of the leakage point, with `candidates` and `identified_bound`. This bound exists only where the releases
            to the attacker have a valid epsilon.
        violations: Measurements at the leakage point that are significantly above their bounds.
    """
    bound = tap.identified_bound
    if violations or bound is None or bound > LIMIT or (tap.candidates or 0) > CANDIDATES:
        return None
    return float(bound)


def limited(
    name: str, tap: Tap, group: pd.DataFrame, limits: Limits, points: int = 1
) -> tuple[Tap, dict[str, str], list[Violation]]:
    """Return (a leakage point's measurements and limits, notes on these, the measurements above their bounds).

    Args:
        tap: The measurements.
        group: Their rows.
        points: The run's leakage points. All measurements that are held against a bound at any of them share one chance of 5 % to
            be called above it by luck (Bonferroni).
    """
    bounds, absent = bounded(tap, group, limits.guard)
    floors = {"rmse_floor": limits.floor.rmse, "rmse_floor_unbiased": limits.floor.unbiased}
    expected, unexpected = references(name, tap, limits.reference)
    found = tap.replaced(**bounds, **floors, **expected)
    if found.identified_bound is not None:
        seen = Seen(bounds["seen"]["sigma"], bounds["seen"]["releases"], limits.guard.before)
        found = found.replaced(attributes=attribute_bounds(tap.attributes, seen))
    notes = {f"taps.{name}.{field}": reason for field, reason in absent.items()}
    if IDENTIFIED.bound in absent:
        why = absent[IDENTIFIED.bound]
        notes |= {f"taps.{name}.attributes.{attribute}.bound": why for attribute in tap.attributes or {}}
    notes |= unexpected
    notes |= {f"taps.{name}.{field}": limits.floor.note for field in ("rmse_floor", "rmse_floor_unbiased")}
    if bounds["seen"] is None:
        notes[f"taps.{name}.seen"] = limits.guard.reason
    if bounds["seen"] is not None and tap.batch > 1:
        whose = "client, given the other clients" if limits.guard.unit == "client" else "example, given the others"
        notes[f"taps.{name}.bounds"] = (
            f"each bound is for one {whose} behind the update; each of the {tap.batch} guesses at a batch is a chance, so the rate"
            " that the bounds of the ASR and of inferred labels start from (kappa, how often an attacker is right without the"
            " leak) is that many times the rate of one guess"
        )
    confidence = 1 - 0.05 / (points * (len(BOUNDS) + len(REFERENCES) + len(tap.attributes or {})))
    return found, notes, violations(name, found, group, confidence)
