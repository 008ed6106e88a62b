"""Whether what a paper prints holds: whether its number lies in the interval of what was measured, to the digits it prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

__all__ = ["APART", "CLAIMS", "FAILS", "HOLDS", "ORDER", "Compared", "Measure", "compared", "digits_of"]


@dataclass(frozen=True)
class Measure:
    """What a claim is held against: its name on the page, its column of the rows (by default the claim's name) and whether that is
    exact, a count or a formula's value, which has no interval.  widest: what an interval may span for a number in it to hold.
    """

    heading: str
    column: str = ""
    exact: bool = False
    widest: float = math.inf


ORDER = "order"
"""What is claimed where rows lie above others: that points of accuracy are more than 0, see `leakbench.reproduce.curves`."""

HOLDS, FAILS, APART = "holds", "does not hold", "not comparable"

CLAIMS = {
    "asr": Measure("ASR"),
    "rmse": Measure("RMSE"),
    "iterations": Measure("iterations"),
    "recall": Measure("recall"),
    "accuracy": Measure("accuracy", "trained_accuracy", widest=0.1),
    "resilient": Measure("resilient (1 yes, 0 no)", exact=True),
    "epsilon": Measure("epsilon as claimed", "epsilon_claimed", exact=True),
    "rounds": Measure("rounds", exact=True),
    "cost_ratio": Measure("times none's"),
    ORDER: Measure("points of accuracy above"),
}
"""{what a table may claim of a row: what measures it}."""


@dataclass(frozen=True)
class Compared:
    """One number of a paper beside what was measured: value and 95 % interval, `verdict` one of the three, `reason` why."""

    row: str
    what: str
    claimed: float
    value: float
    low: float
    high: float
    verdict: str
    reason: str = ""


def compared(
    row: Mapping[Any, Any],
    claim: Mapping[str, float],
    apart: Mapping[str, str],
    because: str,
    digits: Mapping[str, int],
) -> list[Compared]:
    """Return each claim of a row beside the row's column of that name and the ends of its interval, `_low` and `_high`.

    Holds: the printed number, within half of its last digit, lies in the interval; digits: {NAME: how many behind the point are
    printed}. A claim of what was not measured, or whose interval is not known, is not comparable.
    """
    found = []
    for what, claimed in claim.items():
        measure = CLAIMS[what]
        ends = ("", "", "") if measure.exact else ("", "_low", "_high")
        value, low, high = (_number(row.get(f"{measure.column or what}{end}")) for end in ends)
        why = apart.get(what) or _lacking(value, low, high)
        half = 0.5 * 10.0 ** -digits[what]
        inside = low - half <= claimed <= high + half
        if inside and high - low > measure.widest:
            why = why or f"the interval spans more than {measure.widest:g}, in which nearly anything holds"
        word = APART if why else HOLDS if inside else FAILS
        reason = why or ("" if inside else because)
        found.append(Compared(str(row["row"]), what, claimed, value, low, high, word, reason))
    return found


def digits_of(claims: Iterable[Mapping[str, float]]) -> dict[str, int]:
    """Return {what is claimed: digits behind the point}: of the number that has most, since a last zero is lost in YAML."""
    found: dict[str, int] = {}
    for claim in claims:
        for what, printed in claim.items():
            exponent = Decimal(repr(printed)).normalize().as_tuple().exponent
            found[what] = max(found.get(what, 0), -int(exponent))
    return found


def _lacking(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "not measured"
    if math.isnan(low) or math.isnan(high):
        return "no interval was measured"
    return "too few victims bound a median" if math.isinf(low) and math.isinf(high) else ""


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
