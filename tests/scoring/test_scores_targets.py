"""Errors of inferred targets: by example in the order of the truth, and their mean with failed victims."""

import numpy as np
import pandas as pd
import pytest
import torch

from leakbench.core.answers import Reconstruction
from leakbench.core.task import Head, Heads
from leakbench.measure.closeness import PIXELS
from leakbench.measure.rates import TARGET_ERROR
from leakbench.measure.truth import VictimTruth
from leakbench.scoring.scores_targets import score_targets
from leakbench.summary.targets import target_fields

HEADS = Heads((Head("age", "numbers", 2, center=(0.5, 0.5)),))
V, M = 2, 3
TARGETS = torch.arange(V * M * 2, dtype=torch.float32).reshape(V, M, 2) / 10
PUBLIC = torch.zeros(5, 2)


def truth() -> VictimTruth:
    rng = torch.Generator().manual_seed(0)
    labels = torch.zeros(V, M, dtype=torch.int64)
    lanes = torch.arange(V)
    return VictimTruth(lanes, torch.rand(V, M, 1, 4, 4, generator=rng), labels, labels, lanes, answers=TARGETS)


def reconstruction(order: torch.Tensor, targets: torch.Tensor) -> Reconstruction:
    """Return the true inputs in another order (V, M), with targets."""
    inputs = torch.stack([x[o] for x, o in zip(truth().inputs, order, strict=True)])
    one, certainty = torch.ones(V, dtype=torch.int64), torch.zeros(V, M)
    labels = torch.full((V, M), -1)
    return Reconstruction(
        inputs, labels, certainty, certainty.mT[:1], one, one, inputs[None], (1,), one[None], targets=targets
    )


def errors(answer: Reconstruction | None) -> pd.DataFrame:
    return score_targets(answer, truth(), PUBLIC, HEADS, PIXELS)


def test_the_targets_of_a_batch_follow_its_reconstructions() -> None:
    """Targets are compared with those of the example to which the reconstruction is matched."""
    order = torch.tensor([[2, 0, 1], [1, 2, 0]])
    there = torch.stack([t[o] for t, o in zip(TARGETS, order, strict=True)])
    assert errors(reconstruction(order, there))[TARGET_ERROR.name].tolist() == [0.0] * (V * M)
    shifted = there.clone()
    shifted[0, 1] += 0.3  # The second reconstruction of the first victim is its first example.
    assert errors(reconstruction(order, shifted))[TARGET_ERROR.name].tolist() == pytest.approx([0.3, 0, 0, 0, 0, 0])


def test_the_baseline_is_the_constant_guess_of_public_targets() -> None:
    rows = errors(None)
    assert rows[TARGET_ERROR.name].isna().all()
    assert rows[TARGET_ERROR.baseline].tolist() == pytest.approx(TARGETS.mean(2).flatten().tolist())


def test_a_victim_without_targets_has_the_error_of_the_baseline() -> None:
    """The mean of .2 and .7, each of one batch; without any inferred target there is no error."""
    rows = pd.DataFrame(
        {"batch": [0, 1], "network": 0, TARGET_ERROR.name: [0.2, np.nan], TARGET_ERROR.baseline: [0.5, 0.7]}
    )
    found = target_fields(rows)
    assert found[TARGET_ERROR.name] == pytest.approx(0.45)
    assert found[TARGET_ERROR.baseline] == pytest.approx(0.6)
    none = target_fields(rows.assign(**{TARGET_ERROR.name: np.nan}))
    assert none[TARGET_ERROR.name] is None and none[TARGET_ERROR.baseline] == pytest.approx(0.6)
