"""Verdicts on printed numbers: reproduced, contradicted, undecided, different setting, not measured, or no verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from leakbench.core.verdict_words import RECONSTRUCTS
from leakbench.measure.measures import RMSE
from leakbench.measure.rates import ASR
from leakbench.reproduce.agreement import LEVEL, UNKNOWN, Agreement, agreement, holm

__all__ = [
    "CLAIMS",
    "COLLAPSED",
    "CONTRADICTED",
    "DIFFERENT",
    "LEAST_SEEDS",
    "NONE",
    "NOT_MEASURED",
    "ORDER",
    "REPRODUCED",
    "UNDECIDED",
    "VERDICTS",
    "Compared",
    "PrintedMeasure",
    "compared",
    "decided",
    "digits_of",
    "settled",
    "unmeasured",
    "without_test",
]

REPRODUCED = "reproduced"
CONTRADICTED = "contradicted"
UNDECIDED = "undecided"
DIFFERENT = "different setting"
NOT_MEASURED = "not measured"
NONE = "no verdict"

VERDICTS = (REPRODUCED, CONTRADICTED, UNDECIDED, DIFFERENT, NOT_MEASURED, NONE)
"""All verdicts, in the order in which they are counted. What each means is in docs/papers.md."""

ORDER = "order"
"""What is claimed where a paper says that rows are above others, see `leakbench.reproduce.curves`."""

SEEDS = "seeds"
"""The unit of what several trainings decide."""

COLLAPSED = "collapsed trainings"
"""Start of the reason of a claim about trainings that answer at random or with one class."""

EXPLAINED_BY_NOTHING = "the difference is not explained yet"


@dataclass(frozen=True)
class PrintedMeasure:
    """What a printed number is compared with.

    Args:
        heading: Its name on pages.
        column: Its column of the rows, by default the claim's name.
        exact: Whether numbers must be equal to the printed digits, without a test.
        unit: The independent units of a mean: `seeds` are trainings, `networks` are draws of first weights; empty for a formula
            or a count.
        least: How many units a mean needs.
        tolerance: Largest difference at which a number still counts as reproduced.
        unjudged: Why it gets no verdict.
    """

    heading: str
    column: str = ""
    exact: bool = False
    unit: str = ""
    least: int = 0
    tolerance: float = 0.0
    unjudged: str = ""


MEDIAN = "a mean is printed, a median measured"

CLAIMS = {
    ASR.name: PrintedMeasure(ASR.heading, unit="networks", least=5, tolerance=0.05),
    RMSE.name: PrintedMeasure("mean RMSE", "rmse_mean", unit="networks", least=5, tolerance=0.02),
    "iterations": PrintedMeasure("iterations"),
    "recall": PrintedMeasure("recall", "in_any_row", unit="networks", least=5, tolerance=0.05),
    "accuracy": PrintedMeasure("accuracy", "trained_accuracy", unit=SEEDS, least=3, tolerance=0.02),
    "resilient": PrintedMeasure("resilient (1 yes, 0 no)", exact=True, unit="networks", least=5),
    "epsilon": PrintedMeasure("epsilon as claimed", "epsilon_claimed", exact=True),
    "rounds": PrintedMeasure("rounds", exact=True),
    "cost_ratio": PrintedMeasure("times none's", unjudged="another engine and machine"),
    ORDER: PrintedMeasure("points of accuracy above"),
}
"""{what a table may claim of a row: what measures it}."""

FAILED = "RMSE of a failed attack"


@dataclass(frozen=True)
class Compared:
    """One number of a paper next to what was measured.

    Args:
        value: The measurement.
        low: Lower end of its 95 % interval.
        high: Upper end of its 95 % interval.
        verdict: One of `VERDICTS`, empty until `decided` has corrected `test` for the page.
        reason: Why; before `decided`, the known reason for a difference.
        units: How many, in words.
    """

    row: str
    what: str
    claimed: float
    value: float
    low: float
    high: float
    verdict: str = ""
    reason: str = ""
    test: Agreement | None = None
    units: str = ""


def compared(
    row: Mapping[Any, Any],
    claim: Mapping[str, float],
    apart: Mapping[str, str],
    because: str,
    digits: Mapping[str, int],
    samples: Mapping[str, int] | None = None,
    looks: int = 1,
    collapsed: str = "",
) -> list[Compared]:
    """Compare each claim of a row with the row's column of that name and its interval, `_low` and `_high`.

    Args:
        row: a row of a table's CSV.
        claim: {what is claimed: printed number}.
        apart: {what is claimed: how the row's setting differs from the paper's}.
        because: the known reason why measured numbers differ from printed ones.
        digits: {what is claimed: printed digits behind the point}.
        samples: {what is claimed: on how many examples the printed number was measured}, where the paper gives it.
        looks: after how many numbers of seeds the row may end.
        collapsed: why no test over the row's trainings has the error rate of the page; empty for trainings that learned.

    Returns:
        The claims in their order; those that a test decides have no verdict before `decided`.
    """
    found = [
        _compared(
            row, what, number, claim, apart.get(what, ""), because, digits[what], (samples or {}).get(what), looks
        )
        for what, number in claim.items()
    ]
    return [without_test(claim, collapsed, because) for claim in found]


def _compared(
    row: Mapping[Any, Any],
    what: str,
    printed: float,
    claim: Mapping[str, float],
    apart: str,
    because: str,
    digits: int,
    samples: int | None,
    looks: int,
) -> Compared:
    measure = CLAIMS[what]
    name = measure.column or what
    value, low, high = (_number(row.get(f"{name}{end}")) for end in ("", "_low", "_high"))
    found = Compared(str(row["row"]), what, printed, value, low, high)
    units = _units(row, measure)
    half = 0.5 * 10.0**-digits
    if unjudged := measure.unjudged or (FAILED if what == RMSE.name and _failed(row, claim) else ""):
        return replace(found, verdict=NONE, reason=unjudged)
    inconclusive = what == "resilient" and isinstance(row.get("verdict"), str)
    unlike = _unlike(row, what)
    if math.isnan(value) and not (apart or unlike or inconclusive):
        return replace(found, verdict=NOT_MEASURED)
    few = (
        f"{_count(units, measure.unit)}{'' if units == 1 else f' of at least {measure.least}'}"
        if units < measure.least
        else ""
    )
    if different := "; ".join(filter(None, (few, apart, unlike))):
        return replace(found, verdict=DIFFERENT, reason=different)
    if measure.exact:
        return _equal(found, half, because)
    if math.isnan(low) or math.isnan(high):
        return replace(found, verdict=UNDECIDED, reason="the interval of the measurement is unknown")
    test = agreement(value, low, high, units, printed, half, samples, looks if measure.unit == SEEDS else 1)
    return replace(found, reason=because, test=test, units=_count(units, measure.unit))


def without_test(claim: Compared, collapsed: str, because: str = "") -> Compared:
    """Return a claim that a test over collapsed trainings would decide as undecided; other claims are unchanged."""
    if not collapsed or claim.test is None or CLAIMS[claim.what].unit not in (SEEDS, ""):
        return claim
    # It still counts as one of the page's tests.
    return replace(claim, test=UNKNOWN, reason="; ".join(filter(None, (collapsed, because))))


def settled(claims: Sequence[Compared], tests: int) -> bool:
    """Return whether more trainings cannot change a row: the verdict of each claim that they decide is certain.

    A verdict is certain if it is *reproduced*, or if it is *contradicted* for every outcome of the page's other tests. In the
    second case, its p-value multiplied by the number of tests is at most 1 %, and Holm's correction never gives a larger p-value.

    Args:
        claims: a row's, from `compared`.
        tests: the most tests that the page can have.
    """
    waiting = [claim for claim in claims if CLAIMS[claim.what].unit == SEEDS and claim.verdict in ("", UNDECIDED)]
    left = [claim for claim in waiting if not claim.reason.startswith(COLLAPSED)]  # No further training tests these.
    return all(
        claim.test is not None and _decided(claim, claim.test, tests * claim.test.p).verdict != UNDECIDED
        for claim in left
    )


def decided(claims: Sequence[Compared]) -> list[Compared]:
    """Give every claim of a page that has a test its verdict, after Holm's correction over all tests of the page.

    Reproduced: the 95 % interval of the difference is within the measure's tolerance; an order: the difference is above 0 at
    1 %. Contradicted: otherwise, and p is at most 1 %. Undecided: neither.
    """
    tests = [claim.test for claim in claims if claim.test is not None]
    adjusted = iter(holm([test.p for test in tests]))
    return [claim if claim.test is None else _decided(claim, claim.test, next(adjusted)) for claim in claims]


def _decided(claim: Compared, test: Agreement, p: float) -> Compared:
    tolerance = CLAIMS[claim.what].tolerance
    significant = p <= LEVEL
    within = -tolerance <= test.low and test.high <= tolerance
    if significant and claim.value > 0 if claim.what == ORDER else within:
        return replace(claim, verdict=REPRODUCED, reason="")
    if significant:
        return replace(claim, verdict=CONTRADICTED, reason=claim.reason or EXPLAINED_BY_NOTHING)
    if math.isnan(p):
        collapsed = claim.reason.startswith(COLLAPSED)
        reason = claim.reason if collapsed else f"{claim.units}: their spread is unknown"
        return replace(claim, verdict=UNDECIDED, reason=reason)
    return replace(claim, verdict=UNDECIDED, reason=f"{claim.units}: p = {p:.2g} after Holm's correction")


LEAST_SEEDS = CLAIMS["accuracy"].least
"""Fewest trainings that give a verdict."""


def unmeasured(row: str, claim: Mapping[str, float]) -> list[Compared]:
    """Return the claims of a row that was not measured."""
    nothing = math.nan
    return [Compared(row, what, number, nothing, nothing, nothing, NOT_MEASURED) for what, number in claim.items()]


def digits_of(claims: Iterable[Mapping[str, float]]) -> dict[str, int]:
    """Return {what is claimed: digits behind the point} of the number with most digits, since YAML loses a last zero."""
    found: dict[str, int] = {}
    for claim in claims:
        for what, printed in claim.items():
            exponent = Decimal(repr(printed)).normalize().as_tuple().exponent
            found[what] = max(found.get(what, 0), -int(exponent))
    return found


def _equal(found: Compared, half: float, because: str) -> Compared:
    """Compare to the printed digits."""
    if math.isnan(found.value):
        return replace(found, verdict=UNDECIDED, reason="the leak verdict is inconclusive")
    if abs(found.value - found.claimed) <= half * (1 + 1e-9):
        return replace(found, verdict=REPRODUCED)
    return replace(found, verdict=CONTRADICTED, reason=because or EXPLAINED_BY_NOTHING)


def _failed(row: Mapping[Any, Any], claim: Mapping[str, float]) -> bool:
    """Say whether the paper's attack failed, or ours: no verdict of a reconstruction, and an ASR not above the baseline guess's."""
    within = _number(row.get(ASR.name)) <= _number(row.get(ASR.baseline))
    return claim.get("resilient") == 1 or (within and row.get("verdict") != RECONSTRUCTS)


def _unlike(row: Mapping[Any, Any], what: str) -> str:
    """Return why the row has another quantity than the paper prints; empty if it has the same."""
    if what == "resilient" and row.get("verdict") == "identifies":
        return "the paper tests reconstruction; here victims were identified"
    median = what == RMSE.name and math.isnan(_number(row.get(CLAIMS[what].column))) and RMSE.name in row
    return MEDIAN if what == "iterations" or median else ""


def _units(row: Mapping[Any, Any], measure: PrintedMeasure) -> int:
    """Return the number of units behind a row; a row that does not say it is of one."""
    units = _number(row.get(measure.unit)) if measure.unit else math.nan
    return 1 if math.isnan(units) else int(units)


def _count(units: int, unit: str) -> str:
    return f"one {unit.removesuffix('s')}" if units == 1 else f"{units} {unit}"


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
