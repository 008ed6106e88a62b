"""Transforms that read only the norms of a member's tensors and only scale the member: all clips, and rules for the noise scale.

They do not need a member's gradient itself. A batch can therefore be merged without the gradients of its single examples
(`leakbench.federated.merged`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from leakbench.core.types import Clock, Fact, Signal
from leakbench.engine.rows import length

__all__ = [
    "ByNorm",
    "Norms",
    "Scaling",
    "clip_factor",
    "finite_norms",
    "member_norms",
    "scale_by_norm",
    "scaled",
    "whole_norm",
]

Norms: TypeAlias = dict[str, Tensor]
"""{parameter: (lanes, members)}, the L2 norm of each tensor of each member."""


@dataclass(frozen=True)
class Scaling:
    """The result of a transform that reads norms.

    Args:
        factors: {parameter: (lanes, members)}, the factor of each tensor; {} if no tensor changes.
        sensitivity: (lanes,), the scale of calibrated noise after this transform.
        facts: Facts for the ledger.
    """

    factors: Norms
    sensitivity: Tensor
    facts: tuple[Fact, ...]


@runtime_checkable
class ByNorm(Protocol):
    """A transform that needs only the norms."""

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Return the factors of members with these norms.

        Args:
            sensitivity: (lanes,), the noise scale that the transforms before this one have set; None before any clip.
        """


def member_norms(signal: Signal) -> Norms:
    """Return {parameter: (lanes, members)}, the L2 norm of each tensor of each member."""
    return {name: length(g.flatten(2), 2) for name, g in signal.grads.items()}


def whole_norm(norms: Norms) -> Tensor:
    """Return (lanes, members), the L2 norm of each member over all its tensors together."""
    stacked = torch.stack(list(norms.values()))
    found = stacked.square().sum(0).sqrt()
    return found if bool(found.isfinite().all()) else found.where(found.isfinite(), length(stacked, 0))


def finite_norms(signal: Signal) -> tuple[Signal, Norms]:
    """Return `Signal.finite` and the norms of its tensors, which show without another pass that all members are finite."""
    norms = member_norms(signal)
    if bool(torch.stack(list(norms.values())).isfinite().all()):
        return signal, norms
    whole = signal.finite()
    return whole, norms if whole is signal else member_norms(whole)


def clip_factor(norms: Tensor, bound: float | Tensor) -> Tensor:
    """Return min(1, bound / norms), (lanes, members); `bound` is a number or has a shape that broadcasts.

    Factors below the normal numbers of the type are coarse, and rounded down, since a member must not exceed its bound.
    """
    kind = torch.finfo(norms.dtype)
    # The clamp avoids a division by zero: a zero gradient keeps the factor 1. Only coarse factors change by the difference.
    return (bound / norms.clamp_min(kind.tiny) - kind.smallest_normal * kind.eps).clamp(0.0, 1.0)


def scaled(grad: Tensor, factor: Tensor) -> Tensor:
    """Return grad (lanes, members, *p) times factor (lanes, members)."""
    return grad * factor.reshape(*factor.shape, *[1] * (grad.dim() - 2))


def scale_by_norm(transform: ByNorm, signal: Signal, clock: Clock) -> Signal:
    """Return the signal after a transform that reads norms, for a signal that has each member's gradient.

    A member that is not finite counts as zero (`Signal.finite`), so that every factor bounds it.
    """
    signal, norms = finite_norms(signal)
    made = transform.by_norm(norms, signal.sensitivity, clock)
    grads = {n: scaled(g, made.factors[n]) for n, g in signal.grads.items()} if made.factors else signal.grads
    return dataclasses.replace(signal, grads=grads, sensitivity=made.sensitivity, facts=(*signal.facts, *made.facts))
