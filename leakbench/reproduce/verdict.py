"""Whether what a paper prints holds: whether its number lies in the interval of what was measured, to the digits it prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

__all__ = ["APART", "CLAIMS", "FAILS", "HOLDS", "Compared", "compared", "digits_of"]

HOLDS, FAILS, APART = "holds", "does not hold", "not comparable"

CLAIMS = {
    "asr": "ASR",
    "rmse": "RMSE",
    "iterations": "iterations",
    "recall": "recall",
    "accuracy": "accuracy",
}
"""{what a table may claim of a row: its name on the page}; the column `claimed_NAME` of the CSV."""


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
    """Return each claim of a row beside the row's columns `NAME`, `NAME_low` and `NAME_high`.

    Holds: the printed number, within half of its last digit, lies in the interval; digits: {NAME: how many behind the point are
    printed}. A claim of what was not measured, or whose interval is not known, is not comparable.
    """
    found = []
    for what, claimed in claim.items():
        value, low, high = (_number(row.get(f"{what}{end}")) for end in ("", "_low", "_high"))
        why = apart.get(what) or _lacking(value, low, high)
        half = 0.5 * 10.0 ** -digits[what]
        inside = low - half <= claimed <= high + half
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
