"""The most certain of many vectors of which none is a combination of those chosen before it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["independent"]

ROUNDING = 1e-10
"""Of a squared length, what is no more than the rounding of products in double precision."""


def independent(products: Tensor, certainty: Tensor, many: int, sure: float, apart: float) -> Tensor:
    """Return (V, k): the certainty of at most `many` vectors that are chosen in its order, minus infinity of all others.

    products (V, k, k): of the k vectors of V victims with each other. certainty (V, k): minus infinity of those never to be
    chosen.

    Args:
        sure: From which certainty on a vector is chosen whatever lies in its span.
        apart: Of its length, how much of a vector less certain has to lie outside the span of those chosen before it. The span is
            held as a pivoted Cholesky factor, which takes k numbers a step and not vectors.
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
        # One that lay in the span, and is chosen all the same, adds nothing to it but rounding.
        adds = outside[some, row] > ROUNDING * lengths[some, row]
        pivot = outside[some, row].where(adds, torch.inf).sqrt()
        factor[some, :, step] = column / pivot[:, None]
        outside[some] = (outside[some] - factor[some, :, step].square()).clamp_min(0)
    return chosen
