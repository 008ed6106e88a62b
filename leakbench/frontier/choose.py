"""Which setting to use: the most accurate whose identification is not told from chance, of those measured."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd

from leakbench.reproduce.reached import Reached, reached
from leakbench.summary.verdict import CAUTION
from leakbench.summary.verdict_words import LEAKING

__all__ = ["Choice", "chosen", "first_point", "main_rows", "qualifies", "reaching"]


@dataclass(frozen=True)
class Choice:
    """What was chosen among the rows of one leakage point.

    best: the row of the setting to use; None where none qualifies.  alike: the rows of other qualified settings whose interval
    of the accuracy overlaps the best one's.  least: the row that leaks least where none qualifies, of equals the most accurate.
    qualified, settings: how many of how many.
    """

    best: pd.Series | None
    alike: pd.DataFrame
    least: pd.Series | None
    qualified: int
    settings: int


def main_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the leakage point that is answered for, the first that was asked for; without what was left out."""
    if "point" not in rows or not len(rows):
        return rows.head(0)
    found: pd.DataFrame = rows[rows["left_out"].isna() & (rows["point"] == first_point(rows))]
    return found.reset_index(drop=True)


def first_point(rows: pd.DataFrame) -> str:
    """Return the leakage point that was asked for first."""
    return str(json.loads(rows["asked"].iloc[0])["taps"][0])


def qualifies(rows: pd.DataFrame) -> pd.Series:
    """Return of each row whether its identification is not told from chance and nothing else that was measured leaks.

    Not told: a one-sided exact binomial test of the many victims does not reject chance at `CAUTION`.  Where no ranking
    could be made, and where pictures or records come back all the same, it does not.
    An attack that found no answer is no reason against it.
    """
    within: pd.Series = rows["identify_p"] >= CAUTION
    return within & ~rows["verdict"].isin(LEAKING) & rows["trained_accuracy"].notna()


def chosen(rows: pd.DataFrame) -> Choice:
    """Return the choice among the rows of one leakage point.

    Of equally accurate settings the one of the smaller valid epsilon is taken (one without any comes last), then the one with more
    noise.
    """
    good = rows[qualifies(rows)] if len(rows) else rows
    if not len(good):
        least = rows.sort_values(["identified", "trained_accuracy"], ascending=[True, False], na_position="last")
        return Choice(None, good, least.iloc[0] if len(least) else None, 0, len(rows))
    keys = ["trained_accuracy", "epsilon_valid", "factor"]
    ranked = good.sort_values(keys, ascending=[False, True, False], na_position="last", kind="stable")
    best = ranked.iloc[0]
    rest = ranked.iloc[1:]
    above, below = rest["trained_accuracy_high"] >= best["trained_accuracy_low"], rest["trained_accuracy_low"]
    alike = rest[above & (below <= best["trained_accuracy_high"])]
    return Choice(best, alike, None, len(good), len(rows))


def reaching(rows: pd.DataFrame, accuracy: float) -> list[Reached]:
    """Return of each defense with noise the first setting, from the most noise on, whose mean accuracy reaches a number."""
    noisy = rows[rows["noise"].astype(bool)].sort_values(["defense", "factor"], ascending=[True, False])
    return reached(noisy.assign(aim=accuracy, cell=noisy["row"]))
