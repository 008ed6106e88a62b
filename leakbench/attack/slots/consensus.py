"""Slot `priors`: the restarts of one victim agree with each other."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.federated.view import View
from leakbench.part import NonNegative, part

__all__ = ["GroupConsistency"]


@part("priors.group_consistency")
class GroupConsistency:
    """Add weight * |x - consensus|, where consensus is the mean over all restarts of the victim (Yin et al., CVPR 2021, R_group).

    The mean is taken pixel by pixel and is constant in the derivative; the paper's registration of the images before it is left
    out. Each position of a batch is compared with the same position of the other restarts, as in the paper's batches of distinct
    labels. With one restart the term is zero. Use it with a descent that moves all searches at once, as adam does: only guesses of
    the same evaluation agree.
    """

    weight: NonNegative

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return (v,) penalties; a guess that is not finite has no say in the consensus."""
        flat = inputs.flatten(1)
        finite = flat.detach().isfinite().all(1)
        voices = flat.detach().masked_fill(~finite[:, None], 0.0)
        total = voices.new_zeros(view.victims, voices.shape[1]).index_add(0, victims, voices)
        count = voices.new_zeros(view.victims).index_add(0, victims, finite.to(voices)).clamp_min(1.0)
        consensus = (total / count[:, None])[victims]
        penalty: Tensor = self.weight * torch.linalg.vector_norm(flat - consensus, dim=1)
        return penalty
