"""L2 norms that do not overflow before what they are of does: single precision holds no square above 3.4e38."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["length"]


def length(vectors: Tensor, dim: int) -> Tensor:
    """Return the L2 norms along one axis; not finite only where a vector is not, or its norm itself is too large.

    Only where single precision overflows they are taken in double, so that all others keep their bits.
    """
    found: Tensor = torch.linalg.vector_norm(vectors, dim=dim)
    held = found.isfinite()
    if bool(held.all()):
        return found
    whole: Tensor = torch.linalg.vector_norm(vectors.double(), dim=dim).to(found)
    return found.where(held, whole)
