"""Pointwise activations and their derivatives, each in one pass that can be differentiated again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

__all__ = ["Way", "Ways", "plain", "ways_of"]

Way: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(any numbers, inputs, outputs) -> the numbers times a derivative of the activation at the inputs."""


@dataclass(frozen=True)
class Ways:
    """The derivatives of an activation.

    Args:
        back: Multiplies by the first derivative.
        bend: Multiplies by the second derivative; None if it is zero nearly everywhere.
    """

    back: Way
    bend: Way | None


def _sigmoid(delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.sigmoid_backward(delta, answered)
    return found


def _tanh(delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.tanh_backward(delta, answered)
    return found


def _relu(delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.threshold_backward(delta, entered, 0)
    return found


def _leaky(slope: float, delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    product: Tensor = torch.ops.aten.leaky_relu_backward(delta, entered, slope, False)
    return product


def _gelu(delta: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.gelu_backward(delta, entered)
    return found


def _sigmoid_bend(product: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    return _sigmoid(product, entered, answered) * (1 - 2 * answered)


def _tanh_bend(product: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    return _tanh(product, entered, answered) * (-2 * answered)


def _gelu_bend(product: Tensor, entered: Tensor, answered: Tensor) -> Tensor:
    density = torch.exp(-0.5 * entered.square()) / math.sqrt(2 * math.pi)
    return product * density * (2 - entered.square())


ACTIVATIONS: dict[type[nn.Module], Ways] = {
    nn.Sigmoid: Ways(_sigmoid, _sigmoid_bend),
    nn.Tanh: Ways(_tanh, _tanh_bend),
    nn.ReLU: Ways(_relu, None),
    nn.GELU: Ways(_gelu, _gelu_bend),
}


def plain(layer: nn.Module) -> nn.Module:
    """Return an activation that does not work in place, with default settings, except for the slope of a leaky ReLU."""
    return nn.LeakyReLU(layer.negative_slope) if type(layer) is nn.LeakyReLU else type(layer)()


def ways_of(layer: nn.Module) -> Ways | None:
    """Return the derivatives of an activation with the settings of `plain`; None for another layer."""
    if type(layer) is nn.LeakyReLU:
        return Ways(partial(_leaky, layer.negative_slope), None)
    return ACTIVATIONS.get(type(layer))
