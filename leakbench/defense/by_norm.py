"""Transforms that see of a member only the norms of its tensors and only scale it: all clips, and rules for the noise's scale.

They need no member's gradient itself, so that a batch can be merged without ever holding its examples' gradients one by one
(`leakbench.federated.merged`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from leakbench.lengths import length
from leakbench.types import Clock, Fact, Signal

__all__ = ["ByNorm", "Norms", "Scaling", "clip_factor", "member_norms", "scale_by_norm", "scaled", "whole_norm"]

Norms: TypeAlias = dict[str, Tensor]
"""{parameter: (lanes, members)}, the L2 norm of each tensor of each member."""


@dataclass(frozen=True)
class Scaling:
    """What a transform makes of the norms.

    Args:
        factors: {parameter: (lanes, members)} by which each tensor is multiplied; {} where all stay.
        sensitivity: (lanes,) the scale of calibrated noise from here on.
        facts: What was done.
    """

    factors: Norms
    sensitivity: Tensor
    facts: tuple[Fact, ...]


@runtime_checkable
class ByNorm(Protocol):
    """A transform that goes by the norms alone."""

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Return what becomes of members with these norms, under the scale (lanes,) that the transforms before have set."""


def member_norms(signal: Signal) -> Norms:
    """Return {parameter: (lanes, members)}, the L2 norm of each tensor of each member."""
    return {name: length(g.flatten(2), 2) for name, g in signal.grads.items()}


def whole_norm(norms: Norms) -> Tensor:
    """Return (lanes, members), the L2 norm of each member over all its tensors together."""
    stacked = torch.stack(list(norms.values()))
    found = stacked.square().sum(0).sqrt()
    return found if bool(found.isfinite().all()) else found.where(found.isfinite(), length(stacked, 0))


def clip_factor(norms: Tensor, bound: float | Tensor) -> Tensor:
    """Return min(1, bound / norms), (lanes, members), for a bound that is a number or of a shape that broadcasts."""
    # A zero gradient has nothing to clip; the clamp keeps its factor at 1 instead of dividing by zero.
    return (bound / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)


def scaled(grad: Tensor, factor: Tensor) -> Tensor:
    """Return grad (lanes, members, *p) times factor (lanes, members)."""
    return grad * factor.reshape(*factor.shape, *[1] * (grad.dim() - 2))


def scale_by_norm(transform: ByNorm, signal: Signal, clock: Clock) -> Signal:
    """Return a signal whose members are held one by one, as the transform leaves them."""
    made = transform.by_norm(member_norms(signal), signal.sensitivity, clock)
    grads = {n: scaled(g, made.factors[n]) for n, g in signal.grads.items()} if made.factors else signal.grads
    return dataclasses.replace(signal, grads=grads, sensitivity=made.sensitivity, facts=(*signal.facts, *made.facts))
