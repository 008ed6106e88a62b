"""The Gram matrix of long rows."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gram_of"]

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
