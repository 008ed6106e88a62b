"""What the page's answer does not say, at the top of it: settings that were not measured, and how its accuracies were chosen."""

from __future__ import annotations

import pandas as pd

from leakbench.frontier.grid import DEFENSES

__all__ = ["limits_of", "not_measured"]

SAME_TEST = (
    "The choice and the accuracy that is stated of it are from the same test examples, so that it is somewhat too high."
)

ONE_SEED = (
    "With one seed, an interval of the accuracy is of how many test examples there are only, not of another training."
)


def limits_of(rows: pd.DataFrame, main: pd.DataFrame) -> list[str]:
    """Return paragraphs; rows: all of them, with what was left out; main: those of the leakage point that is answered for."""
    lacking, grid = not_measured(rows, main)
    said = (
        f"Not measured: {lacking} of the {grid} settings of the grid of these defenses and noise factors; the answer is of the "
        f"other {grid - lacking}."
        if lacking
        else f"All {grid} settings of the grid of these defenses and noise factors were measured."
    )
    others = [f"`{name}`" for name in DEFENSES if name not in set(rows["defense"])]
    absent = (
        [f"Of the {len(DEFENSES)} defenses by default, {len(others)} were not tried: {', '.join(others)}."]
        if others
        else []
    )
    seeds = [ONE_SEED] if len(main) and main["seeds"].max() == 1 else []
    return [" ".join([said, *absent]), "", " ".join([*seeds, SAME_TEST])]


def not_measured(rows: pd.DataFrame, main: pd.DataFrame) -> tuple[int, int]:
    """Return how many settings of the grid have no row of measures, and how many settings the grid has.

    The grid: every defense with noise at every factor of these rows, and every other defense once.
    """
    noisy = rows[rows["noise"].astype(bool)]
    grid = noisy["defense"].nunique() * noisy["factor"].nunique()
    grid += len(set(rows["defense"]) - set(noisy["defense"]))
    return grid - main["cell"].nunique(), grid
