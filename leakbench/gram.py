"""The products of long rows with each other."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gram_of"]

BLOCK = 4096
"""How many columns are multiplied at a time."""


SOME = 512
"""How many rows are multiplied with how many: the products below the diagonal are those above it."""


def gram_of(rows: Tensor, exact: bool = False) -> Tensor:
    """Return rows @ rows.T (n, n) in float64, of rows (n, p), summed over blocks of columns.

    Args:
        exact: Whether the products within a block are in float64 too, as information needs it whose small eigenvalues count. An
            estimate with a ridge on its diagonal does with the rows' own type, which takes a fraction of the time.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in torch.split(rows, BLOCK, 1):
        wide = block.double() if exact else block
        for first in range(0, len(rows), SOME):
            some = slice(first, first + SOME)
            total[some, first:] += wide[some] @ wide[first:].T
    return torch.triu(total) + torch.triu(total, 1).T
