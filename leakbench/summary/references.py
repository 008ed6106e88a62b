"""What came back to the last digits, and what a lying server measured beside what it may expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from leakbench.limits.reference import Reference
from leakbench.measure.statistics import exact_low, proportion

__all__ = ["REFERENCES", "VERBATIM", "references", "surpassed", "verbatim_fields"]

VERBATIM = 1e-3
"""The RMSE up to which an example is rebuilt exactly; a pixel's step of 1 / 255 is four times as much."""

REFERENCES: dict[str, tuple[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "verbatim": ("alone_expected", lambda rows: rows["rmse"] <= VERBATIM),
    "asr": ("asr_ideal", lambda rows: rows["success"]),
}
"""{measure: (its reference, rows -> whether each was right)}."""


def verbatim_fields(group: pd.DataFrame) -> dict[str, float]:
    """Return the share of examples rebuilt exactly, and its interval by batch."""
    share, low, high = proportion(
        (group["rmse"] <= VERBATIM).to_numpy(), group["batch"].to_numpy(), network=group.get("network")
    )
    return {"verbatim": share, "verbatim_low": low, "verbatim_high": high}


def references(
    name: str, tap: Mapping[str, Any], expected: Reference
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return (the references of a leakage point, notes on those that there are not).

    Who can do no better by reading guesses as the null attacker does.
    """
    asr, rmse, null = expected.asr, expected.rmse, tap["null_rmse"]
    fields = {
        "alone_expected": expected.alone,
        "asr_ideal": None if asr is None else max(asr, float(tap["null_asr"])),
        "rmse_ideal": rmse if rmse is None or null is None else min(rmse, float(null)),
    }
    missing = {
        "alone_expected": expected.no_alone,
        "asr_ideal": expected.no_ideal,
        "rmse_ideal": expected.no_ideal,
    }
    return fields, {f"taps.{name}.{field}": missing[field] for field, value in fields.items() if value is None}


def surpassed(name: str, tap: Mapping[str, Any], group: pd.DataFrame, confidence: float) -> list[dict[str, Any]]:
    """Return the measurements significantly above what the server may expect, as `leak_bounds.violations` does: a bug."""
    found = []
    for measure, (field, right) in REFERENCES.items():
        value, bound = tap[measure], tap[field]
        if value is None or bound is None:
            continue
        low = exact_low(right(group).to_numpy(dtype=float), group["batch"].to_numpy(), confidence)
        if low > bound:
            found.append(
                {"tap": name, "measure": measure, "reference": field, "value": value, "low": low, "bound": bound}
            )
    return found
