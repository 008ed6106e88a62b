"""A ridge chosen on public examples alone, for gradients without noise."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["leave_one_out"]

FEW = 2000
"""Largest number of examples; the time is the cube of it."""

SHARES = tuple(10 ** (exponent / 2) for exponent in range(-12, 1))
"""Candidates for the ridge, as shares of the mean diagonal: half decades from 1e-6 to 1."""


def leave_one_out(gram: Tensor, inputs: Tensor) -> float:
    """Return the ridge with which each public example is best predicted from the others.

    The ridge represents the nonlinear part of the map. Without example i, and with the means of the others, the residual is
    (K^-1 X)_i / ((K^-1)_ii - 1 / (n ridge)), where K = A A^T + ridge and A and X are centred (Allen's PRESS, 1974; the last term
    is the mean's share of the leverage).

    Args:
        gram: A A^T (n, n); the first `FEW` examples are used.
        inputs: X (n, d).

    Returns:
        The ridge; 0 if all public gradients are equal.
    """
    few, apart = _centred(_centred(gram[:FEW, :FEW]).T), _centred(inputs[:FEW])
    n, diagonal = len(few), float(few.diagonal().mean())
    if not diagonal > 0:  # All public gradients are equal.
        return 0.0
    values, directions = torch.linalg.eigh(few / diagonal)
    along, turned, squares = directions.T @ apart, directions.float(), directions.square()

    def error(ridge: float) -> float:
        shrunk = 1 / (values.clamp_min(0) + ridge)
        own = squares @ shrunk - 1 / (n * ridge)
        # Single precision suffices for the smallest sum of squares, and these thirteen products take most of the time.
        residual = turned @ (along * shrunk[:, None]).float() / own[:, None].float()
        return float(residual.square().mean())

    return min(SHARES, key=error) * diagonal


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(0)
