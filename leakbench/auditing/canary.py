"""Canaries: neighbouring inputs that bring out the worst in a defense, shaped like the gradients of a real model.

Neighbours differ in one member, which is a canary or zero (zero-out adjacency). A canary has the same norm in every
tensor, so that a clip that works layer by layer lets each tensor reach its bound: sqrt(M) C together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.types import Parameters

__all__ = ["BOUNDLESS", "FAR", "Neighbours", "direction", "focused", "joined", "neighbours", "opposed", "pointed"]

FAR = 1e6
"""Norm of a canary's tensors that every clip is expected to bind."""

BOUNDLESS = 1e9
"""Norm at which a canary still moves the release farther only if nothing bounds it."""

SPREAD = (0.5, 2.0)
"""Norms of the other members' tensors: apart from each other, so that a maximum or a median of them moves."""


@dataclass(frozen=True)
class Neighbours:
    """Pairs of neighbouring inputs, {p: (pairs, members, *p)} each; the first member is the canary, or zero."""

    present: Parameters
    absent: Parameters

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return next(iter(self.present.values())).shape[0]

    def at(self, index: int) -> Neighbours:
        """Return one pair."""
        one = slice(index, index + 1)
        return Neighbours({n: t[one] for n, t in self.present.items()}, {n: t[one] for n, t in self.absent.items()})


def direction(shapes: Mapping[str, tuple[int, ...]], members: int, rng: torch.Generator) -> Parameters:
    """Return members of random direction, {p: (members, *p)}, of norm 1 in every tensor."""
    drawn = {n: torch.randn(members, *shape, generator=rng) for n, shape in shapes.items()}
    return {n: t / t.flatten(1).norm(dim=1).reshape(-1, *[1] * (t.dim() - 1)) for n, t in drawn.items()}


def neighbours(
    shapes: Mapping[str, tuple[int, ...]], members: int, scales: Sequence[float], rng: torch.Generator
) -> Neighbours:
    """Return one pair a scale, the canary's norm in every tensor, beside other members with norms from 0.5 to 2."""
    units = direction(shapes, members, rng)
    low, high = (math.log10(norm) for norm in SPREAD)
    norms = torch.logspace(low, high, members)
    others = {n: _scaled(u, norms) for n, u in units.items()}
    return _pairs({n: u[0] for n, u in units.items()}, others, torch.tensor(scales))


def opposed(shapes: Mapping[str, tuple[int, ...]], members: int, scale: float, rng: torch.Generator) -> Neighbours:
    """Return one pair whose canary outweighs all others, who point against it: a clip of the mean then turns around."""
    canary = {n: u[0] for n, u in direction(shapes, 1, rng).items()}
    others = {n: (-0.1 * scale / members) * u.expand(members, *u.shape) for n, u in canary.items()}
    return _pairs(canary, others, torch.tensor([scale]))


def focused(shapes: Mapping[str, tuple[int, ...]], members: int, scale: float, rng: torch.Generator) -> Neighbours:
    """Return one pair a tensor, whose canary lies in that tensor alone: the worst case where one has less noise than others."""
    units = {n: u[0] for n, u in direction(shapes, 1, rng).items()}
    nobody = {n: u.new_zeros(members, *u.shape) for n, u in units.items()}

    def alone(name: str) -> Neighbours:
        return _pairs({n: u * (n == name) for n, u in units.items()}, nobody, torch.tensor([scale]))

    return joined([alone(name) for name in shapes])


def pointed(shapes: Mapping[str, tuple[int, ...]], scale: float, rng: torch.Generator) -> list[Neighbours]:
    """Return pairs of one member with canaries of shapes that a careless clip lets pass, of coordinates of size `scale`.

    All coordinates plus and minus as they come, and the negative of that; all of them positive, and all negative; one in each
    tensor, and nothing beside it.
    """
    drawn = {n: u[0] for n, u in direction(shapes, 1, rng).items()}
    nobody = {n: u.new_zeros(1, *u.shape) for n, u in drawn.items()}
    single = {n: torch.zeros_like(u).flatten().index_fill(0, torch.tensor([0]), 1.0) for n, u in drawn.items()}
    shaped = [
        {n: u.sign() for n, u in drawn.items()},
        {n: -u.sign() for n, u in drawn.items()},
        {n: torch.ones_like(u) for n, u in drawn.items()},
        {n: -torch.ones_like(u) for n, u in drawn.items()},
        {n: u.reshape(drawn[n].shape) for n, u in single.items()},
    ]
    return [_pairs(canary, nobody, torch.tensor([scale])) for canary in shaped]


def joined(several: Sequence[Neighbours]) -> Neighbours:
    """Put pairs side by side."""
    names = several[0].present
    present = {n: torch.cat([s.present[n] for s in several]) for n in names}
    return Neighbours(present, {n: torch.cat([s.absent[n] for s in several]) for n in names})


def _pairs(canary: Parameters, others: Parameters, scales: Tensor) -> Neighbours:
    present, absent = {}, {}
    for name, other in others.items():
        absent[name] = other.expand(len(scales), *other.shape).clone()
        absent[name][:, 0] = 0.0
        present[name] = absent[name].clone()
        present[name][:, 0] = _scaled(canary[name].expand(len(scales), *canary[name].shape), scales)
    return Neighbours(present, absent)


def _scaled(tensors: Tensor, factors: Tensor) -> Tensor:
    return tensors * factors.to(tensors).reshape(-1, *[1] * (tensors.dim() - 1))
