"""Activations that act on each number alone, and the way back through them, in one pass that can be differentiated again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

__all__ = ["ACTIVATIONS", "WayBack"]

WayBack: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(the derivative by what left, what entered, what left) -> the derivative by what entered."""


def _sigmoid(delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.sigmoid_backward(delta, answered)
    return found


def _tanh(delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.tanh_backward(delta, answered)
    return found


def _relu(delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.threshold_backward(delta, entered, 0)
    return found


def _gelu(delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.gelu_backward(delta, entered)
    return found


ACTIVATIONS: dict[type[nn.Module], WayBack] = {
    nn.Sigmoid: _sigmoid,
    nn.Tanh: _tanh,
    nn.ReLU: _relu,
    nn.GELU: _gelu,
}
