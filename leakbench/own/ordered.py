"""A network's layers in the order in which they run, since attacks look for the first and the last one."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.models.layers import first_layer

__all__ = ["Ran", "flatten_scalars", "in_order", "ran"]

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
