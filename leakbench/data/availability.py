"""Availability of clients: which of them a server can draw in a round."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.rng import generator

__all__ = ["DAY", "UNIFORM", "available_clients", "check_availability", "written_availability"]

UNIFORM = "uniform"
"""Every client is available in every round."""

DAY = 24
"""Number of rounds of a day of `diurnal`."""


def check_availability(availability: str) -> tuple[str, tuple[float, ...]]:
    """Return the kind of an availability and its numbers.

    Args:
        availability: `uniform`; `beta:A,B`, where each client has its own probability from a Beta(A, B) distribution; or
            `diurnal:D`, where the probability of client i in round t is (1 + D sin(2 pi (t / 24 + u_i))) / 2, with u_i uniform in
            [0, 1).

    Raises:
        InputError: For another text, A or B not above 0, and D outside [0, 1].
    """
    kind, _, text = availability.partition(":")
    try:
        numbers = tuple(float(number) for number in text.split(",")) if text else ()
    except ValueError:
        numbers = (math.nan,)
    fits = {
        UNIFORM: numbers == (),
        "beta": len(numbers) == 2 and all(0 < n < math.inf for n in numbers),
        "diurnal": len(numbers) == 1 and all(0 <= n <= 1 for n in numbers),
    }
    if not fits.get(kind, False) or (kind == UNIFORM and availability != UNIFORM):
        raise InputError(
            f"availability: got {availability!r}, expected uniform, beta:A,B with numbers above 0, or diurnal:D with a number"
            " from 0 to 1"
        )
    return kind, numbers


def written_availability(availability: str) -> str:
    """Return an availability with its numbers in one form, as `beta:1,2` for `beta:1.0, 2`; raises InputError for another text."""
    kind, numbers = check_availability(availability)
    return f"{kind}:{','.join(str(int(n)) if n.is_integer() else repr(n) for n in numbers)}" if numbers else kind


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
