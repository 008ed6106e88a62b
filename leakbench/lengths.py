"""L2 norms without overflow: the square of a number above 1.8e19 is infinite in single precision."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["length"]


def length(vectors: Tensor, dim: int) -> Tensor:
    """Return the L2 norms along one axis; a norm is infinite or NaN only if the vector is, or if the norm is too large itself.

    Only norms that overflow in single precision are computed in double, so that all others stay bit-identical.
    """
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=dim)
    finite = norms.isfinite()
    if bool(finite.all()):
        return norms
    whole: Tensor = torch.linalg.vector_norm(vectors.double(), dim=dim).to(norms)
    return norms.where(finite, whole)
