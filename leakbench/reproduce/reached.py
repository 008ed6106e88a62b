"""Sweeps that aim at an accuracy: which of their cells, from the most noise to the least, are the first to reach it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from leakbench.reproduce.columns import interval, text_of

__all__ = ["Reached", "Setting", "reached"]

NONE_DOES = "none of those measured"


@dataclass(frozen=True)
class Setting:
    """A cell of a sweep: the last part of its name, and its numbers as the page prints them."""

    cell: str = NONE_DOES
    accuracy: str = "-"
    claimed: str = "-"
    valid: str = "-"


@dataclass(frozen=True)
class Reached:
    """A sweep, its aim, and the first of its cells that reach it.

    Args:
        possible: The first cell whose 95 % interval does not end below the aim: cells before it do not reach it.
        mean: The first cell whose mean accuracy is the aim or above, whatever its interval.
        sure: The first cell whose whole interval is at the aim or above.
    """

    sweep: str
    aim: float
    possible: Setting
    mean: Setting
    sure: Setting


def reached(rows: pd.DataFrame) -> list[Reached]:
    """Return which cells of each sweep among the rows are the first to reach its aim.

    A sweep is all cells whose names are alike up to the last comma, in the order of the table.
    """
    aimed = rows[rows["aim"].notna()] if "aim" in rows else rows.head(0)
    if not len(aimed):
        return []
    return [
        _reached(str(sweep), float(cells["aim"].iloc[0]), cells)
        for sweep, cells in aimed.groupby(aimed["cell"].str.rpartition(", ")[0], sort=False)
    ]


def _reached(sweep: str, aim: float, cells: pd.DataFrame) -> Reached:
    high, mean, low = (_first(cells[cells[f"trained_accuracy{end}"] >= aim]) for end in ("_high", "", "_low"))
    return Reached(sweep, aim, possible=high, mean=mean, sure=low)


def _first(cells: pd.DataFrame) -> Setting:
    if not len(cells):
        return Setting()
    row = cells.iloc[0].to_dict()
    claimed, valid = (text_of(row.get(f"epsilon_{name}"), 3) for name in ("claimed", "valid"))
    return Setting(str(row["cell"]).rpartition(", ")[2], interval("trained_accuracy", 3)(row), claimed, valid)
