"""Modules of other libraries, prepared for attacks: batch normalisation that is not changed in place, and layers in their order."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from leakbench.core.errors import InputError
from leakbench.models.batch_norm import BatchNorm, BatchNormThen
from leakbench.models.layers import first_layer

__all__ = [
    "ForwardPass",
    "adapt_layers",
    "convert_norm",
    "convert_norms",
    "forward_pass",
    "order_layers",
    "remove_hooks",
]

HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules whose parts run, or are indexed, in the order in which they are listed."""


def convert_norm(name: str, module: _BatchNorm) -> BatchNorm:
    """Return leakbench's batch normalisation with the numbers of one of PyTorch's, in the same mode.

    A batch normalisation of timm that also drops and activates its output keeps these two parts.

    Args:
        name: Name of the module, for messages.

    Raises:
        InputError: For one without weights, running statistics or momentum, and for another class with its own `forward`.
    """
    kind = type(module).__name__
    if not module.affine or module.running_mean is None or module.running_var is None or module.momentum is None:
        raise InputError(
            f"victim-mode: {name!r} is a {kind} without weights, running statistics or momentum, which is"
            " attacked in eval mode only"
        )
    parts = [part for part in (getattr(module, "drop", None), getattr(module, "act", None)) if part is not None]
    if type(module).forward not in {
        getattr(cls, "forward", None) for cls in type(module).__mro__ if cls.__module__.startswith("torch.")
    }:
        if len(parts) < 2:
            raise InputError(
                f"victim-mode: {name!r} is a {kind}, whose computation in train mode is not known; expected one of"
                " torch.nn, or eval mode"
            )
        ours: BatchNorm = BatchNormThen(module.num_features, module.momentum, module.eps, *parts)
    else:
        ours = BatchNorm(module.num_features, module.momentum, module.eps)
    ours.weight, ours.bias = module.weight, module.bias
    ours.running_mean, ours.running_var = module.running_mean, module.running_var
    ours.training = module.training
    return ours


def convert_norms(model: nn.Module) -> nn.Module:
    """Return a network, changed in place, in which each of PyTorch's batch normalisations is one of leakbench's.

    Raises:
        InputError: As `convert_norm`.
    """
    if isinstance(model, _BatchNorm):
        return convert_norm("model", model)
    for name, module in list(model.named_modules()):
        if isinstance(module, _BatchNorm):
            holder, _, last = name.rpartition(".")
            setattr(model.get_submodule(holder), last, convert_norm(name, module))
    return model


def adapt_layers(model: nn.Module) -> None:
    """Make a network in place one that `torch.func` differentiates: no activation in place, and only statistics are sent.

    Buffers other than those of batch normalisation become constants that are not saved (`leakbench.core.types.Network.statistics`).

    Raises:
        InputError: For an instance normalisation that keeps running statistics.
    """
    for name, module in model.named_modules():
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise InputError(
                f"model: {name!r} is a {type(module).__name__} with running statistics; expected track_running_stats=False"
            )
        if getattr(module, "inplace", False) is True:
            module.inplace = False
        if not isinstance(module, BatchNorm):
            module._non_persistent_buffers_set.update(module._buffers)


def remove_hooks(model: nn.Module) -> None:
    """Remove backward hooks, which change no output, and the hooks of Opacus, which cannot be differentiated."""
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
        module._is_full_backward_hook = None
        for key, hook in list(module._forward_hooks.items()):
            if (getattr(hook, "__module__", None) or "").startswith("opacus."):
                del module._forward_hooks[key]


@dataclass(frozen=True)
class ForwardPass:
    """What one forward pass shows of a network.

    Args:
        places: {name of a module: its place among the modules that ran}.
        reads_input: Whether the first layer gets the input unchanged.
        signed: Whether negative features enter the last layer, for which the sign rule of labels fails.
        answers: Whether the last layer's output is the network's, up to a shift of all logits.
    """

    places: dict[str, int]
    reads_input: bool
    signed: bool
    answers: bool


def forward_pass(model: nn.Module, x: Tensor) -> ForwardPass:
    """Pass inputs x (n, *s) through a network and record which modules ran, in which order."""
    places: dict[str, int] = {}
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    handles: list[Any] = []

    def record(name: str) -> None:
        def before(_: nn.Module, given: tuple[Any, ...]) -> None:
            places.setdefault(name, len(places))
            if given and isinstance(given[0], Tensor):
                inputs.setdefault(name, given[0])

        def after(_: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                outputs[name] = output

        module = model.get_submodule(name)
        handles.extend((module.register_forward_pre_hook(before), module.register_forward_hook(after)))

    for name, _ in model.named_modules():
        record(name)
    try:
        with torch.no_grad():
            answer = model(x)
    finally:
        for handle in handles:
            handle.remove()
    layers = [name for name, m in model.named_modules() if _has_matrix(m) and name in places]
    if not layers:
        return ForwardPass(places, False, False, False)
    first, last = min(layers, key=places.__getitem__), max(layers, key=places.__getitem__)
    reads_input = first in inputs and _same(inputs[first].flatten(1), x.flatten(1))
    signed = last in inputs and float(inputs[last].min()) < -1e-6
    # A network of several heads answers with several tensors.
    single = last in outputs and isinstance(answer, Tensor)
    answers = single and _same(outputs[last].flatten(1).softmax(1), answer.flatten(1).softmax(1))
    return ForwardPass(places, reads_input, signed, answers)


def _has_matrix(module: nn.Module) -> bool:
    return any(p.dim() > 1 for p in module._parameters.values() if p is not None)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one.float(), other.float(), rtol=1e-4, atol=1e-6))


def order_layers(model: nn.Module, passed: ForwardPass) -> list[str]:
    """Put a network's modules in the order in which they ran, those that did not run last; attacks use the first and last.

    If the first layer does not get the input unchanged, the network gets a hook without effect: closed-form attacks then
    leave the network alone, see `leakbench.models.layers.first_layer`.

    Returns:
        The names of the parameters in that order, those of modules that did not run first.
    """
    for name, module in model.named_modules():
        if not isinstance(module, HOLDERS):
            inner = f"{name}." if name else ""
            parts = sorted(module._modules.items(), key=lambda part: passed.places.get(f"{inner}{part[0]}", math.inf))
            module._modules = OrderedDict(parts)
    if first_layer(model) is not None and not passed.reads_input:
        model.register_forward_pre_hook(_nothing)
    names = (name for name, _ in model.named_parameters())
    return sorted(names, key=lambda name: passed.places.get(name.rpartition(".")[0], -1))


def _nothing(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    return None
