"""A network that is fed inputs with a mean taken off and divided by a deviation, as an attacker in [0, 1] sees it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from leakbench.errors import InputError

__all__ = ["Normal", "Numbers", "normal_of", "normals", "unnormalised"]

Numbers: TypeAlias = float | Sequence[float]

SLACK = 1e-3
"""How far from [0, 1] rounding may leave inputs whose normalisation is undone."""


@dataclass(frozen=True)
class Normal:
    """(x - mean) / std of inputs x (n, C, ...), a number for all channels or one each; calling it is a module's pre-hook."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return what the network is fed."""
        x, *more = inputs
        mean, std = self._like(x)
        return ((x - mean) / std, *more)

    def undone(self, x: Tensor) -> Tensor:
        """Return the inputs (n, C, ...) in [0, 1] of what was fed."""
        mean, std = self._like(x)
        return x * std + mean

    def before(self, model: nn.Module) -> nn.Module:
        """Return a copy of a network that takes inputs in [0, 1]; the names of its parameters stay."""
        copied = copy.deepcopy(model)
        copied.register_forward_pre_hook(self)
        return copied

    def _like(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1, *[1] * (x.dim() - 2))
        mean, std = (torch.tensor(t, dtype=x.dtype, device=x.device).reshape(shape) for t in (self.mean, self.std))
        return mean, std


def normal_of(mean: Numbers, std: Numbers, shape: tuple[int, ...]) -> Normal:
    """Return what takes the mean off and divides by the deviation, each a number or one a channel.

    Raises InputError for a deviation that is not above 0, numbers that are not finite, and another count than one or one a channel.
    """
    found = []
    for field, given in (("mean", mean), ("std", std)):
        numbers = (float(given),) if isinstance(given, int | float) else tuple(map(float, given))
        if len(numbers) not in (1, shape[0]) or not all(map(math.isfinite, numbers)):
            raise InputError(f"{field}: got {given}, expected a finite number, or {shape[0]}, one a channel")
        found.append(numbers)
    if min(found[1]) <= 0:
        raise InputError(f"std: got {std}, expected numbers above 0")
    return Normal(found[0], found[1])


def unnormalised(inputs: Tensor, normal: Normal | None, field: str, cure: str) -> Tensor:
    """Return observed inputs (n, C, ...) in [0, 1], by what they were normalised by; None: by nothing.

    Raises InputError, which names the field and the cure, for inputs that are not in [0, 1] then.
    """
    inputs = inputs if normal is None else normal.undone(inputs)
    low, high = float(inputs.min()), float(inputs.max())
    if not (low >= -SLACK and high <= 1 + SLACK):
        undone = "" if normal is None else " once their normalisation is undone"
        raise InputError(
            f"{field}: inputs go from {low:.3g} to {high:.3g}{undone}, out of [0, 1], in which the attacks search; {cure}"
        )
    return inputs.clamp(0, 1)


def normals(model: nn.Module) -> list[Normal]:
    """Return what is done to a network's inputs before it is fed."""
    return [hook for hook in model._forward_pre_hooks.values() if isinstance(hook, Normal)]
