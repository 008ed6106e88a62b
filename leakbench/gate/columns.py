"""The columns of a baseline's rows: what each may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from leakbench.errors import InputError
from leakbench.federated.leakage import TAPS

__all__ = ["check_rows", "column_of"]


LARGEST = 2**53
"""Whole numbers below it are numbers of every kind, as the rows of a baseline have them."""


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < LARGEST


def _amount(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= 1e300)


def _hit(value: Any) -> bool:
    return type(value) in (bool, int, float) and value in (0, 1)


COLUMNS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tap": (lambda value: value in TAPS, f"one of {', '.join(TAPS)}"),
    "round": (_whole(0), "a whole number >= 0"),
    "victim": (_whole(0), "a whole number >= 0"),
    "member": (_whole(0), "a whole number >= 0"),
    "example": (_whole(0), "a whole number >= 0"),
    "label": (_whole(0), "a whole number >= 0"),
    "eta": (lambda value: value is not None and _amount(value), "a number >= 0"),
    "candidates": (_whole(1), "a whole number >= 1"),
    "success": (_hit, "true or false"),
    "identified": (lambda value: value is None or _hit(value), "0, 1, or null for a victim that was not ranked"),
    "failure_reason": (lambda value: value is None or type(value) is str, "text"),
    "label_guess": (lambda value: value is None or _whole(-LARGEST)(value), "a whole number, or null"),
    "rmse": (_amount, "a number >= 0, or null"),
    "null_rmse": (_amount, "a number >= 0, or null"),
}
"""{column: (what a value of it is, in words)}."""


def column_of(name: str, values: Any, count: int) -> list[Any]:
    """Return a column of so many examples, of which one value stands for all; raises InputError, with the field, for another."""
    listed = values if isinstance(values, list) else [values] * count
    if len(listed) != count:
        raise InputError(f"rows.{name}: got {len(listed)} values, expected {count}, one of each of the examples")
    fits, expected = COLUMNS[name]
    for value in listed:
        if not fits(value):
            raise InputError(f"rows.{name}: got {str(value)[:40]}, expected {expected}")
    return listed


def check_rows(rows: pd.DataFrame) -> None:
    """Raise InputError for an example that appears twice, and where of the first of each batch some were ranked and some not."""
    twice = rows[rows.duplicated(["tap", "round", "victim", "member"])]
    if len(twice):
        row = twice.iloc[0]
        raise InputError(f"rows: {row['tap']}, round {row['round']}, victim {row['victim']} appears twice")
    for (tap, number), some in rows[rows["member"] == 0].groupby(["tap", "round"]):
        if some["identified"].isna().any() and some["identified"].notna().any():
            raise InputError(f"rows.identified: at {tap}, round {number}, some victims have null, expected all or none")
