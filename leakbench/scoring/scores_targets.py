"""The columns of networks that do not name classes: how far inferred targets are from the true ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakbench.core.answers import Reconstruction
from leakbench.core.task import Heads
from leakbench.measure.closeness import Closeness
from leakbench.measure.rates import TARGET_ERROR
from leakbench.scoring.scores import VictimTruth

__all__ = ["score_targets"]


def score_targets(
    answer: Reconstruction | None, truth: VictimTruth, public: Tensor, heads: Heads, closeness: Closeness
) -> pd.DataFrame:
    """Return the error of the inferred targets, and that of the best constant guess, in V * M rows.

    Args:
        answer: The reconstruction; None for an attack that only ranks.
        truth: The truth, with its targets.
        public: Targets (P, k) of public examples, from which the constant guess is.
        heads: The parts of the targets.
        closeness: How reconstructions are matched to the truth.

    Returns:
        NaN for targets that the attack did not infer.
    """
    assert truth.answers is not None  # noqa: S101 - for mypy: only called for networks with such targets
    true = truth.answers.cpu()
    guess = heads.usual(public.cpu()).expand_as(true)
    found = torch.full_like(true, torch.nan)
    if answer is not None and answer.targets is not None:
        order = closeness.match(answer.inputs, truth.inputs).cpu()
        found = answer.targets.cpu().gather(1, order[..., None].expand_as(true)).to(true)
    columns = {TARGET_ERROR.name: heads.error(found, true), TARGET_ERROR.baseline: heads.error(guess, true)}
    return pd.DataFrame({name: np.asarray(values.double()).reshape(-1) for name, values in columns.items()})
