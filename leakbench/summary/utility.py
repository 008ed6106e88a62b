"""Whether the trained network is useful: the chance level of its accuracy, and whether it is undertrained."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

from leakbench.data.dataset import Dataset, Targets
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


def utility(rounds: pd.DataFrame, data: Dataset, planned: Federation) -> dict[str, Any]:
    """Return what the accuracy of a training is compared with.

    Args:
        rounds: The rounds of the training, with `accuracy`.
        data: The data set.
        planned: The federation that the data set's recipe has.

    Returns:
        `chance`: accuracy of always answering the commonest class, label or next token; 0 for the explained squares of numbers.
        `undertrained`: why the network is undertrained, in words;
        empty where it is not, or where nothing was trained. A network is undertrained where its accuracy is not significantly
        above chance, or where it was trained for fewer rounds than the data set's recipe has.
    """
    if data.targets is None:
        targets = data.answers
        many = len(targets)
        chance = float(torch.bincount(targets).max()) / many
    else:
        many, chance = len(data.test_targets), _chance(data.targets)
    if rounds.empty:
        return {"chance": chance, "undertrained": ""}
    reached = float(rounds["accuracy"].iloc[-1])
    # The answers about one example depend on each other, so that only its mean counts, as one draw.
    above = accuracy_above_chance(reached, many, chance)
    why = "" if above else "not significantly above chance"
    if not why and len(rounds) < planned.rounds:
        why = f"{len(rounds)} of the data set's {planned.rounds} rounds"
    return {"chance": chance, "undertrained": why}


def _chance(targets: Targets) -> float:
    """Return the accuracy of the best constant guess, as `leakbench.core.task.Heads.answered` computes it."""
    heads = [h for h in targets.heads.heads if h.kind != "numbers"]
    guess = targets.heads.usual(targets.train)
    pairs = zip(targets.heads.heads, targets.heads.split(guess), targets.heads.split(targets.test), strict=True)
    shares = [1 - float(h.error(g.expand_as(t), t).mean()) for h, g, t in pairs if h.kind != "numbers"]
    return sum(shares) / len(shares) if heads else 0.0
