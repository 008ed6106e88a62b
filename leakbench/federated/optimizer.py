"""Optimizers of a client's local iterations: SGD, with or without momentum, and Adam; weight decay and the proximal term.

The state is new at the start of each round, as in implementations of FedAvg, and never leaves the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from leakbench.core.types import Clock, Network, Parameters

__all__ = ["OPTIMIZERS", "Adam", "LinearSteps", "Optimizer", "Sgd", "linear_steps", "optimizer_of", "regularised"]

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8
"""beta_1, beta_2 and epsilon: the defaults of torch.optim.Adam."""


class Optimizer(Protocol):
    """Maps the gradients {p: (K, 1, *p)} of one local iteration to the direction of its step, of length learning rate."""

    def __call__(self, gradients: Parameters) -> tuple[Parameters, Optimizer]:
        """Return the direction, of the same shapes, and the optimizer of the next local iteration."""


@dataclass(frozen=True)
class Sgd:
    """SGD as in torch.optim.SGD: b_1 = g_1, b_t = momentum * b_(t-1) + g_t; the direction is b_t.

    Without momentum, and in the first iteration, the direction is bit-identical to the gradient.

    Args:
        momentum: Factor of the earlier directions, in [0, 1).
        buffer: b of the previous iteration; {} before the first.
    """

    momentum: float = 0.0
    buffer: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, gradients: Parameters) -> tuple[Parameters, Optimizer]:
        """Return the direction and the next state."""
        if not self.momentum:
            return gradients, self
        if self.buffer:
            gradients = {n: self.momentum * self.buffer[n] + g for n, g in gradients.items()}
        return gradients, Sgd(self.momentum, gradients)


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
"""{value of `Federation.client_optimizer`: the optimizer at the start of a round, without momentum}."""


def optimizer_of(clock: Clock) -> Optimizer:
    """Return the optimizer at the start of a round, with the clock's momentum."""
    return Sgd(clock.momentum) if clock.client_optimizer == "sgd" else OPTIMIZERS[clock.client_optimizer]


def regularised(gradients: Parameters, network: Network, start: Network, clock: Clock) -> Parameters:
    """Add weight decay, the proximal term and SCAFFOLD's correction to the gradients, after all stations.

    g + weight_decay * w + proximal * (w - w_0), where w_0 are the weights at the start of the round (FedProx: Li et al., MLSys
    2020, eq. 2). These terms depend only on weights, so they are the same for every example. SCAFFOLD adds c - c_i.

    Args:
        gradients: {p: (K, 1, *p)}.
        network: Network of the local iteration.
        start: Network at the start of the round.
        clock: The clock, with both factors.

    Returns:
        {p: (K, 1, *p)}; the gradients themselves without any of these terms.
    """
    if clock.weight_decay:
        gradients = {n: g + clock.weight_decay * _by_lane(network, n) for n, g in gradients.items()}
    if clock.proximal:
        gradients = {n: g + clock.proximal * (_by_lane(network, n) - _by_lane(start, n)) for n, g in gradients.items()}
    if start.correction:
        gradients = {n: g + start.correction[n][:, None] for n, g in gradients.items()}
    return gradients


def _by_lane(network: Network, name: str) -> Tensor:
    """Return a parameter as (1, 1, *p), or (K, 1, *p) if the lanes differ."""
    weights = network.parameters[name]
    return weights[None, None] if network.shared else weights[:, None]


@dataclass(frozen=True)
class LinearSteps:
    """The update of L local iterations of SGD as a linear function of their gradients g_t and of the weights w_0 that were sent.

    W_L = kept * w_0 - learning_rate * sum of c_t g_t, with factors c_t that depend only on public numbers. So an attacker subtracts
    kept * w_0, and the rest is a weighted mean of gradients.

    Args:
        length: The sum of c_t, in steps of plain SGD; L for plain SGD.
        kept: Factor of w_0; 1 without weight decay.
    """

    length: float
    kept: float = 1.0

    def shift(self, learning_rate: float) -> float:
        """Return the factor of w_0 that weight decay adds to the update, in units of a gradient."""
        return (1 - self.kept) / (learning_rate * self.length)


def linear_steps(clock: Clock, learning_rate: float, steps: int) -> LinearSteps:
    """Return the update of `steps` local iterations as a linear function; Adam, which is not linear, counts as plain steps.

    Args:
        clock: The clock, with momentum, weight decay and the proximal factor.
        learning_rate: Learning rate of the client.
        steps: L.
    """
    if clock.client_optimizer != "sgd" or not (clock.momentum or clock.weight_decay or clock.proximal):
        return LinearSteps(steps)
    kept, moved = 1.0, 0.0  # w_t = kept * w_0 + moved * g, if all gradients are g.
    buffer = (0.0, 0.0)  # The same two factors of the direction.
    for _ in range(steps):
        of_start = clock.weight_decay * kept + clock.proximal * (kept - 1)
        of_gradient = 1 + (clock.weight_decay + clock.proximal) * moved
        buffer = clock.momentum * buffer[0] + of_start, clock.momentum * buffer[1] + of_gradient
        kept, moved = kept - learning_rate * buffer[0], moved - learning_rate * buffer[1]
    return LinearSteps(-moved / learning_rate, kept)
