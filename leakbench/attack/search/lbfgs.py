"""Limited-memory BFGS over many victims at once; each victim's steps are those of `torch.optim.LBFGS` without a line search.

One call of `Lbfgs.step` is one `torch.optim.LBFGS.step`: up to `inner` inner iterations and as many evaluations. Every victim has
its own history, step count and tolerances. A victim that has finished its step waits for the others.

Directions come from the compact form of the inverse Hessian estimate (Byrd, Nocedal and Schnabel, Mathematical Programming 63,
1994, Theorem 2.2). It equals the recursion over the pairs, but takes two passes over the history in a few large products, not four
in hundreds of small steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["Late", "Lbfgs", "Objective", "never"]

Objective: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(points (v, d), lanes (v,)) -> (values (v,), gradients (v, d))."""

Late: TypeAlias = Callable[[int], bool]
"""Number of searches at once -> whether a clock leaves no time for another evaluation of them."""


def never(searches: int) -> bool:
    """Return False: no clock ends the searches."""
    return False


@dataclass
class Lbfgs:
    """The state of V searches in d dimensions. Its steps change it in place.

    Args:
        points: Current points (V, d).
        history: Largest number of pairs (s, y) of a victim.
        inner: Largest number of inner iterations of one step.
        learning_rate: Length of a step in units of its direction.
        tolerance_gradient: Largest absolute value of a gradient at which a point counts as optimal.
        tolerance_change: Smallest change of points and values at which a step continues.
        late: Ends a step early if a clock leaves no time for its inner iterations.

    Attributes:
        differences, steps: Pairs y and s (V, slots, d), oldest first. All victims write to the same slot.
        stored: (V, slots) bool, whether a victim has a pair in the slot; otherwise its y and s are zero there.
        used: Number of slots in use.
        fresh: Slot of the pair whose products are not yet computed.
        crossed, squared: <s_i, y_j> for i <= j, and <y_i, y_j>, (V, slots, slots) in float64.
        evaluations: (V,) gradient evaluations.
        settled: (V,) bool, whether the point is optimal or has no direction of descent, so that it never moves again.
    """

    points: Tensor
    history: int = 100
    inner: int = 20
    learning_rate: float = 1.0
    tolerance_gradient: float = 1e-7
    tolerance_change: float = 1e-9
    late: Late = never

    def __post_init__(self) -> None:
        victims, size = self.points.shape
        fresh = self.points.new_zeros
        self.differences, self.steps = fresh(victims, 0, size), fresh(victims, 0, size)
        self.crossed = torch.zeros(victims, 0, 0, dtype=torch.float64, device=self.points.device)
        self.squared = torch.zeros_like(self.crossed)
        self.stored = torch.zeros(victims, 0, dtype=torch.bool, device=self.points.device)
        self.used = 0
        self.fresh: int | None = None
        self.direction, self.before = torch.zeros_like(self.points), torch.zeros_like(self.points)
        self.length, self.scale = fresh(victims), torch.ones_like(fresh(victims))
        self.iterations = torch.zeros(victims, dtype=torch.int64, device=self.points.device)
        self.evaluations = torch.zeros_like(self.iterations)
        self.settled = torch.zeros_like(self.iterations, dtype=torch.bool)

    def keep(self, lanes: Tensor) -> None:
        """Keep only the victims at the positions `lanes`, since those that have ended leave the batch."""
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value.index_select(0, lanes))

    def step(self, objective: Objective) -> Tensor:
        """Take one outer step in place; return the values (V,) at the points before the step."""
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
            if inner == self.inner or not running.any() or self.late(len(self.points)):
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
        """Move each running victim along its direction; return (V,) bool, which victims moved."""
        first = self.iterations == 0
        self.iterations += running
        self._remember(running & ~first, gradient)
        direction = torch.where(first[:, None], -gradient, self._downhill(gradient))
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
        pair = torch.stack([difference, step], 1) * store[:, None, None]
        self.differences[:, slot], self.steps[:, slot] = pair.unbind(1)
        self.stored[:, slot] = store
        self.scale = torch.where(store, product / difference.square().sum(1), self.scale)
        self.fresh = slot
        full = (self.stored.sum(1) > self.history).nonzero().flatten()
        if len(full):
            self._forget(full, self.stored[full].int().argmax(1))

    def _forget(self, victims: Tensor, slots: Tensor) -> None:
        """Drop one pair of each of these victims."""
        self.stored[victims, slots] = False
        for pairs in (self.differences, self.steps):
            pairs[victims, slots] = 0
        for products in (self.crossed, self.squared):
            products[victims, slots] = 0
            products[victims, :, slots] = 0

    def _free_slot(self) -> int:
        """Return the next slot. The buffers start empty and grow, since most searches end long before the history is full."""
        if self.used == self.stored.shape[1]:
            if self.used < self.history:
                self._reserve(min(self.history, max(10, 2 * self.used)))
            else:
                self._close_gaps()
        self.used += 1
        return self.used - 1

    def _reserve(self, slots: int) -> None:
        """Extend every buffer to so many slots; the new ones are empty."""
        more = slots - self.stored.shape[1]
        pad = torch.nn.functional.pad
        self.differences, self.steps = pad(self.differences, (0, 0, 0, more)), pad(self.steps, (0, 0, 0, more))
        self.crossed, self.squared = pad(self.crossed, (0, more, 0, more)), pad(self.squared, (0, more, 0, more))
        self.stored = pad(self.stored, (0, more))

    def _close_gaps(self) -> None:
        """Move each victim's pairs to the end of the first `history` slots, so that slots without a pair are free again."""
        order = self.stored.int().sort(stable=True, dim=1).indices[:, -self.history :]
        for name in ("differences", "steps"):
            pairs = getattr(self, name)
            setattr(self, name, pairs.gather(1, order[..., None].expand(-1, -1, pairs.shape[2])))
        for name in ("crossed", "squared"):
            rows = getattr(self, name).gather(1, order[..., None].expand(-1, -1, self.stored.shape[1]))
            setattr(self, name, rows.gather(2, order[:, None].expand(-1, rows.shape[1], -1)))
        self.stored = self.stored.gather(1, order)
        self.used = self.history
        self._reserve(self.history + max(1, self.history // 4))

    def _downhill(self, gradient: Tensor) -> Tensor:
        """Return minus the inverse Hessian estimate times the gradient (V, d).

        With S and Y the pairs as columns, R_ij = <s_i, y_j> for i <= j, D its diagonal and c the scale of y: for a vector v,
        u = R^-1 S'v, w = R^-T ((D + c Y'Y) u - c Y'v), and H v = c v + S w - c Y u.
        """
        if not self.used:
            return -gradient
        steps, differences = self.steps[:, : self.used], self.differences[:, : self.used]
        by_step, by_difference = self._products(steps, differences, gradient)
        crossed, squared = self.crossed[:, : self.used, : self.used], self.squared[:, : self.used, : self.used]
        scale = self.scale.double()[:, None, None]
        # A slot without a pair has zeros everywhere; a one on the diagonal keeps its coefficient at zero.
        triangle = crossed + torch.diag_embed((~self.stored[:, : self.used]).double())
        u = torch.linalg.solve_triangular(triangle, -by_step, upper=True)
        along = crossed.diagonal(dim1=1, dim2=2)[..., None] * u
        along = along + scale * (torch.bmm(squared, u) + by_difference)
        w = torch.linalg.solve_triangular(triangle.mT, along, upper=False)
        curved = torch.bmm(w.mT.to(steps), steps) - torch.bmm((scale * u).mT.to(steps), differences)
        return curved[:, 0] - self.scale[:, None] * gradient

    def _products(self, steps: Tensor, differences: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return S' g and Y' g (V, used, 1) in float64; the same pass over memory computes the products of a new pair."""
        new = self.fresh
        vectors = [gradient] if new is None else [gradient, differences[:, new]]
        both = torch.stack(vectors, 1)
        # A core reads the history about twice as fast in this order as in the other.
        by_step, by_difference = (torch.bmm(both, pairs.mT).mT.double() for pairs in (steps, differences))
        if new is not None:
            self.crossed[:, : new + 1, new] = by_step[:, : new + 1, 1]
            self.squared[:, : self.used, new] = self.squared[:, new, : self.used] = by_difference[:, :, 1]
            self.fresh = None
        return by_step[..., :1], by_difference[..., :1]
