"""Canaries: neighbouring inputs that are the worst case for a defense, with the shapes of a real model's gradients.

Neighbours differ in one member, which is a canary or zero (zero-out adjacency). A canary has the same norm in every tensor. After a
clip layer by layer, each of its M tensors then has the bound C, and all together have sqrt(M) C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.core.types import Parameters

__all__ = ["BOUNDLESS", "FAR", "Neighbours", "direction", "focused", "joined", "neighbours", "opposed", "pointed"]

FAR = 1e6
"""Norm of a canary's tensors that every clip is expected to reduce."""

BOUNDLESS = 1e9
"""Norm at which a canary moves the release farther than at FAR only if nothing bounds it."""

SPREAD = (0.5, 2.0)
"""Range of the norms of the other members' tensors, which differ so that a canary changes their maximum or median."""


@dataclass(frozen=True)
class Neighbours:
    """Pairs of neighbouring inputs, {p: (pairs, members, *p)} each; the first member is the canary, or zero."""

    present: Parameters
    absent: Parameters

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return next(iter(self.present.values())).shape[0]

    def at(self, index: int) -> Neighbours:
        """Return one pair."""
        one = slice(index, index + 1)
        return Neighbours({n: t[one] for n, t in self.present.items()}, {n: t[one] for n, t in self.absent.items()})


def direction(shapes: Mapping[str, tuple[int, ...]], members: int, rng: torch.Generator) -> Parameters:
    """Return members of random direction, {p: (members, *p)}, with norm 1 in every tensor."""
    drawn = {n: torch.randn(members, *shape, generator=rng) for n, shape in shapes.items()}
    return {n: t / t.flatten(1).norm(dim=1).reshape(-1, *[1] * (t.dim() - 1)) for n, t in drawn.items()}


def neighbours(
    shapes: Mapping[str, tuple[int, ...]], members: int, scales: Sequence[float], rng: torch.Generator
) -> Neighbours:
    """Return one pair per scale, with other members of norms from 0.5 to 2.

    Args:
        shapes: {parameter: shape}.
        members: Number of members, with the canary.
        scales: Norms of the canary in every tensor.
    """
    units = direction(shapes, members, rng)
    low, high = (math.log10(norm) for norm in SPREAD)
    norms = torch.logspace(low, high, members)
    others = {n: _scaled(u, norms) for n, u in units.items()}
    return _pairs({n: u[0] for n, u in units.items()}, others, torch.tensor(scales))


def opposed(shapes: Mapping[str, tuple[int, ...]], members: int, scale: float, rng: torch.Generator) -> Neighbours:
    """Return one pair whose other members point against a much larger canary, so that the canary reverses a clipped mean."""
    canary = {n: u[0] for n, u in direction(shapes, 1, rng).items()}
    others = {n: (-0.1 * scale / members) * u.expand(members, *u.shape) for n, u in canary.items()}
    return _pairs(canary, others, torch.tensor([scale]))


def focused(shapes: Mapping[str, tuple[int, ...]], members: int, scale: float, rng: torch.Generator) -> Neighbours:
    """Return one pair per tensor with a canary in only that tensor: the worst case for a tensor with less noise than others."""
    units = {n: u[0] for n, u in direction(shapes, 1, rng).items()}
    zeros = {n: u.new_zeros(members, *u.shape) for n, u in units.items()}

    def alone(name: str) -> Neighbours:
        return _pairs({n: u * (n == name) for n, u in units.items()}, zeros, torch.tensor([scale]))

    return joined([alone(name) for name in shapes])


def pointed(shapes: Mapping[str, tuple[int, ...]], scale: float, rng: torch.Generator) -> list[Neighbours]:
    """Return pairs of one member with canaries that a wrong clip may not reduce, with coordinates of size `scale`.

    The canaries have random signs, the opposite signs, all positive and all negative coordinates, and one coordinate in each
    tensor.
    """
    drawn = {n: u[0] for n, u in direction(shapes, 1, rng).items()}
    zeros = {n: u.new_zeros(1, *u.shape) for n, u in drawn.items()}
    single = {n: torch.zeros_like(u).flatten().index_fill(0, torch.tensor([0]), 1.0) for n, u in drawn.items()}
    shaped = [
        {n: u.sign() for n, u in drawn.items()},
        {n: -u.sign() for n, u in drawn.items()},
        {n: torch.ones_like(u) for n, u in drawn.items()},
        {n: -torch.ones_like(u) for n, u in drawn.items()},
        {n: u.reshape(drawn[n].shape) for n, u in single.items()},
    ]
    return [_pairs(canary, zeros, torch.tensor([scale])) for canary in shaped]


def joined(several: Sequence[Neighbours]) -> Neighbours:
    """Concatenate pairs."""
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
