"""Copies of a network that compute in another type."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from leakbench.core.working_copy import copied

__all__ = ["as_type", "in_double"]


def as_type(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a network with its parameters, buffers and the tensors in attributes in a floating-point type."""
    made = copied(model)
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
    return as_type(model, torch.float64) if any(t.is_floating_point() for t in numbers) else model
