"""Activations that act on each number alone, and their derivatives as functions that can be differentiated again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

__all__ = ["ACTIVATIONS", "Slope"]

Slope: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(what entered, what it answered) -> the derivative there."""


def _sigmoid(entered: Tensor, answered: Tensor) -> Tensor:
    return answered * (1 - answered)


def _tanh(entered: Tensor, answered: Tensor) -> Tensor:
    return 1 - answered.square()


def _relu(entered: Tensor, answered: Tensor) -> Tensor:
    return (entered > 0).to(entered)


def _gelu(entered: Tensor, answered: Tensor) -> Tensor:
    density = (-entered.square() / 2).exp() / math.sqrt(2 * math.pi)
    slope: Tensor = torch.special.ndtr(entered) + entered * density
    return slope


ACTIVATIONS: dict[type[nn.Module], Slope] = {
    nn.Sigmoid: _sigmoid,
    nn.Tanh: _tanh,
    nn.ReLU: _relu,
    nn.GELU: _gelu,
}
