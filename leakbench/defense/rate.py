"""Random learning rates of clients. They change the length of a gradient and not its direction."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.part import Fraction, part
from leakbench.core.rng import uniform
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.transform import Transform

__all__ = ["FittedRate", "RandomRate"]

RATE = "random_rate"
"""Name of what is remembered: the factor of this round."""

ONE_NUMBER = "one random factor for all coordinates: the direction of what is sent follows the private gradient alone"


@part("transform.random_rate")
class RandomRate:
    """Multiply each client's gradients by a random number, drawn once a round, uniform in [1 - spread, 1 + spread].

    Learning rate perturbation (Wan et al., ICCV 2023): with SGD, the factor is that of the client's learning rate. The mean of
    the factors is 1.
    """

    stations: ClassVar[tuple[str, ...]] = ("batch",)
    stateful: ClassVar[bool] = True

    spread: Annotated[Fraction, Field(description="Largest difference of the factor to 1.")]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Multiply, and remember the factor until the last local iteration; `sensitivity` stays. Without `rngs` it is 1."""
        factor = signal.memory.get(RATE) if clock.local_iteration else None
        if factor is None:
            first = next(iter(signal.grads.values()))
            drawn = uniform(first.new_zeros(signal.lanes, 1), rngs, 1)[:, 0]
            factor = (1 + self.spread * (2 * drawn - 1)).reshape(-1, 1)
        grads = {n: g * factor.reshape(-1, *[1] * (g.dim() - 1)) for n, g in signal.grads.items()}
        after = signal.replace(grads, signal.sensitivity, Fact("other", reason=ONE_NUMBER))
        last = clock.local_iteration + 1 >= clock.local_iterations
        others = {n: m for n, m in signal.memory.items() if n != RATE}
        return dataclasses.replace(after, memory=others if last else {**others, RATE: factor})

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess: the factor that fits best."""
        return FittedRate(seen, self.spread)


@dataclass(frozen=True)
class FittedRate:
    """Multiply a guess g by the factor in [1 - spread, 1 + spread] with the least squared distance to the leaked gradient u.

    This is <g, u> / |g|^2. With one local iteration it is the client's factor at the true input.
    """

    seen: Parameters
    spread: float

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Multiply every member alike; nothing is drawn."""
        seen = {n: u.unsqueeze(1) for n, u in self.seen.items()}
        product, square = (_product(signal.grads, other) for other in (seen, signal.grads))
        factor = (product / square.clamp_min(torch.finfo(square.dtype).tiny)).clamp(1 - self.spread, 1 + self.spread)
        grads = {n: g * factor.reshape(-1, *[1] * (g.dim() - 1)) for n, g in signal.grads.items()}
        return signal.replace(grads, signal.sensitivity, Fact("other"))


def _product(one: Parameters, other: Parameters) -> Tensor:
    """Return the inner products (lanes,) over all members and coordinates."""
    return torch.stack([(g * other[n]).flatten(1).sum(1) for n, g in one.items()]).sum(0)
