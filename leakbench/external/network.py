"""A user's network, prepared for attacks: its mode, and the normalisation of its inputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from leakbench.core.errors import InputError, nearest
from leakbench.core.working_copy import copied
from leakbench.models.batch_norm import NO_MOMENTUM, BatchNorm
from leakbench.models.conversion import convert_norms, convert_parts, remove_hooks

__all__ = [
    "Normal",
    "Numbers",
    "frozen",
    "in_mode",
    "input_normals",
    "keeps_statistics",
    "mixes_batch",
    "mode_of",
    "normal_of",
    "normalisations",
    "undo_normal",
]

MODES = ("eval", "train")

REMOVED = "statistics_taken_off"
"""Attribute of an instance normalisation whose running statistics `in_mode` removed."""

SLACK = 1e-3
"""How far from [0, 1] rounding may leave inputs whose normalisation is undone."""

Numbers: TypeAlias = float | Sequence[float]
"""One number for all channels, or one for each."""


def normalisations(model: nn.Module) -> list[str]:
    """Return the names of the normalisation layers whose outputs depend on the mode.

    These are batch normalisations, and instance normalisations that keep running statistics.
    """
    return [n for n, m in model.named_modules() if isinstance(m, _BatchNorm | BatchNorm) or keeps_statistics(m)]


def keeps_statistics(module: nn.Module) -> bool:
    """Return whether a module is an instance normalisation that keeps running statistics, or kept them before `in_mode`."""
    return isinstance(module, _InstanceNorm) and (module.track_running_stats or hasattr(module, REMOVED))


def mode_of(model: nn.Module) -> str:
    """Return `train` if any normalisation computes by the statistics of its inputs, else `eval`."""
    by_instance = any(keeps_statistics(m) and (m.training or hasattr(m, REMOVED)) for m in model.modules())
    return "train" if by_instance or mixes_batch(model) else "eval"


def mixes_batch(model: nn.Module) -> bool:
    """Return whether a batch normalisation computes by the statistics of its batch, so that no example has a gradient alone."""
    found = (module for module in model.modules() if isinstance(module, _BatchNorm | BatchNorm))
    return any(module.training or module.running_mean is None for module in found)


def in_mode(model: nn.Module, mode: str) -> nn.Module:
    """Return a copy on the CPU in float32 that computes as a client in that mode does, without dropout.

    In `train` mode, each of PyTorch's batch normalisations becomes one of leakbench's, which has the same numbers and can
    be differentiated for several victims at once. Instance normalisations compute by each input's statistics and keep none.

    Args:
        model: The network.
        mode: `eval` or `train`.

    Raises:
        InputError: For another mode, a model that cannot be copied, what `convert_parts` refuses, and, in train mode, a batch
            normalisation without running statistics or momentum.
    """
    if mode not in MODES:
        raise InputError(f"victim-mode: got {mode!r}, expected {' or '.join(MODES)}{nearest(mode, MODES)}")
    own = copied(model).cpu().float().train(False)
    remove_hooks(own)
    own = convert_parts(own)
    if mode == "eval":
        return own
    own = convert_norms(own)
    for module in map(own.get_submodule, normalisations(own)):
        if isinstance(module, _InstanceNorm):
            # Running statistics would be written during a gradient; without them each input's own count in either mode.
            module.track_running_stats = False
            setattr(module, REMOVED, True)
            for statistic in ("running_mean", "running_var", "num_batches_tracked"):
                module._buffers[statistic] = None
        if isinstance(module, BatchNorm) and module.momentum is None:
            raise InputError(NO_MOMENTUM)
        module.train()
    return own


def frozen(model: nn.Module, names: Collection[str]) -> nn.Module:
    """Return a network in which these parameters are not trained, a copy unless there are none."""
    if not names:
        return model
    own = copied(model)
    for name in names:
        own.get_parameter(name).requires_grad_(False)
    return own


@dataclass(frozen=True)
class Normal:
    """The normalisation (x - mean) / std of inputs x (n, C, ...), as a pre-hook of a module.

    Args:
        mean: One number for all channels, or C.
        std: One number for all channels, or C, all above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the normalised inputs of a network."""
        x, *more = inputs
        mean, std = self._like(x)
        return ((x - mean) / std, *more)

    def undo(self, x: Tensor) -> Tensor:
        """Return the inputs (n, C, ...) in [0, 1] whose normalisation gives x."""
        mean, std = self._like(x)
        return x * std + mean

    def before(self, model: nn.Module) -> nn.Module:
        """Return a copy of a network that takes inputs in [0, 1]; its parameters keep their names."""
        own = copied(model)
        own.register_forward_pre_hook(self)
        return own

    def _like(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1, *[1] * (x.dim() - 2))
        mean, std = (torch.tensor(t, dtype=x.dtype, device=x.device).reshape(shape) for t in (self.mean, self.std))
        return mean, std


def normal_of(normalise: tuple[Numbers, Numbers] | None, shape: tuple[int, ...]) -> Normal | None:
    """Return the normalisation of a mean and a standard deviation; None for None.

    Args:
        normalise: Mean and standard deviation, each one number or one for each channel.
        shape: Shape of one input, channels first.

    Raises:
        InputError: For another count of numbers, numbers that are not finite, and a deviation that is not above 0.
    """
    if normalise is None:
        return None
    found = []
    for field, given in zip(("mean", "std"), normalise, strict=True):
        numbers = (float(given),) if isinstance(given, int | float) else tuple(map(float, given))
        if len(numbers) not in (1, shape[0]) or not all(map(math.isfinite, numbers)):
            raise InputError(f"{field}: got {given}, expected a finite number, or {shape[0]}, one a channel")
        found.append(numbers)
    if min(found[1]) <= 0:
        raise InputError(f"std: got {normalise[1]}, expected numbers above 0")
    return Normal(*found)


def undo_normal(inputs: Tensor, normal: Normal | None, field: str, cure: str) -> Tensor:
    """Return observed inputs (n, C, ...) in [0, 1].

    Args:
        inputs: What the network was given.
        normal: The normalisation to undo; None for none.
        field: Name of the field in an error.
        cure: How to fix the error.

    Raises:
        InputError: For inputs that are not in [0, 1] once their normalisation is undone.
    """
    inputs = inputs if normal is None else normal.undo(inputs)
    low, high = float(inputs.min()), float(inputs.max())
    if not (low >= -SLACK and high <= 1 + SLACK):
        undone = "" if normal is None else " once their normalisation is undone"
        raise InputError(
            f"{field}: inputs go from {low:.3g} to {high:.3g}{undone}, out of [0, 1], in which the attacks search; {cure}"
        )
    return inputs.clamp(0, 1)


def input_normals(model: nn.Module) -> list[Normal]:
    """Return the normalisations of a network's inputs that `Normal.before` added."""
    return [hook for hook in model._forward_pre_hooks.values() if isinstance(hook, Normal)]
