"""Limited-memory BFGS over many victims at once; each victim's steps are those of `torch.optim.LBFGS` without a line search.

One call of `Lbfgs.step` is one `torch.optim.LBFGS.step`: up to `inner` inner iterations and as many evaluations. Every victim
has its own history, step count and tolerances; who has finished a step waits, who can never move again is `settled`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["Lbfgs", "Objective"]

Objective: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(points (v, d), lanes (v,)) -> (values (v,), gradients (v, d))."""


@dataclass
class Lbfgs:
    """The state of V searches in d dimensions; which its steps change in place.

    points (V, d).  differences, steps (slots, V, d): y and s, oldest first; all victims write to one slot at a time.
    curvature (slots, V): 1 / <y, s>, zero where a victim stored no pair in that slot.  used: slots in use.
    evaluations (V,).  settled (V,): optimal or without a direction of descent, for ever.
    """

    points: Tensor
    history: int = 100
    inner: int = 20
    learning_rate: float = 1.0
    tolerance_gradient: float = 1e-7
    tolerance_change: float = 1e-9

    def __post_init__(self) -> None:
        victims, size = self.points.shape
        fresh = self.points.new_zeros
        self.differences, self.steps, self.curvature = (
            fresh(0, victims, size),
            fresh(0, victims, size),
            fresh(0, victims),
        )
        self.used = 0
        self.direction, self.before = torch.zeros_like(self.points), torch.zeros_like(self.points)
        self.length, self.scale = fresh(victims), torch.ones_like(fresh(victims))
        self.iterations = torch.zeros(victims, dtype=torch.int64, device=self.points.device)
        self.evaluations = torch.zeros_like(self.iterations)
        self.settled = torch.zeros_like(self.iterations, dtype=torch.bool)

    def keep(self, lanes: Tensor) -> None:
        """Drop every victim but those in `lanes`: who is done leaves the batch."""
        pairs = ("differences", "steps", "curvature")
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value.index_select(1 if name in pairs else 0, lanes))

    def step(self, objective: Objective) -> Tensor:
        """Take one outer step in place; return the values (V,) at the points before it."""
        everyone = torch.arange(len(self.points), device=self.points.device)
        value, gradient = objective(self.points, everyone)
        first_value = value
        self.evaluations += 1
        self.settled |= gradient.abs().amax(1) <= self.tolerance_gradient
        running = ~self.settled
        for inner in range(1, self.inner + 1):
            if not running.any():
                break
            running = self._move(running, gradient)
            last_value = value
            if inner == self.inner or not running.any():
                break
            lanes = everyone[running]
            new_value, new_gradient = objective(self.points[lanes], lanes)
            value, gradient = value.index_copy(0, lanes, new_value), gradient.index_copy(0, lanes, new_gradient)
            self.evaluations[lanes] += 1
            optimal = gradient.abs().amax(1) <= self.tolerance_gradient
            still = (self.direction.abs().amax(1) * self.length) <= self.tolerance_change
            level = (value - last_value).abs() < self.tolerance_change
            running = running & ~(optimal | still | level)
        return first_value

    def _move(self, running: Tensor, gradient: Tensor) -> Tensor:
        """Find each running victim's direction and walk along it; return who did."""
        first = self.iterations == 0
        self.iterations += running
        self._remember(running & ~first, gradient)
        direction = torch.where(first[:, None], -gradient, self._two_loops(-gradient))
        self.direction = torch.where(running[:, None], direction, self.direction)
        self.before = torch.where(running[:, None], gradient, self.before)
        shortest = (1.0 / gradient.abs().sum(1)).clamp_max(1.0)
        length = torch.where(first, shortest, torch.ones_like(shortest)) * self.learning_rate
        self.length = torch.where(running, length, self.length)
        blocked = running & ((gradient * self.direction).sum(1) > -self.tolerance_change)
        self.settled |= blocked
        running = running & ~blocked
        move = self.direction * self.length[:, None]
        self.points = torch.where(running[:, None], self.points + move, self.points)
        return running

    def _remember(self, running: Tensor, gradient: Tensor) -> None:
        difference = gradient - self.before
        step = self.direction * self.length[:, None]
        product = (difference * step).sum(1)
        store = running & (product > 1e-10)
        if not store.any():
            return
        slot = self._free_slot()
        self.differences[slot], self.steps[slot] = difference, step
        self.curvature[slot] = torch.where(store, 1.0 / product, 0.0)
        self.scale = torch.where(store, product / difference.square().sum(1), self.scale)
        stored = self.curvature[: self.used] != 0
        full = (stored.sum(0) > self.history).nonzero().flatten()
        self.curvature[stored[:, full].int().argmax(0), full] = 0.0  # The oldest pair of a full history goes.

    def _free_slot(self) -> int:
        """Return the next slot. The buffers grow from nothing, since most searches end long before the history is full."""
        if self.used == len(self.curvature):
            if self.used < self.history:
                self._reserve(min(self.history, max(10, 2 * self.used)))
            else:
                self._close_gaps()
        self.used += 1
        return self.used - 1

    def _reserve(self, slots: int) -> None:
        for name in ("differences", "steps", "curvature"):
            old = getattr(self, name)
            setattr(self, name, torch.cat([old, old.new_zeros(slots - len(old), *old.shape[1:])]))

    def _close_gaps(self) -> None:
        """Move each victim's pairs up to the end of the first `history` slots, so that slots without a pair are free again."""
        order = (self.curvature != 0).int().sort(stable=True, dim=0).indices[-self.history :]
        for name in ("differences", "steps"):
            old = getattr(self, name)
            setattr(self, name, old.gather(0, order[..., None].expand(-1, -1, old.shape[2])))
        self.curvature = self.curvature.gather(0, order)
        self.used = self.history
        self._reserve(self.history + max(1, self.history // 4))

    def _two_loops(self, vector: Tensor) -> Tensor:
        """Multiply by the inverse Hessian estimate in place (Nocedal and Wright, Algorithm 7.4), all victims side by side.

        Where a victim stored no pair, the curvature of zero leaves its vector as it is.
        """
        factors = []
        for slot in reversed(range(self.used)):
            factor = _dot(self.steps[slot], vector) * self.curvature[slot]
            vector.addcmul_(self.differences[slot], -factor[:, None])
            factors.append(factor)
        vector.mul_(self.scale[:, None])
        for slot, factor in enumerate(reversed(factors)):
            rest = factor - _dot(self.differences[slot], vector) * self.curvature[slot]
            vector.addcmul_(self.steps[slot], rest[:, None])
        return vector


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a[:, None, :], b[:, :, None])[:, 0, 0]
