"""Long rows: norms without overflow, and the Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gram_of", "length"]


def length(vectors: Tensor, dim: int) -> Tensor:
    """Return the L2 norms along one axis; a norm is infinite or NaN only if the vector is, or if the norm is too large itself.

    Only norms that overflow in single precision are computed in double, so that all others stay bit-identical.
    """
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=dim)
    finite = norms.isfinite()
    on_gpu = vectors.device.type == "cuda"  # There the question would wait for all work before it.
    if not on_gpu and bool(finite.all()):
        return norms
    whole: Tensor = torch.linalg.vector_norm(vectors, dim=dim, dtype=torch.float64).to(norms)
    return norms.where(finite, whole)


BLOCK = 4096
"""Number of columns per product."""


SOME = 512
"""Number of rows per product: only products above the diagonal are computed, since the matrix is symmetric."""


def gram_of(rows: Tensor, exact: bool = False) -> Tensor:
    """Return rows @ rows.T (n, n) in float64, of rows (n, p), summed over blocks of columns.

    Args:
        exact: Whether the products within a block are in float64 too, which small eigenvalues need. With a ridge on the
            diagonal, the rows' own type is enough and takes a fraction of the time.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in torch.split(rows, BLOCK, 1):
        wide = block.double() if exact else block
        for first in range(0, len(rows), SOME):
            some = slice(first, first + SOME)
            total[some, first:] += wide[some] @ wide[first:].T
    return torch.triu(total) + torch.triu(total, 1).T
