"""Adam over many victims at once; each victim's steps are those of `torch.optim.Adam` under `MultiStepLR`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.search.lbfgs import Objective

__all__ = ["AdamState"]


@dataclass
class AdamState:
    """The state of V searches in d dimensions, all after the same number of steps.

    Args:
        points: Current points (V, d).
        rates: Learning rates of the steps; the last one repeats.
        signed: Number of leading coordinates whose gradient is replaced by its sign.
        project: (v, d) -> (v, d), applied after every step.
        decay: Decay rates of both running means.
        epsilon: Added to the root of the mean square.

    Attributes:
        first, second: Running means (V, d) of the gradient and of its square.
        evaluations: (V,) gradient evaluations.
        settled: (V,) bool, always False, since a running mean keeps moving.
    """

    points: Tensor
    rates: tuple[float, ...]
    signed: int
    project: Callable[[Tensor], Tensor]
    decay: tuple[float, float]
    epsilon: float

    def __post_init__(self) -> None:
        self.first, self.second = torch.zeros_like(self.points), torch.zeros_like(self.points)
        self.evaluations = torch.zeros(len(self.points), dtype=torch.int64, device=self.points.device)
        self.settled = torch.zeros_like(self.evaluations, dtype=torch.bool)
        self.steps = 0

    def keep(self, lanes: Tensor) -> None:
        """Keep only the victims at the positions `lanes`."""
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value.index_select(0, lanes))

    def step(self, objective: Objective) -> Tensor:
        """Take one step in place; return the values (V,) at the points before the step."""
        values, gradient = objective(self.points, torch.arange(len(self.points), device=self.points.device))
        gradient = torch.cat([gradient[:, : self.signed].sign(), gradient[:, self.signed :]], 1)
        rate = self.rates[min(self.steps, len(self.rates) - 1)]
        self.steps += 1
        slow, slower = self.decay
        self.first = slow * self.first + (1 - slow) * gradient
        self.second = slower * self.second + (1 - slower) * gradient.square()
        size = (self.second / (1 - slower**self.steps)).sqrt() + self.epsilon
        self.points = self.project(self.points - rate / (1 - slow**self.steps) * self.first / size)
        self.evaluations = self.evaluations + 1
        return values
