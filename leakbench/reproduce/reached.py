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
        possible: The first cell where one more training may reach the aim: the 95 % interval of its accuracy does not end below
            the aim.
        mean: The first cell whose mean accuracy is the aim or above, regardless of its interval.
        sure: The first cell where one more training is expected to reach the aim: the whole interval is at the aim or above.
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
    # A paper prints the accuracy of one training: Student's interval of one more is wider than that of the mean of n by
    # (n + 1) ** .5 (Hahn and Meeker, 1991, section 4.8). The interval of a single training is over test examples.
    mean, seeds = cells["trained_accuracy"], cells["seeds"]
    wider = (seeds + 1).where(seeds > 1, 1) ** 0.5
    high, low = (mean + wider * (cells[f"trained_accuracy_{end}"] - mean) for end in ("high", "low"))
    return Reached(sweep, aim, *(_first(cells[accuracy >= aim]) for accuracy in (high, mean, low)))


def _first(cells: pd.DataFrame) -> Setting:
    if not len(cells):
        return Setting()
    row = cells.iloc[0].to_dict()
    claimed, valid = (text_of(row.get(f"epsilon_{name}"), 3) for name in ("claimed", "valid"))
    return Setting(str(row["cell"]).rpartition(", ")[2], interval("trained_accuracy", 3)(row), claimed, valid)
