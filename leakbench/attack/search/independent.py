"""Selects the most certain of many vectors such that each is linearly independent of those before it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["independent"]

ROUNDING = 1e-10
"""Share of a squared length that can consist of rounding errors in double precision."""


def independent(products: Tensor, certainty: Tensor, many: int, sure: float, apart: float) -> Tensor:
    """Return the certainty of up to `many` selected vectors, taken in descending order of certainty, and minus infinity for others.

    The span of the selected vectors is kept as a pivoted Cholesky factor, which takes k numbers per step instead of vectors.

    Args:
        products: Inner products (V, k, k) of the k vectors of V victims.
        certainty: (V, k); minus infinity for vectors that must not be selected.
        many: Largest number of selected vectors.
        sure: Certainty from which a vector is selected even if it is in the span of the others.
        apart: Share of its length that a less certain vector must have outside the span of those selected before.

    Returns:
        (V, k).
    """
    lengths = products.diagonal(dim1=1, dim2=2)
    outside, left = lengths.clone(), certainty.clone()
    chosen, factor = torch.full_like(certainty, -torch.inf), products.new_zeros(*certainty.shape, many)
    lanes = torch.arange(len(products), device=products.device)
    for step in range(min(many, certainty.shape[1])):
        refused = (left < sure) & (outside <= apart**2 * lengths)
        best, row = left.masked_fill(refused, -torch.inf).max(1)
        some = lanes[best.isfinite()]
        if not len(some):
            break
        row = row[some]
        chosen[some, row], left[some, row] = best[some], -torch.inf
        column = products[some, row] - (factor[some, :, :step] @ factor[some, row, :step, None])[..., 0]
        # A vector of the span that is selected for its certainty would add only rounding errors to the factor.
        adds = outside[some, row] > ROUNDING * lengths[some, row]
        pivot = outside[some, row].where(adds, torch.inf).sqrt()
        factor[some, :, step] = column / pivot[:, None]
        outside[some] = (outside[some] - factor[some, :, step].square()).clamp_min(0)
    return chosen
