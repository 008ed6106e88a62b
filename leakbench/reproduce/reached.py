"""Sweeps that aim at an accuracy: which of their cells, from the most noise to the least, is the first to reach it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from leakbench.reproduce.columns import interval, text_of

__all__ = ["Reached", "reached"]

NONE_DOES = "none of those measured"


@dataclass(frozen=True)
class Reached:
    """A sweep, its aim and the cell that reaches it: the last part of its name, and its numbers as the page prints them."""

    sweep: str
    aim: float
    cell: str
    accuracy: str = "-"
    claimed: str = "-"
    valid: str = "-"


def reached(rows: pd.DataFrame, by: str = "trained_accuracy_high") -> list[Reached]:
    """Return, of each sweep among the rows, the first cell whose accuracy's interval ends at its aim or above.

    A sweep is all cells whose names are alike up to the last comma, in the order of the table.
    by: the column that has to reach the aim, if it is not the interval's end.
    """
    aimed = rows[rows["aim"].notna()] if "aim" in rows else rows.head(0)
    found = list[Reached]()
    if not len(aimed):
        return found
    for sweep, cells in aimed.groupby(aimed["cell"].str.rpartition(", ")[0], sort=False):
        aim = float(cells["aim"].iloc[0])
        enough = cells[cells[by] >= aim]
        if not len(enough):
            found.append(Reached(str(sweep), aim, NONE_DOES))
            continue
        first = enough.iloc[0].to_dict()
        epsilons = (text_of(first.get(f"epsilon_{name}"), 3) for name in ("claimed", "valid"))
        name = str(first["cell"]).rpartition(", ")[2]
        found.append(Reached(str(sweep), aim, name, interval("trained_accuracy", 3)(first), *epsilons))
    return found
