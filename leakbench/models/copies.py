"""Copies of a user's network, which can hold anything in its attributes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["copied", "in_double"]


def copied(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Return a copy of a network, also of one that keeps results of its last forward pass in attributes.

    Python copies no tensor that autograd has computed, so that those in attributes are copied without their graph.

    Args:
        model: The network.
        dtype: Floating-point type of the copy, for its parameters, buffers and the tensors in attributes; None for the same types.
    """
    memo: dict[int, Any] = {id(t): t.detach().clone() for t in _computed(model)}
    made: nn.Module = copy.deepcopy(model, memo)
    if dtype is None:
        return made
    for module in made.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                vars(module)[name] = value.to(dtype)
    return made.to(dtype)


def in_double(model: nn.Module, tensors: Collection[str]) -> nn.Module:
    """Return a network that computes in float64 if it is called with these parameters and buffers in float64.

    The network itself is enough if it has no other numbers.
    """
    numbers = [t for name, t in model.named_buffers() if name not in tensors]
    numbers += [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copied(model, torch.float64) if any(t.is_floating_point() for t in numbers) else model


def _computed(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors with a graph that modules, and containers in them, have as attributes."""
    left: list[Any] = [vars(module) for module in model.modules()]
    known: set[int] = set()
    while left:
        value = left.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        if isinstance(value, Tensor):
            if not value.is_leaf:
                yield value
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple | set):
            left += value
        elif (
            not isinstance(value, nn.Module | type)
            and type(value).__module__ != "builtins"
            and hasattr(value, "__dict__")
        ):
            left.append(vars(value))
