"""In which mode somebody's network computes: normalisation by the statistics of its batch or of each input, or by running ones."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from leakbench.errors import InputError, nearest
from leakbench.imported import said
from leakbench.models.batch_norm import BatchNorm
from leakbench.models.layers import first_layer

__all__ = [
    "MODES",
    "Normal",
    "Numbers",
    "Ran",
    "flatten_scalars",
    "in_mode",
    "in_order",
    "keeps",
    "mixes",
    "normal_of",
    "normals",
    "norms",
    "ran",
    "trains",
    "unnormalised",
]


MODES = ("eval", "train")

FORGOT = "statistics_taken_off"
"""The attribute of an instance normalisation of which they are."""


def norms(model: nn.Module) -> list[str]:
    """Return the names of a model's normalisations whose answers hang on the mode: of batches, and of instances that keep running
    statistics.
    """
    return [
        name for name, module in model.named_modules() if isinstance(module, _BatchNorm | BatchNorm) or keeps(module)
    ]


def keeps(module: nn.Module) -> bool:
    """Say whether a module normalises each input alone and keeps running statistics, or did so before they were taken off."""
    return isinstance(module, _InstanceNorm) and (module.track_running_stats or hasattr(module, FORGOT))


def trains(model: nn.Module) -> bool:
    """Say whether any of a model's normalisations computes by the statistics of what it is fed, as in train mode."""
    return mixes(model) or any(keeps(m) and (m.training or hasattr(m, FORGOT)) for m in model.modules())


def mixes(model: nn.Module) -> bool:
    """Say whether any batch normalisation takes the statistics of its batch, so that no example has a gradient of its own."""
    found = (module for module in model.modules() if isinstance(module, _BatchNorm | BatchNorm))
    return any(module.training or module.running_mean is None for module in found)


def in_mode(model: nn.Module, mode: str) -> nn.Module:
    """Return a copy on the CPU in float32 that computes as a client in that mode does, without dropout.

    In `train` mode each of PyTorch's batch normalisations becomes one of leakbench's, which has the same numbers and can be
    differentiated for several victims side by side, and instance normalisation takes each input's statistics and keeps none.

    Raises InputError for another mode, a model that cannot be copied, and for a batch normalisation without weights or running
    statistics in train mode.
    """
    if mode not in MODES:
        raise InputError(f"victim-mode: got {mode!r}, expected {' or '.join(MODES)}{nearest(mode, MODES)}")
    try:
        copied = copy.deepcopy(model).cpu().float().train(False)
    except Exception as error:
        raise InputError(f"model: it cannot be copied: {said(error)}") from None
    _unhook(copied)
    if mode == "eval":
        return copied
    if isinstance(copied, _BatchNorm):
        return _ours("model", copied)
    for name in norms(copied):
        holder, _, last = name.rpartition(".")
        module = copied.get_submodule(name)
        if isinstance(module, _BatchNorm):
            module = _ours(name, module)
            setattr(copied.get_submodule(holder), last, module)
        elif isinstance(module, _InstanceNorm):
            _forget(module)
        module.train()
    return copied


def _forget(module: _InstanceNorm) -> None:
    """Take off running statistics, which would be written in the midst of a gradient: each input's count, whatever the mode."""
    module.track_running_stats = False
    setattr(module, FORGOT, True)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        module._buffers[name] = None


def _unhook(model: nn.Module) -> None:
    """Take off hooks of the way back, which change no answer, and those of Opacus, which cannot be differentiated."""
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
        module._is_full_backward_hook = None
        for key, hook in list(module._forward_hooks.items()):
            if (getattr(hook, "__module__", None) or "").startswith("opacus."):
                del module._forward_hooks[key]


def _ours(name: str, module: _BatchNorm) -> BatchNorm:
    if not module.affine or module.running_mean is None or module.running_var is None or module.momentum is None:
        raise InputError(
            f"victim-mode: {name!r} is a {type(module).__name__} without weights, running statistics or momentum, which is"
            " attacked in eval mode only"
        )
    ours = BatchNorm(module.num_features, module.momentum, module.eps)
    ours.weight, ours.bias = module.weight, module.bias
    ours.running_mean, ours.running_var = module.running_mean, module.running_var
    return ours.train()


HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that run, or are indexed, in the order in which their parts stand."""


@dataclass(frozen=True)
class Ran:
    """What one forward pass shows.

    Args:
        places: {name of a module: its place among those that ran}.
        reads_input: Whether the first layer is fed the input as it is.
        signed: Whether features that are negative enter the last one, on which the sign rule of labels fails.
        answers: Whether the last one's answer is the network's, up to a shift of all logits.
    """

    places: dict[str, int]
    reads_input: bool
    signed: bool
    answers: bool


def ran(model: nn.Module, x: Tensor) -> Ran:
    """Pass inputs x (n, *s) through a model and say what ran, in which order."""
    places: dict[str, int] = {}
    entered: dict[str, Tensor] = {}
    left: dict[str, Tensor] = {}
    handles: list[Any] = []

    def hear(name: str) -> None:
        def before(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            places.setdefault(name, len(places))
            if inputs and isinstance(inputs[0], Tensor):
                entered.setdefault(name, inputs[0])

        def after(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                left[name] = output

        module = model.get_submodule(name)
        handles.extend((module.register_forward_pre_hook(before), module.register_forward_hook(after)))

    for name, _ in model.named_modules():
        hear(name)
    try:
        with torch.no_grad():
            answer = model(x)
    finally:
        for handle in handles:
            handle.remove()
    linear = [name for name, m in model.named_modules() if _leaf(m) and name in places]
    linear.sort(key=places.__getitem__)
    first, last = (linear[0], linear[-1]) if linear else ("", "")
    fed = bool(linear) and first in entered and _same(entered[first].flatten(1), x.flatten(1))
    signed = bool(linear) and last in entered and float(entered[last].min()) < -1e-6
    answers = bool(linear) and last in left and _same(left[last].flatten(1).softmax(1), answer.flatten(1).softmax(1))
    return Ran(places, fed, signed, answers)


def _leaf(module: nn.Module) -> bool:
    """Say whether a module has a matrix of weights of its own."""
    return any(p.dim() > 1 for p in module._parameters.values() if p is not None)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-4, atol=1e-6))


def in_order(model: nn.Module, found: Ran) -> list[str]:
    """Put a model's modules in the order in which they ran, those that did not last; return its parameters' names likewise, but
    those of modules that did not run first.

    A model whose first layer is fed something else than the input, as a mean taken off, gets a hook that changes nothing: closed
    forms then leave it alone, see `leakbench.models.layers.first_layer`.
    """
    for name, module in model.named_modules():
        if not isinstance(module, HOLDERS):
            inner = f"{name}." if name else ""
            parts = sorted(module._modules.items(), key=lambda part: found.places.get(f"{inner}{part[0]}", math.inf))
            module._modules = OrderedDict(parts)
    if first_layer(model) is not None and not found.reads_input:
        model.register_forward_pre_hook(_nothing)
    return sorted((name for name, _ in model.named_parameters()), key=lambda name: found.places.get(_owner(name), -1))


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _nothing(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    return None


def flatten_scalars(model: nn.Module) -> None:
    """Let a model's parameters without an axis have one of length one, since every parameter is flattened somewhere."""
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None and p.dim() == 0:
                module._parameters[name] = nn.Parameter(p.detach().reshape(1), p.requires_grad)


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
