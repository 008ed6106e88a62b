"""Decays: by which factor noise shrinks over a training, as Fed-alphaCDP prints it and as its accounting script has it.

Each maps a Clock to a factor >= 0 of the starting noise multiplier. Wei et al., TPDS 2023, section 6 (the four policies);
the script is github.com/git-disl/Fed-alphaCDP, privacy_accounting_fed_instancelevel.py, whose epsilons of one local
iteration grow: its noise multiplier is sqrt(2 ln(1.25 / delta)) = 4.8448 (of one step at epsilon 1) over that epsilon.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

from leakbench.types import Clock, Count, NonNegative, Positive, part

__all__ = [
    "DECAYS",
    "Cyclic",
    "Decay",
    "EpsilonExponential",
    "EpsilonLinear",
    "EpsilonStaircase",
    "Exponential",
    "Linear",
    "Staircase",
]


@runtime_checkable
class Decay(Protocol):
    """The slot `decay`: what the noise multiplier is multiplied with at one time."""

    def __call__(self, clock: Clock) -> float:
        """Return a factor >= 0."""


@part
class Linear:
    """1 - rate * t, not below 0; t: 0-based round. The paper's rate ends at 4.85 of 15 after 100 rounds."""

    rate: NonNegative = 10.15 / 1500

    def __call__(self, clock: Clock) -> float:
        """Return the factor of this round."""
        return max(0.0, 1 - self.rate * clock.round)


@part
class Staircase:
    """1 - drop * floor(t / rounds), not below 0; t: 0-based round."""

    drop: NonNegative = 10.15 / 150
    rounds: Count = 10

    def __call__(self, clock: Clock) -> float:
        """Return the factor of this round."""
        return max(0.0, 1 - self.drop * (clock.round // self.rounds))


@part
class Exponential:
    """exp(-rate * t); t: 0-based round."""

    rate: NonNegative = 0.0113

    def __call__(self, clock: Clock) -> float:
        """Return the factor of this round."""
        return math.exp(-self.rate * clock.round)


@part
class Cyclic:
    """(1 + cos(pi * mod(t, P) / P)) / 2 with P = ceil(T / cycles); t: 0-based round: almost 0 at the end of every cycle."""

    cycles: Count = 1

    def __call__(self, clock: Clock) -> float:
        """Return the factor of this round."""
        period = -(-clock.rounds // self.cycles)
        return (1 + math.cos(math.pi * (clock.round % period) / period)) / 2


def _progress(clock: Clock) -> float:
    """Return k / n: the local iterations that are over, of all."""
    return (clock.round * clock.local_iterations + clock.local_iteration) / (clock.rounds * clock.local_iterations)


@part
class EpsilonLinear:
    """1 / (start + k / n), anew in every local iteration k of n: the accounting script's."""

    start: Positive = 0.3074675

    def __call__(self, clock: Clock) -> float:
        """Return the factor of this local iteration."""
        return 1 / (self.start + _progress(clock))


@part
class EpsilonStaircase:
    """1 / (start + floor(stairs * k / n) / stairs), k of n local iterations: the accounting script's."""

    start: Positive = 0.3574675
    stairs: Count = 10

    def __call__(self, clock: Clock) -> float:
        """Return the factor of this local iteration."""
        done = clock.round * clock.local_iterations + clock.local_iteration
        return 1 / (self.start + self.stairs * done // (clock.rounds * clock.local_iterations) / self.stairs)


@part
class EpsilonExponential:
    """exp(-(rate * k / n + start)), k of n local iterations: the accounting script's."""

    rate: NonNegative = 1.664
    start: float = -1.1809

    def __call__(self, clock: Clock) -> float:
        """Return the factor of this local iteration."""
        return math.exp(-(self.rate * _progress(clock) + self.start))


DECAYS: dict[str, type[Any]] = {
    "linear": Linear,
    "staircase": Staircase,
    "exponential": Exponential,
    "cyclic": Cyclic,
    "epsilon_linear": EpsilonLinear,
    "epsilon_staircase": EpsilonStaircase,
    "epsilon_exponential": EpsilonExponential,
}
