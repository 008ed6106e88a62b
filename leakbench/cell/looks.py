"""Repeated observations of one gradient of the same examples, each with other random numbers.

A client that computes the same gradient again (a retry, a late round at an unchanged model, a fixed batch) draws new noise. The
noise of n observations averages out to 1 / sqrt(n) of the deviation of Gaussian noise, and n observations are n releases.
"""

from __future__ import annotations

import torch

from leakbench.cell.cell import Cell, leak_clock
from leakbench.cell.network import probe
from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.core.types import Network, Parameters
from leakbench.federated.leakage import leak

__all__ = ["check_looks", "looks_at", "random_at"]


def looks_at(cell: Cell, tap: str) -> int:
    """Return the number of observations of an attack at a leakage point; 1 if all would be bit-identical."""
    wanted = cell.settings.observations
    return wanted if wanted > 1 and random_at(cell, tap) else 1


def check_looks(cell: Cell) -> None:
    """Raise InputError for several observations if no leakage point of the cell depends on random numbers."""
    s = cell.settings
    if s.observations > 1 and not any(random_at(cell, tap) for tap in s.taps):
        raise InputError(
            f"observations: got {s.observations}, but nothing that {cell.names['defense']!r} draws at random shows at"
            f" {', '.join(s.taps)}: every look is the same bits; expected 1"
        )


def random_at(cell: Cell, tap: str) -> bool:
    """Return whether the update at a leakage point depends on random numbers, by two leaks of the same examples.

    The result is cached for each cell and leakage point.
    """
    if tap not in cell.drawn:
        network = probe(cell.defense, cell.data, cell.settings, cell.settings.leaking).network
        cell.drawn[tap] = any(_differs(cell, network, tap, number) for number in cell.settings.leak_rounds)
    return cell.drawn[tap]


def _differs(cell: Cell, network: Network, tap: str, round_number: int) -> bool:
    data, many = cell.data, min(2, cell.settings.leak_batch)
    chosen = data.victims[:many].reshape(1, 1, 1, -1)
    inputs, targets = data.train_inputs[chosen], data.answers_of(chosen)
    if not data.has_examples:  # Before the data are loaded, random inputs show whether anything is drawn at random.
        inputs = torch.rand(inputs.shape, generator=torch.Generator().manual_seed(0))
    rate, clock = cell.settings.federation.learning_rate, leak_clock(cell, round_number)

    def look(number: int) -> Parameters:
        rngs, draws = (generators(0, purpose, [(number,)]) for purpose in ("trial noise", "trial draws"))
        return leak(tap, network, inputs, targets, rate, cell.defense.stations, clock, rngs, draws)

    with torch.no_grad():
        one, other = look(0), look(1)
    # NaN equals itself here: an update that is not finite in the same places shows nothing random.
    return any(not torch.allclose(one[name], other[name], rtol=0, atol=0, equal_nan=True) for name in one)
