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
        pairs: Pairs (y, s), (V, slots, 2, d). Each victim fills its slots in order, then overwrites its oldest pair. Numbers of
            slots without a pair are zero, here and below.
        stored: (V,) number of pairs that a victim has stored so far.
        used: Number of slots in use.
        curvatures: <s_i, y_i>, (V, slots) in float64.
        inverse, squared: R^-1 of `_downhill`, and <y_i, y_j>, (V, slots, slots) in float64.
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
        self.pairs = fresh(victims, 0, 2, size)
        self.curvatures = fresh(victims, 0, dtype=torch.float64)
        self.inverse, self.squared = (
            fresh(victims, 0, 0, dtype=torch.float64),
            fresh(victims, 0, 0, dtype=torch.float64),
        )
        self.used = 0
        self.direction, self.before = torch.zeros_like(self.points), torch.zeros_like(self.points)
        self.length, self.scale = fresh(victims), torch.ones_like(fresh(victims))
        self.iterations = torch.zeros(victims, dtype=torch.int64, device=self.points.device)
        self.stored, self.evaluations = torch.zeros_like(self.iterations), torch.zeros_like(self.iterations)
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
        new = self._remember(running, gradient)
        self.direction = torch.where(running[:, None], self._downhill(gradient, new), self.direction)
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

    def _remember(self, running: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Store the pair of each running victim whose curvature is above 1e-10; return those victims (n,) and their slots (n,)."""
        difference = gradient - self.before
        step = self.direction * self.length[:, None]
        product = (difference * step).sum(1)
        store = running & (product > 1e-10)
        victims = store.nonzero().flatten()
        slots = self.stored[victims] % self.history
        if len(victims):
            self._reserve(int(slots.max()) + 1)
            self.pairs[victims, slots] = torch.stack([difference, step], 1)[victims]
            self.curvatures[victims, slots] = product[victims].double()
            # The oldest pair's column has only its diagonal.
            self.inverse[victims, slots] = 0
            self.stored += store
            self.scale = torch.where(store, product / difference.square().sum(1), self.scale)
        return victims, slots

    def _reserve(self, used: int) -> None:
        """Use at least so many slots. The buffers start empty and grow, since most searches end long before the history is full."""
        self.used = max(self.used, used)
        slots = self.pairs.shape[1]
        if self.used > slots:
            more = min(self.history, max(10, 2 * slots)) - slots
            pad = torch.nn.functional.pad
            self.pairs, self.curvatures = pad(self.pairs, (0, 0, 0, 0, 0, more)), pad(self.curvatures, (0, more))
            self.inverse, self.squared = pad(self.inverse, (0, more, 0, more)), pad(self.squared, (0, more, 0, more))

    def _downhill(self, gradient: Tensor, new: tuple[Tensor, Tensor]) -> Tensor:
        """Complete the products of new pairs, and return minus the inverse Hessian estimate times the gradient (V, d).

        With S and Y the pairs as columns from the oldest to the newest, R_ij = <s_i, y_j> for i <= j, D its diagonal and c the
        scale of y: for a vector v, u = R^-1 S'v, w = R^-T ((D + c Y'Y) u - c Y'v), and H v = c v + S w - c Y u.

        R^-1 is kept instead of R. A new pair adds one column to it, and a dropped one takes its row and column away: as R is
        triangular, the rest stays as it is. So the order of the slots does not matter. Before the first pair, H is 1.

        Args:
            gradient: Gradients (V, d).
            new: Victims (n,) with a new pair, and its slots (n,); the pass over the history for S'v and Y'v also computes the
                products of that pair.
        """
        if not self.used:
            return -gradient
        everyone = torch.arange(len(gradient), device=gradient.device)
        history = self.pairs[:, : self.used].flatten(1, 2)
        latest = self.pairs[everyone, (self.stored - 1).clamp_min(0) % self.history, 0]
        # A core reads the history about twice as fast in this order as in the other.
        products = torch.bmm(torch.stack([gradient, latest], 1), history.mT).double()
        by_difference, by_step = products.view(len(gradient), 2, self.used, 2).unbind(3)
        inverse, squared = self.inverse[:, : self.used, : self.used], self.squared[:, : self.used, : self.used]
        solved = torch.bmm(by_step, inverse.mT)
        u = -solved[:, 0]
        victims, slots = new
        curvature = self.curvatures[victims, slots][:, None]
        column = -solved[victims, 1] / curvature
        column[everyone[: len(victims)], slots] = 1 / curvature[:, 0]
        u[victims] -= column * by_step[victims, :1, slots]
        self.inverse[victims, : self.used, slots] = column
        row = by_difference[victims, 1]
        self.squared[victims, : self.used, slots] = self.squared[victims, slots, : self.used] = row
        scale, curvatures = self.scale.double()[:, None], self.curvatures[:, : self.used]
        # Products with a row from the left are faster than with a column from the right; Y'Y is symmetric.
        along = curvatures * u + scale * (torch.bmm(u[:, None], squared)[:, 0] + by_difference[:, 0])
        w = torch.bmm(along[:, None], inverse)[:, 0]
        weights = torch.stack([-scale * u, w], 2).flatten(1)[:, None].to(gradient)
        return torch.bmm(weights, history)[:, 0] - self.scale[:, None] * gradient
