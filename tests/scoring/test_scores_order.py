"""Scores of matched reconstructions, and the cases of exactly eta and of infinite values."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.measure import metrics
from leakbench.scoring.rankings import ranked_first
from leakbench.scoring.scores import VictimTruth, score

SHAPE = (1, 4, 4)


def truth(inputs: Tensor) -> VictimTruth:
    """Return the truth (V, M, *s) with a different label for every example; victim v's own candidate is the v-th."""
    lanes = torch.arange(len(inputs))
    labels = torch.arange(inputs.shape[0] * inputs.shape[1]).reshape(inputs.shape[:2])
    return VictimTruth(lanes, inputs, labels, labels, lanes)


def blind(real: VictimTruth) -> Ranking:
    """Return equal scores for all classes."""
    return Ranking(torch.zeros(len(real.lanes), int(real.labels.max()) + 1))


def rows_of(
    real: VictimTruth,
    inputs: Tensor,
    *,
    eta: float = 0.1,
    guess: float = 1.0,
    scores: Tensor | None = None,
    lpips: metrics.Score | str = "n/a",
) -> pd.DataFrame:
    """Score reconstructions (V, M, *s) against a baseline that guesses one grey for every victim."""
    none = torch.zeros(len(inputs), dtype=torch.int64)
    certainty = torch.zeros(inputs.shape[:2])
    given = Reconstruction(
        inputs, real.labels, certainty, certainty[:, 0][None], none, none, inputs[None], (1,), none[None] + 20
    )
    grey = torch.full((real.labels.numel(), *SHAPE), guess)
    null = NullAttack({"grey": grey}, {}, {}, "grey", "grey")
    ranking = Ranking(torch.zeros(len(inputs), 5) if scores is None else scores)
    return score("type-1", 0, given, {"identified": ranking, "label_ranked": blind(real)}, null, real, eta, lpips)[0]


def test_lpips_uses_the_matched_reconstruction() -> None:
    """By a stand-in for LPIPS, since it gets the pictures like other scores: a permuted batch of truths scores 0."""
    real = truth(torch.rand(2, 3, *SHAPE, generator=torch.Generator().manual_seed(0)))
    turned = real.inputs[:, torch.tensor([1, 2, 0])]
    assert metrics.rmse(turned, real.inputs).min() > 0.1
    assert rows_of(real, turned, lpips=metrics.rmse)["lpips"].tolist() == [0.0] * 6


def test_an_error_of_exactly_eta_is_a_success() -> None:
    """Values of .75 and .8 for .5 at eta .25, for the attacker, the baseline and snapshots."""
    real = truth(torch.full((2, 1, *SHAPE), 0.5))
    answers = torch.tensor([0.75, 0.8]).reshape(2, 1, 1, 1, 1).expand(2, 1, *SHAPE)
    rows = rows_of(real, answers, eta=0.25, guess=0.75)
    assert rows["rmse"].iloc[0] == rows["null_rmse"].iloc[0] == rows["eta"].iloc[0] == 0.25
    assert rows["success"].tolist() == [True, False]
    assert rows["null_success"].tolist() == [True, True]
    np.testing.assert_equal(rows["iterations_to_success"].to_numpy(), [1.0, np.nan])
    np.testing.assert_equal(rows["evaluations_to_success"].to_numpy(), [20.0, np.nan])
    assert rows_of(real, answers, eta=0.25, guess=0.8)["null_success"].tolist() == [False, False]


def test_an_infinite_score_of_a_candidate_identifies_no_victim() -> None:
    """It does not identify its candidate, and does not prevent the best finite one."""
    real = truth(torch.full((3, 1, *SHAPE), 0.5))
    scores = torch.zeros(3, 5)
    scores[0, 0], scores[0, 4] = 1.0, torch.inf
    scores[1, 1] = torch.inf
    scores[2] = torch.inf
    found = rows_of(real, real.inputs, scores=scores)["identified"]
    np.testing.assert_equal(found.to_numpy(), [1.0, 0.0, np.nan])  # The last one was not ranked.


def test_a_class_missing_in_public_data_is_not_a_wrong_label() -> None:
    """Labels 0 and 1 of three classes, the second without a public example: NaN for it, and None if no victim has another."""
    scores = torch.tensor([[2.0, -torch.inf, 1.0], [2.0, -torch.inf, 1.0]])
    told = ranked_first(scores, torch.tensor([0, 1]))
    assert told[0] == 1
    assert told[1].isnan()
    # A diverged model identifies no victim.
    assert ranked_first(torch.full((1, 3), torch.nan), torch.tensor([1])).tolist() == [0.0]
