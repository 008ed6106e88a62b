"""State the limits of a frontier's answer: settings that were not measured, and how its accuracies were selected."""

from __future__ import annotations

import pandas as pd

from leakbench.frontier.grid import DEFENSES

__all__ = ["limits_of", "not_measured"]

SAME_TEST = (
    "The setting is selected by its accuracy on the test examples, so that the reported accuracy is slightly too high."
)

ONE_SEED = "With one seed, the interval of an accuracy covers the choice of test examples, but not another training."


def limits_of(rows: pd.DataFrame, main: pd.DataFrame) -> list[str]:
    """Return paragraphs.

    Args:
        rows: All rows, with the settings that were left out.
        main: The rows of the leakage point that the answer is about.
    """
    lacking, grid = not_measured(rows, main)
    said = (
        f"Not measured: {lacking} of the {grid} settings of the grid of these defenses and noise factors; the answer is among the "
        f"other {grid - lacking}."
        if lacking
        else f"All {grid} settings of the grid of these defenses and noise factors were measured."
    )
    others = [f"`{name}`" for name in DEFENSES if name not in set(rows["defense"])]
    absent = (
        [f"Default defenses that were not tried ({len(others)} of {len(DEFENSES)}): {', '.join(others)}."]
        if others
        else []
    )
    seeds = [ONE_SEED] if len(main) and main["seeds"].max() == 1 else []
    return [" ".join([said, *absent]), "", " ".join([*seeds, SAME_TEST])]


def not_measured(rows: pd.DataFrame, main: pd.DataFrame) -> tuple[int, int]:
    """Return how many settings of the grid were not measured, and how many settings the grid has.

    The grid: every defense with noise at every factor of these rows, and every other defense once.
    """
    noisy = rows[rows["noise"].astype(bool)]
    grid = noisy["defense"].nunique() * noisy["factor"].nunique()
    grid += len(set(rows["defense"]) - set(noisy["defense"]))
    return grid - main["cell"].nunique(), grid
