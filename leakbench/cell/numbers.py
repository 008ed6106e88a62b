"""The numbers of a request, as far as they may be judged before any recipe or data set is read."""

from __future__ import annotations

import math

from leakbench.attack.slots.stop import MOST_ITERATIONS
from leakbench.cell.looks import MOST_LOOKS
from leakbench.cell.request import Request, at_least, at_most
from leakbench.errors import InputError

__all__ = ["check_numbers"]

LEAST = {
    **{"evaluations": 1, "iterations": 1, "victims": 1, "leak_batch": 1, "candidates": 2, "seed": 0},
    **{"observations": 1, "networks": 1},
    **{"clients": 1, "clients_per_round": 1, "train_rounds": 0, "local_iterations": 1, "batch": 1},
}
"""The least that whole numbers may be."""

MOST_ROUNDS = 10**9
"""More rounds than anybody trains for; what is above is refused before an account is kept of each."""


def check_numbers(request: Request) -> None:
    """Raise InputError for a number outside of what its field may be for any data set."""
    for field, least in LEAST.items():
        value = getattr(request, field)
        if value is not None:
            at_least(field.replace("_", "-"), value, least)
    if request.iterations is not None:
        at_most("iterations", request.iterations, MOST_ITERATIONS)
    if request.budget is not None and not 0 < request.budget < math.inf:
        raise InputError(f"budget: got {request.budget:g}, expected a number of seconds above 0, as 60, 60s, 2m or 1h")
    if request.train_rounds is not None:
        at_most("train-rounds", request.train_rounds, MOST_ROUNDS)
    at_most("observations", request.observations, MOST_LOOKS)
    if request.dropout is not None and not 0 <= request.dropout <= 1:
        raise InputError(f"dropout: got {request.dropout}, expected a probability from 0 to 1")
    rate = request.learning_rate
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"learning-rate: got {rate}, expected a finite number above 0")
    if rate is not None and not 1e-30 <= rate <= 1e30:
        raise InputError(f"learning-rate: got {rate}, expected a number from 1e-30 to 1e30, as single precision holds")
