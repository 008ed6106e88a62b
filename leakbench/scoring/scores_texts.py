"""The columns that only texts have: scores of the attack's sentences, of the baseline guess, and of the nearest public sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pandas as pd
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.data.dataset import Dataset
from leakbench.data.vocabulary import Vocabulary
from leakbench.measure.measures import EDIT_DISTANCE
from leakbench.measure.metrics_texts import TextScores, pairwise_edit_distance, text_scores
from leakbench.measure.rates import OF_TEXTS, ROUGE_L
from leakbench.scoring.scores import VictimTruth

__all__ = ["NEAREST", "TEXT_COLUMNS", "TextJudge", "score_text", "text_judge"]

PUBLIC = 1000
"""Largest number of public sentences among which the nearest one is searched."""

NEAREST = (f"nearest_{EDIT_DISTANCE.name}", f"nearest_{ROUGE_L.name}")
"""Columns of the public sentence that is nearest to the original: what a guess could reach that knows which one to take."""

SCORES = tuple(field.name for field in dataclasses.fields(TextScores))

TEXT_COLUMNS = (*SCORES, *(rate.baseline for rate in OF_TEXTS), *NEAREST)


@dataclass(frozen=True)
class TextJudge:
    """What sentences are scored by.

    Args:
        vocabulary: The tokens.
        public: Public sentences (P, T).
        guess: The baseline guess for all V * M sentences (V * M, T).
    """

    vocabulary: Vocabulary
    public: Tensor
    guess: Tensor


def text_judge(data: Dataset, null: NullAttack) -> TextJudge | None:
    """Return the judge of a cell's texts, None for other data."""
    if data.vocabulary is None:
        return None
    return TextJudge(data.vocabulary, data.public_inputs[:PUBLIC], null.guesses[null.best_for_rmse])


def score_text(answer: Tensor, truth: VictimTruth, judge: TextJudge) -> pd.DataFrame:
    """Return the columns TEXT_COLUMNS of V * M rows, in the order of `leakbench.scoring.scores.score`.

    Args:
        answer: Reconstructions (V, M, T), each at the place of its truth; NaN where there is none.
        truth: The true sentences.
        judge: What they are scored by.
    """
    members = truth.labels.shape[1]
    true = truth.inputs.cpu()
    null = judge.guess.reshape(-1, members, true.shape[-1])[truth.lanes].to(true)
    found, guessed = (text_scores(each, true, judge.vocabulary) for each in (answer.cpu(), null))
    near = judge.public[pairwise_edit_distance(true.flatten(0, 1), judge.public, judge.vocabulary).argmin(1)]
    close = text_scores(near.reshape_as(true), true, judge.vocabulary)
    columns = {
        **{name: getattr(found, name) for name in SCORES},
        **{rate.baseline: getattr(guessed, rate.name) for rate in OF_TEXTS},
        **dict(zip(NEAREST, (close.edit_distance, close.rouge_l), strict=True)),
    }
    return pd.DataFrame({name: np.asarray(columns[name]).reshape(-1) for name in TEXT_COLUMNS})
