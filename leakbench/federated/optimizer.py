"""Optimizers of a client's local iterations: SGD and Adam.

The state is new at the start of each round, as in implementations of FedAvg, and never leaves the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from leakbench.core.types import Parameters

__all__ = ["OPTIMIZERS", "Adam", "Optimizer", "Sgd"]

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8
"""beta_1, beta_2 and epsilon: the defaults of torch.optim.Adam."""


class Optimizer(Protocol):
    """Maps the gradients {p: (K, 1, *p)} of one local iteration to the direction of its step, of length learning rate."""

    def __call__(self, gradients: Parameters) -> tuple[Parameters, Optimizer]:
        """Return the direction, of the same shapes, and the optimizer of the next local iteration."""


@dataclass(frozen=True)
class Sgd:
    """Plain SGD: the direction is bit-identical to the gradient."""

    def __call__(self, gradients: Parameters) -> tuple[Parameters, Optimizer]:
        """Return the gradients."""
        return gradients, self


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, ICLR 2015, Algorithm 1), differentiable with respect to the gradients g.

    m_t = .9 m + .1 g, v_t = .999 v + .001 g^2; the direction is (m_t / (1 - .9^t)) / (sqrt(v_t / (1 - .999^t)) + 1e-8). The first
    direction is g / (|g| + 1e-8), nearly the signs. Its derivative 1e-8 / (|g| + 1e-8)^2 is nearly zero except at g = 0, where
    it is 1e8.

    Args:
        means: m after `steps` steps.
        squares: v after `steps` steps.
    """

    means: Mapping[str, Tensor] = field(default_factory=dict)
    squares: Mapping[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def __call__(self, gradients: Parameters) -> tuple[Parameters, Optimizer]:
        """Return the direction of each coordinate and the next state."""
        t = self.steps + 1
        means = {n: FIRST * self.means.get(n, 0.0) + (1 - FIRST) * g for n, g in gradients.items()}
        squares = {n: SECOND * self.squares.get(n, 0.0) + (1 - SECOND) * g.square() for n, g in gradients.items()}
        direction = {
            n: (means[n] / (1 - FIRST**t)) / (_root(squares[n] / (1 - SECOND**t)) + EPSILON) for n in gradients
        }
        return direction, Adam(means, squares, t)


def _root(squares: Tensor) -> Tensor:
    """Return the square root. At 0 its derivative is set to 0, instead of 0 times infinity."""
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0)


OPTIMIZERS: dict[str, Optimizer] = {"sgd": Sgd(), "adam": Adam()}
"""{value of `Federation.client_optimizer`: the optimizer at the start of a round}."""
