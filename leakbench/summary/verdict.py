"""What a leakage point's numbers show: whether it leaks, beside what is guessed without any gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from leakbench.measure.statistics import proportion
from leakbench.summary.tables import comes_back

__all__ = ["above_chance", "above_null", "verdict"]

LEAST_VICTIMS = 10  # Of fewer, the null attacker's interval holds nearly everything.
LEVEL = 0.01  # An outcome that chance reaches less often than this is more than chance.


def above_null(found: Mapping[str, Any]) -> bool:
    """Return whether the ASR's interval lies above the null attacker's estimate, and the null's interval below the ASR."""
    return bool(found["asr_low"] > found["null_asr"] and found["asr"] > found["null_asr_high"])


def above_chance(right: int, victims: int, chance: float) -> bool:
    """Return whether so many of the victims are significantly more than chance has (binomial test at `LEVEL`)."""
    return bool(binomtest(right, victims, chance, "greater").pvalue < LEVEL)


def verdict(group: pd.DataFrame, found: dict[str, Any], doubtful: bool) -> str:
    """Return `leaks`, `protected` or `unclear`, each against the null attacker, or what lies between.

    leaks: the ASR's interval lies above the null's estimate and the null's interval below the ASR, or significantly more
    than half of the victims are closer than the null's guess, or, of a table, features or whole records come back
    significantly more often than both guesses have them (`comes_back`). protected: none of this, the ASR lies in the null's
    interval or below, the median RMSE is not below the null's, and victims are not identified more often than by chance
    (binomial test at 1 %): else it `identifies`. `attack failed` where half of the victims or more got no answer. doubtful:
    whether the ranking may miss what leaked, so that nothing is `protected`.
    """
    better = proportion((group["rmse"] < group["null_rmse"]).to_numpy(), group["batch"].to_numpy())
    if above_null(found) or better[1] > 0.5 or comes_back(group):
        return "leaks"
    first = group["identified"].dropna()
    if above_chance(int(first.sum()), len(first), 1 / found["candidates"]):
        return "identifies"
    if found["rmse"] is None:
        return "attack failed"
    shown = found["asr"] <= found["null_asr_high"] and found["rmse"] >= found["null_rmse"]
    if shown and not doubtful and found["victims"] >= LEAST_VICTIMS:
        return "protected"
    return "unclear"
