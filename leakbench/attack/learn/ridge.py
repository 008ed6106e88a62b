"""How much of what public examples say is believed where no noise says it: a ridge chosen on those examples alone."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["leave_one_out"]

FEW = 2000
"""How many examples decide: the cube of their number is the time that it takes."""

SHARES = tuple(10 ** (exponent / 2) for exponent in range(-12, 1))
"""Of the mean diagonal: half decades from 1e-6 to 1."""


def leave_one_out(gram: Tensor, inputs: Tensor) -> float:
    """Return the ridge for A A^T (n, n) and inputs (n, d) that predicts public examples best from the others.

    It stands for the bend of the map that a line leaves out, and is chosen on the first 2,000 examples: without example i, and with
    the means of the others, its residual is (K^-1 X)_i / ((K^-1)_ii - 1 / (n ridge)) with K = A A^T + ridge, A and X centred
    (Allen's PRESS, 1974; the last term is the mean's share of the leverage).
    """
    few, apart = _centred(_centred(gram[:FEW, :FEW]).T), _centred(inputs[:FEW])
    n, diagonal = len(few), float(few.diagonal().mean())
    if not diagonal > 0:  # No two public gradients differ.
        return 0.0
    values, directions = torch.linalg.eigh(few / diagonal)
    along, turned, squares = directions.T @ apart, directions.float(), directions.square()

    def error(ridge: float) -> float:
        shrunk = 1 / (values.clamp_min(0) + ridge)
        own = squares @ shrunk - 1 / (n * ridge)
        # Thirteen products of all examples, of which only the least sum of squares is asked: in single precision.
        residual = turned @ (along * shrunk[:, None]).float() / own[:, None].float()
        return float(residual.square().mean())

    return min(SHARES, key=error) * diagonal


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(0)
