"""The table of every victim, with as many lines as fit on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from leakbench.measure.measures import EDIT_DISTANCE, MEASURES, RMSE, Measure
from leakbench.measure.rates import FEATURES, IDENTIFIED, RECOGNISED, RECORDS
from leakbench.report.words import number

__all__ = ["LINES", "VictimTable", "victims"]

LINES = 2_000
"""Largest number of lines on a page; rows.parquet has all."""


@dataclass(frozen=True)
class VictimTable:
    """The table: (heading, whether its column is numeric), lines, and the number of examples under attack."""

    headings: list[tuple[str, bool]]
    lines: list[list[str]]
    examples: int


def victims(points: Mapping[str, pd.DataFrame]) -> VictimTable:
    """Return a line for each example under attack at each leakage point; the same first victims at each, as many as fit.

    A column without any value is left out.

    Args:
        points: {leakage point: its rows}.
    """
    everyone = pd.concat([rows.assign(point=name) for name, rows in points.items()]) if points else pd.DataFrame()
    if not len(everyone):
        return VictimTable([], [], 0)
    each = everyone.groupby("victim", sort=True).size().cumsum()
    shown = everyone[everyone["victim"].isin(each.index[each <= max(LINES, int(each.iloc[0]))])]
    columns = [column for column in COLUMNS if column.needs(everyone)]
    lines = [[column.text(row) for column in columns] for row in shown.head(LINES).to_dict("records")]
    return VictimTable([(column.heading, column.numeric) for column in columns], lines, len(everyone))


@dataclass(frozen=True)
class _Column:
    heading: str
    text: Callable[[Mapping[Any, Any]], str]
    needs: Callable[[pd.DataFrame], bool] = lambda _: True
    numeric: bool = True


def _has(*fields: str) -> Callable[[pd.DataFrame], bool]:
    return lambda rows: all(field in rows and bool(rows[field].notna().any()) for field in fields)


def _plain(heading: str, field: str, digits: int) -> _Column:
    return _Column(heading, lambda row: number(_float(row[field]), digits), _has(field))


def _measured(measure: Measure) -> _Column:
    return _plain(measure.heading, measure.name, measure.digits)


def _float(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _yes(value: Any) -> str:
    return "n/a" if pd.isna(value) else "yes" if value else "no"


COLUMNS = (
    _Column("leakage point", lambda row: str(row["point"]), numeric=False),
    _Column("victim", lambda row: str(row["victim"])),
    _Column("example", lambda row: str(row["member"]), lambda rows: bool(rows["member"].max() > 0)),
    _Column("success", lambda row: "no answer" if row["failure"] else _yes(row["success"]), numeric=False),
    _Column(RECOGNISED.name, lambda row: _yes(row[RECOGNISED.column]), _has(RECOGNISED.column), numeric=False),
    _measured(MEASURES[0]),
    _plain("baseline RMSE", RMSE.baseline, 4),
    _measured(EDIT_DISTANCE),
    _plain("baseline edit distance", EDIT_DISTANCE.baseline, EDIT_DISTANCE.digits),
    *map(_measured, MEASURES[1:]),
    _plain(FEATURES.heading, FEATURES.column, 2),
    _plain("record right", RECORDS.column, 0),
    _Column("label", lambda row: number(_float(row["label"]), 0), _has("label")),
    _Column("label inferred", lambda row: number(_float(row["label_guess"]), 0), _has("label_guess")),
    _plain(IDENTIFIED.heading, IDENTIFIED.column, 2),
    _plain("iterations", "iterations_to_success", 0),
)
