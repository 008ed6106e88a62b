"""Mixed examples: each member of a batch becomes a weighted mean of several, with the same mean of their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from pydantic_core import PydanticCustomError
from scipy.special import betaincinv
from torch import Tensor

from leakbench.core.part import Fraction, Positive, part
from leakbench.core.types import Clock, Generators
from leakbench.defense.augmentation import Augmentation, Batch, drawn

__all__ = ["InstaHide", "Mixup", "mixed"]

CLOSE = 1.2
"""Least quotient of the largest allowed weight and the mean one: closer to 1, nearly all drawn weights would be refused."""


@part("augmentation.mixup")
class Mixup:
    """Mix each example with another one of its batch, with weights of Beta(alpha, alpha) (Zhang et al., ICLR 2018).

    The partners are a random order of the batch, so an example may be mixed with itself; in a batch of one it always is.
    """

    alpha: Annotated[
        Positive, Field(description="Both parameters of the Beta distribution; 1 draws all weights equally.")
    ] = 1.0

    def outcomes(self) -> tuple[Augmentation, ...]:
        """Return mixes of known weights from 1/2 to 1: the example with the larger weight is the one that a mix shows."""
        return tuple(_Weighted(0.5 + step / 20) for step in range(11))

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        """Mix; without generators nothing is mixed."""
        if rngs is None:
            return batch

        def weights(n: int, rng: torch.Generator) -> Tensor:
            uniform = torch.rand(n, generator=rng, dtype=torch.float64)
            own = torch.from_numpy(betaincinv(self.alpha, self.alpha, uniform.numpy()))
            return torch.stack([own, 1 - own], 1)

        return mixed(batch, drawn(batch, rngs, weights), _partners(batch, rngs, 1))


@dataclass(frozen=True)
class _Weighted:
    """Mix each example, with a known weight, with another one of its batch."""

    own: float

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        """Mix; without generators nothing is mixed."""
        if rngs is None:
            return batch
        weights = batch.weights.new_tensor([self.own, 1 - self.own]).expand(*batch.weights.shape, 2)
        return mixed(batch, weights, _partners(batch, rngs, 1))


@part("augmentation.instahide")
class InstaHide:
    """Mix each example with others of its batch, then flip the signs of random pixels (Huang et al., ICML 2020).

    The weights are the sizes of standard normal numbers divided by their sum, drawn again while one is above `most`. A sign is that
    of the distance from 0.5, so a flip turns a value v into 1 - v. The partners are random orders of the batch.
    """

    examples: Annotated[int, Field(ge=2, description="k, the number of examples in a mix.")] = 4
    most: Annotated[Fraction, Field(description="Largest weight of one example in a mix.")] = 0.65
    signs: Annotated[bool, Field(description="Whether signs are flipped, each with probability 1/2.")] = True

    def __post_init__(self) -> None:
        if self.most * self.examples < CLOSE:
            text = (
                f"most: got {self.most:g}, expected at least {CLOSE:g} / {self.examples}, since the weights add up to 1"
            )
            raise PydanticCustomError("slot", "{text}", {"text": text})

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        """Mix and flip; without generators nothing is done."""
        if rngs is None:
            return batch
        after = mixed(batch, drawn(batch, rngs, self._weights), _partners(batch, rngs, self.examples - 1))
        if not self.signs:
            return after
        shape = batch.inputs.shape[2:]
        flips = drawn(batch, rngs, lambda n, rng: torch.randint(2, (n, *shape), generator=rng)).bool()
        return Batch(torch.where(flips, 1 - after.inputs, after.inputs), after.targets, after.weights)

    def shown(self, inputs: Tensor) -> Tensor:
        """Return the distances from 0.5, in [0.5, 1]: the flips hide the signs."""
        return 0.5 + (inputs - 0.5).abs() if self.signs else inputs

    def _weights(self, n: int, rng: torch.Generator) -> Tensor:
        """Draw weights (n, k)."""
        found = torch.ones(n, self.examples, dtype=torch.float64)
        left = torch.arange(n)
        while len(left):
            sizes = torch.randn(len(left), self.examples, generator=rng, dtype=torch.float64).abs()
            found[left] = sizes / sizes.sum(1, keepdim=True)
            left = left[found[left].amax(1) > self.most]
        return found


def mixed(batch: Batch, weights: Tensor, partners: Tensor) -> Batch:
    """Return the batch of weighted means of each example and its partners, of inputs and of labels.

    Args:
        batch: The batch.
        weights: (lanes, B, k), that of the example itself first.
        partners: (lanes, B, k - 1) int64, positions in the batch.
    """
    own = torch.arange(batch.weights.shape[1], device=partners.device).expand(batch.weights.shape)[..., None]
    places = torch.cat([own, partners], 2)

    def of(values: Tensor) -> Tensor:
        total = torch.zeros_like(values)
        for k in range(places.shape[2]):
            shape = (*places.shape[:2], *[1] * (values.dim() - 2))
            chosen = values.gather(1, places[..., k].reshape(shape).expand_as(values))
            total = total + weights[..., k].to(values).reshape(shape) * chosen
        return total

    return Batch(of(batch.inputs), of(batch.targets), batch.weights)


def _partners(batch: Batch, rngs: Generators, count: int) -> Tensor:
    """Draw random orders of each lane's examples, as positions (lanes, B, count) in the batch."""

    def orders(n: int, rng: torch.Generator) -> Tensor:
        return torch.stack([torch.randperm(n, generator=rng) for _ in range(count)], 1)

    # The positions of examples before those of padding, which is mixed with any example and never counts.
    places = (batch.weights <= 0).to(torch.uint8).argsort(dim=1, stable=True)
    ranks = drawn(batch, rngs, orders)
    return places.gather(1, ranks.flatten(1)).reshape(ranks.shape)
