"""Availability of clients: which of them a server can draw in a round."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from leakbench.core.rng import generator
from leakbench.core.words import UNIFORM, check_availability, written_availability

__all__ = ["DAY", "UNIFORM", "available_clients", "check_availability", "written_availability"]

DAY = 24
"""Number of rounds of a day of `diurnal`."""


def available_clients(availability: str, clients: int, seed: int, round_number: int) -> Tensor:
    """Return which clients are available in a round, (N,) bool.

    The probabilities of a client belong to the seed; whether it is available is drawn again in each round.

    Args:
        availability: See `check_availability`.
        clients: N.
        seed: Seed of the run.
        round_number: Index of the round, from 0.
    """
    kind, numbers = check_availability(availability)
    if kind == UNIFORM:
        return torch.ones(clients, dtype=torch.bool)
    rng = generator(seed, "availability")
    if kind == "beta":
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
        chances = torch.from_numpy(draw.beta(numbers[0], numbers[1], size=clients))
    else:
        turn = 2 * math.pi * (round_number / DAY + torch.rand(clients, generator=rng, dtype=torch.float64))
        chances = (1 + numbers[0] * turn.sin()) / 2
    return torch.rand(clients, generator=generator(seed, "available", round_number), dtype=torch.float64) < chances
