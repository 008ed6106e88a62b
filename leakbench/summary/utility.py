"""Whether the trained network is useful: the chance level of its accuracy, and whether it is undertrained."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from leakbench.data.recipe import Federation
from leakbench.summary.verdict import CAUTION, by_chance

__all__ = ["accuracy_above_chance", "utility"]


def accuracy_above_chance(accuracy: float, examples: int, chance: float) -> bool:
    """Return whether an accuracy is significantly above chance, by a one-sided exact binomial test at `CAUTION`.

    Args:
        accuracy: Share of the test examples that are classified correctly.
        examples: Number of test examples.
        chance: Share of the commonest class among them.
    """
    return chance < 1 and by_chance(round(accuracy * examples), examples, chance) < CAUTION


def utility(rounds: pd.DataFrame, targets: Tensor, planned: Federation) -> dict[str, Any]:
    """Return what the accuracy of a training is compared with.

    Args:
        rounds: The rounds of the training, with `accuracy`.
        targets: Labels of the test examples (n,).
        planned: The federation that the data set's recipe has.

    Returns:
        `chance`: accuracy of always answering the commonest class. `undertrained`: why the network is undertrained, in words;
        empty where it is not, or where nothing was trained. A network is undertrained where its accuracy is not significantly
        above chance, or where it was trained for fewer rounds than the data set's recipe has.
    """
    many = len(targets)
    chance = float(torch.bincount(targets).max()) / many
    if rounds.empty:
        return {"chance": chance, "undertrained": ""}
    above = accuracy_above_chance(float(rounds["accuracy"].iloc[-1]), many, chance)
    why = "" if above else "not significantly above chance"
    if not why and len(rounds) < planned.rounds:
        why = f"{len(rounds)} of the data set's {planned.rounds} rounds"
    return {"chance": chance, "undertrained": why}
