"""How much of what public examples say is believed where no noise says it: a ridge chosen on those examples alone."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["leave_one_out"]

FEW = 1000
"""How many examples decide: the cube of their number is the time that it takes."""

SHARES = tuple(10 ** (exponent / 2) for exponent in range(-18, -6))
"""Of the mean diagonal for each example: half decades from 1e-9 to 3e-4."""


def leave_one_out(gram: Tensor, apart: Tensor) -> float:
    """Return the ridge for A A^T (n, n) and centred inputs (n, d) that predicts public examples best from the others.

    The ridge is n times a variance, which stands for the bend of the map that a line leaves out. That variance is chosen on the
    first 1,000 examples: without example i its residual is (K^-1 X)_i / (K^-1)_ii with K = A A^T + ridge (Allen's PRESS, 1974).
    """
    few = gram[:FEW, :FEW]
    diagonal = few.diagonal().mean()
    values, directions = torch.linalg.eigh(few)
    along = directions.T @ apart[:FEW]

    def error(share: float) -> float:
        shrunk = 1 / (values.clamp_min(0) + len(few) * share * diagonal)
        residual = directions @ (along * shrunk[:, None]) / (directions.square() @ shrunk)[:, None]
        return float(residual.square().mean())

    return float(len(gram) * min(SHARES, key=error) * diagonal)
