"""Sweeps that aim at an accuracy: which of their cells, from the most noise to the least, are the first to reach it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from leakbench.reproduce.agreement import agreement
from leakbench.reproduce.columns import epsilon_cell, interval, text_of
from leakbench.reproduce.verdict import LEAST_SEEDS

__all__ = ["Reached", "Setting", "reached"]

NONE_DOES = "none of those measured"

TRAINED = "trained_accuracy"

HALF = 5e-4
"""Half of the last digit of an aim."""


@dataclass(frozen=True)
class Setting:
    """A cell of a sweep: the last part of its name, and its numbers as the page prints them.

    Args:
        further: The 95 % interval of one more training's accuracy on as many test examples as the paper's, as of `agreement`.
    """

    cell: str = NONE_DOES
    accuracy: str = "-"
    further: str = "-"
    claimed: str = "-"
    valid: str = "-"


@dataclass(frozen=True)
class Reached:
    """A sweep, its aim, and the first of its cells that reach it.

    Args:
        mean: The first cell whose mean accuracy is the aim or above, regardless of its interval.
        possible: The first cell where one more training may reach the aim, as printed: its interval does not end below. Cells of
            fewer than `LEAST_SEEDS` trainings are left out; its name is "-" if no others were measured.
        few: Number of these.
    """

    sweep: str
    aim: float
    mean: Setting
    possible: Setting
    few: int


def reached(rows: pd.DataFrame, samples: Mapping[str, int] = {}) -> list[Reached]:
    """Return which cells of each sweep among the rows are the first to reach its aim.

    A sweep is all cells whose names are alike up to the last comma, in the order of the table.

    Args:
        samples: {cell: on how many examples the aim was measured}, where the paper gives it.
    """
    aimed = rows[rows["aim"].notna()] if "aim" in rows else rows.head(0)
    if not len(aimed):
        return []
    return [
        _reached(str(sweep), float(cells["aim"].iloc[0]), cells, samples)
        for sweep, cells in aimed.groupby(aimed["cell"].str.rpartition(", ")[0], sort=False)
    ]


def _reached(sweep: str, aim: float, cells: pd.DataFrame, samples: Mapping[str, int]) -> Reached:
    measured = [TRAINED, f"{TRAINED}_low", f"{TRAINED}_high", "seeds"]
    told = cells.reindex(columns=[*dict.fromkeys([*cells, *measured, "further_low", "further_high"])])
    several = (told["seeds"] >= LEAST_SEEDS) & told[measured].notna().all(axis=1)
    tests = [
        agreement(
            row[TRAINED],
            row[f"{TRAINED}_low"],
            row[f"{TRAINED}_high"],
            row["seeds"],
            aim,
            HALF,
            samples.get(row["cell"]),
        )
        for row in told[several].to_dict("records")
    ]
    for end in ("low", "high"):
        told.loc[several, f"further_{end}"] = [aim + getattr(test, end) for test in tests]
    may = told[several & (told["further_high"] >= aim - HALF)]
    return Reached(
        sweep,
        aim,
        _first(told[told[TRAINED] >= aim]),
        _first(may) if several.any() else Setting("-"),
        int((~several).sum()),
    )


def _first(cells: pd.DataFrame) -> Setting:
    if not len(cells):
        return Setting()
    row = cells.iloc[0].to_dict()
    ends = (min(max(row[f"further_{end}"], 0.0), 1.0) for end in ("low", "high"))
    further = "-" if math.isnan(row["further_low"]) else f"[{', '.join(text_of(end, 3) for end in ends)}]"
    claimed, valid = (epsilon_cell(row.get(f"epsilon_{name}")) for name in ("claimed", "valid"))
    cell = str(row["cell"]).rpartition(", ")[2]
    return Setting(cell, interval("trained_accuracy", 3)(row), further, claimed, valid)
