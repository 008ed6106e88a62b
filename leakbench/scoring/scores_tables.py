"""The columns that only tables have: features and whole records that are right, for the attack and two guesses without gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.attack.null.tables import best_guesser, random_records
from leakbench.core.types import Generators
from leakbench.data.columns import Columns, columns_of
from leakbench.data.dataset import Dataset
from leakbench.measure.metrics_tables import table_scores
from leakbench.measure.rates import FEATURES, RECORDS
from leakbench.scoring.scores import VictimTruth

__all__ = ["TABLE_COLUMNS", "TableJudge", "score_table", "table_judge"]

TABLE_COLUMNS = tuple(f"{who}{what}" for what in (FEATURES.name, RECORDS.name) for who in ("", "random_", "null_"))

DRAWS = 20


@dataclass(frozen=True)
class TableJudge:
    """What a table's answers are scored by: its layout, the public records, and the null attacker's guess (V * M, d)."""

    columns: Columns
    public: Tensor
    guess: Tensor


def table_judge(data: Dataset, null: NullAttack, known_labels: Tensor) -> TableJudge | None:
    """Return the judge of a cell's tables, None for pictures.

    Args:
        known_labels: (V * M,), which the null attacker was told.
    """
    columns = columns_of(data)
    if columns is None:
        return None
    name = best_guesser(null, data.public_inputs, data.public_targets, known_labels, columns)
    return TableJudge(columns, data.public_inputs, null.guesses[name])


def score_table(answer: Tensor, truth: VictimTruth, judge: TableJudge, rngs: Generators) -> pd.DataFrame:
    """Return the columns TABLE_COLUMNS of V * M rows, in the order of `leakbench.scoring.scores.score`, for answers (V, M, d).

    All three are matched to the truth in the same way. random: the mean over 20 draws, from rngs[v] for victim v.
    """
    victims, members = truth.labels.shape
    true = truth.inputs.cpu()
    null = judge.guess.reshape(-1, members, true.shape[-1])[truth.lanes].to(true)
    drawn = torch.stack([random_records(judge.public, judge.columns, (DRAWS, members), rng) for rng in rngs]).to(true)
    many = true[:, None].expand_as(drawn)
    random = table_scores(drawn.flatten(0, 1), many.flatten(0, 1), judge.columns)
    found, guessed = (table_scores(a, true, judge.columns) for a in (answer.cpu(), null))
    columns: dict[str, Tensor] = {}
    for what in (FEATURES.name, RECORDS.name):
        by_draw = getattr(random, what).reshape(victims, DRAWS, members)
        columns |= {
            what: getattr(found, what),
            f"random_{what}": by_draw.mean(1),
            f"null_{what}": getattr(guessed, what),
        }
    return pd.DataFrame({name: np.asarray(columns[name]).reshape(-1) for name in TABLE_COLUMNS})
