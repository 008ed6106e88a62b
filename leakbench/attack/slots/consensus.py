"""Slot `priors`: agreement between the restarts for one victim."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.part import NonNegative, part
from leakbench.federated.view import View

__all__ = ["GroupConsistency"]


@part("priors.group_consistency")
class GroupConsistency:
    """Add weight * |x - consensus|, where consensus is the mean over all restarts for the victim (Yin et al., CVPR 2021, R_group).

    The mean is taken pixel by pixel and is constant in the derivative. The paper first registers the images, which this part does
    not. Each position of a batch is compared with the same position of the other restarts, as in the paper's batches of distinct
    labels. With one restart the term is zero. Use it with a descent that moves all searches at once, such as adam: only guesses of
    the same evaluation are compared.
    """

    weight: Annotated[NonNegative, Field(description="Factor of the penalty.")]

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,); guesses that are not finite do not count for the consensus."""
        flat = inputs.flatten(1)
        finite = flat.detach().isfinite().all(1)
        voices = flat.detach().masked_fill(~finite[:, None], 0.0)
        total = voices.new_zeros(view.victims, voices.shape[1]).index_add(0, victims, voices)
        count = voices.new_zeros(view.victims).index_add(0, victims, finite.to(voices)).clamp_min(1.0)
        consensus = (total / count[:, None])[victims]
        penalty: Tensor = self.weight * torch.linalg.vector_norm(flat - consensus, dim=1)
        return penalty
