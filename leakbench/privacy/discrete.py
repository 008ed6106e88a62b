"""Integer noise under secure aggregation: clients round their updates to a grid, and each adds its own share of the noise.

Rounding increases the norm of an update. The server reads the sum modulo m, which is a function of the sum and so costs no
privacy. Lengths are in steps of the grid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from leakbench.core.errors import InputError
from leakbench.core.types import IntegerNoise

__all__ = ["DiscreteMechanism", "Rounding", "closeness", "gaussian_divergences", "skellam_divergences"]

Reals: TypeAlias = NDArray[np.float64]

LEAST_VARIANCE = 0.25
"""Least variance of a share for which the bound of a sum of discrete Gaussians is proven."""


@dataclass(frozen=True)
class Rounding:
    """Conditional randomised rounding to a grid, and the norms that it guarantees.

    Kairouz, Liu and Steinke, ICML 2021 (arXiv 2102.06387), Algorithm 1.

    Args:
        clip: L2 bound of a vector before rounding, > 0, in units of the vector.
        step: Distance between points of the grid (gamma), > 0, in the same units.
        dimension: Number of coordinates (d), >= 1, with the padding of a rotation.
        beta: Probability, in [0, 1), with which one rounding may be too long, so that the vector is rounded again. With 0, no
            rounding is too long, and the bound is the largest.

    Raises:
        InputError: For a number outside its range.
    """

    clip: float
    step: float
    dimension: int
    beta: float = math.exp(-0.5)

    def __post_init__(self) -> None:
        if not 0 < self.clip < math.inf:
            raise InputError(f"clip: got {self.clip}, expected a finite number > 0")
        if not 0 < self.step < math.inf:
            raise InputError(f"step: got {self.step}, expected a finite number > 0")
        if self.dimension < 1:
            raise InputError(f"dimension: got {self.dimension}, expected a whole number >= 1")
        if not 0 <= self.beta < 1:
            raise InputError(f"beta: got {self.beta}, expected a number in [0, 1)")

    @property
    def l2(self) -> float:
        """The largest L2 norm after rounding, in steps (Algorithm 1 and Theorem 1)."""
        before, side = self.clip / self.step, math.sqrt(self.dimension)
        always = before + side
        if self.beta == 0:
            return always
        return min(
            always, math.sqrt(before**2 + side**2 / 4 + math.sqrt(-2 * math.log(self.beta)) * (before + side / 2))
        )

    @property
    def l1(self) -> float:
        """The largest L1 norm after rounding, in steps: at most sqrt(d) times the L2 norm, and for integers at most its square."""
        return self.l2 * min(math.sqrt(self.dimension), self.l2)

    def noise(self, family: Literal["discrete_gaussian", "skellam"], variance: float) -> IntegerNoise:
        """Return integer noise, of a variance in squared steps, on vectors that are rounded in this way."""
        return IntegerNoise(family, variance, self.l2, self.l1, self.dimension, self.step)


def closeness(variance: float, shares: int) -> float:
    """Return tau, which bounds how far the log density ratios of a sum of discrete Gaussians are from those of one of them.

    Kairouz, Liu and Steinke 2021, Proposition 14: 10 times the sum over k < shares of exp(-2 pi^2 variance k / (k + 1)).

    Args:
        variance: Parameter sigma^2 of one share; below 1/4 the result is infinite for several shares.
        shares: Number of shares, >= 1.
    """
    if shares == 1:
        return 0.0
    if variance < LEAST_VARIANCE:
        return math.inf
    k = np.arange(1, shares, dtype=np.float64)
    return float(10 * np.exp(-2 * math.pi**2 * variance * k / (k + 1)).sum())


def gaussian_divergences(
    orders: Sequence[float] | Reals, variance: float, shares: int, l2: float, l1: float, dimension: int
) -> Reals:
    """Return (A,), upper bounds of the Rényi divergences of a sum of discrete Gaussians, shifted by an integer vector.

    Kairouz, Liu and Steinke 2021, Proposition 14. One share has the divergence of a continuous Gaussian (Canonne, Kamath and
    Steinke, NeurIPS 2020, Proposition 5).

    Args:
        orders: (A,), > 1.
        variance: Parameter sigma^2 of each coordinate of one share, > 0.
        shares: Number of independent shares, >= 1.
        l2: Largest L2 norm of the shift.
        l1: Largest L1 norm of the shift.
        dimension: Number of coordinates.
    """
    a, tau = np.asarray(orders, dtype=np.float64), closeness(variance, shares)
    length = l2 / math.sqrt(shares * variance)
    if tau == 0:  # The terms below would be 0 times infinity for an infinite norm.
        return np.asarray(a / 2 * length**2)
    squares = (
        length**2 + 2 * l1 / math.sqrt(shares * variance) * tau + tau**2 * dimension,
        (length + tau * math.sqrt(dimension)) ** 2,
    )
    return np.asarray(np.minimum(a / 2 * length**2 + tau * dimension, a / 2 * min(squares)))


def skellam_divergences(orders: Sequence[float] | Reals, variance: float, l2: float, l1: float) -> Reals:
    """Return (A,), upper bounds of the Rényi divergences of Skellam noise, shifted by an integer vector.

    Agarwal, Kairouz and Liu, NeurIPS 2021 (arXiv 2110.04995), Theorem 3.5. A sum of shares is again Skellam noise.

    Args:
        orders: (A,), integers >= 2.
        variance: Variance of each coordinate of the whole noise (their mu), > 0.
        l2: Largest L2 norm of the shift.
        l1: Largest L1 norm of the shift.
    """
    a = np.asarray(orders, dtype=np.float64)
    more = np.minimum(((2 * a - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return np.asarray(a * l2**2 / (2 * variance) + more)


@dataclass(frozen=True)
class DiscreteMechanism:
    """A sum of integer vectors with shares of integer noise, released `steps` times.

    A server under secure aggregation sees the shares of all clients together; without it, an observer of one client's message sees
    a sum with one share.

    Args:
        noise: One share, and the largest norms of one unit's contribution.
        shares: Number of shares in the sum, >= 1, which does not depend on the draw of the units.
        sampling_rate: Probability, in [0, 1], that the unit is in one sum.
        steps: Number of releases, >= 0.
        sampling: As in `leakbench.privacy.mechanism.Mechanism`.

    Raises:
        InputError: For a number outside its range.
    """

    noise: IntegerNoise
    shares: int
    sampling_rate: float
    steps: int
    sampling: Literal["poisson", "fixed", "visible"] = "poisson"

    def __post_init__(self) -> None:
        if self.shares < 1:
            raise InputError(f"shares: got {self.shares}, expected a whole number >= 1")
        if not 0 <= self.sampling_rate <= 1:
            raise InputError(f"sampling_rate: got {self.sampling_rate}, expected a number in [0, 1]")
        if self.steps < 0:
            raise InputError(f"steps: got {self.steps}, expected a whole number >= 0")

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of all shares together divided by the L2 norm."""
        return math.sqrt(self.shares * self.noise.variance) / self.noise.l2

    @property
    def idle(self) -> bool:
        """Whether it releases nothing about a unit."""
        return self.sampling_rate == 0 or self.steps == 0 or self.noise.variance == math.inf

    @property
    def releases(self) -> int:
        """Number of releases."""
        return self.steps

    def with_noise(self, noise_multiplier: float) -> DiscreteMechanism:
        """Return the same mechanism with another noise multiplier."""
        variance = (noise_multiplier * self.noise.l2) ** 2 / self.shares
        return dataclasses.replace(self, noise=dataclasses.replace(self.noise, variance=variance))

    def with_shares(self, shares: int) -> DiscreteMechanism:
        """Return the same mechanism with another number of shares: 1 for one client's message."""
        return dataclasses.replace(self, shares=shares)

    def divergences(self, orders: Sequence[float]) -> Reals:
        """Return (A,), upper bounds of the Rényi divergences of *one* release at orders > 1.

        Where bounds are proven for integer orders only, the log moments (order - 1) * divergence between them are interpolated,
        since they are convex (Wang, Balle and Kasiviswanathan, AISTATS 2019, Corollary 10).
        """
        a, q = np.asarray(orders, dtype=np.float64), self.sampling_rate
        if q == 0:
            return np.zeros(a.size)
        gaussian = self.noise.family == "discrete_gaussian"
        if self.noise.variance == 0 or (gaussian and closeness(self.noise.variance, self.shares) == math.inf):
            return np.full(a.size, math.inf)
        if gaussian and (q == 1 or self.sampling == "visible"):
            return self._one_release(a)
        low, high = np.floor(a), np.ceil(a)
        below, above = (self._one_release(np.maximum(whole, 2.0)) for whole in (low, high))
        between = ((high - a) * (low - 1) * below + (a - low) * (high - 1) * above) / (a - 1)
        found = np.where(low == high, above, between)
        # An observer that sees the draw knows more, and its bound for discrete Gaussians holds at every order.
        return np.asarray(np.minimum(found, self._seen_draw(a))) if gaussian else found

    def _one_release(self, orders: Reals) -> Reals:
        """Return (A,), the bounds at orders at which they are proven."""
        q, always = self.sampling_rate, self._unsampled(orders)
        if q == 1:
            return always
        # Another bound for hidden draws, since an observer that sees the draw knows more.
        visible = self._seen_draw(orders)
        if self.sampling == "visible":
            return np.asarray(visible)
        sampled = self._poisson(orders) if self.sampling == "poisson" else self._fixed(orders)
        return np.asarray(np.minimum(np.maximum(sampled, 0.0), visible))

    def _seen_draw(self, orders: Reals) -> Reals:
        """Return (A,), the bounds for an observer that sees whether the unit is in the sum, at orders at which they are proven."""
        q = self.sampling_rate
        seen = np.logaddexp(math.log1p(-q), math.log(q) + (orders - 1) * self._unsampled(orders)) / (orders - 1)
        return np.asarray(seen)

    def _unsampled(self, orders: Reals, times: float = 1.0) -> Reals:
        """Return (A,), the bounds for a contribution that is certainly in the sum and `times` as long."""
        one, l2, l1 = self.noise, times * self.noise.l2, times * self.noise.l1
        if one.family == "skellam":
            return skellam_divergences(orders, self.shares * one.variance, l2, l1)
        return gaussian_divergences(orders, one.variance, self.shares, l2, l1, one.dimension)

    def _poisson(self, orders: Reals) -> Reals:
        """Return (A,), the bounds of Poisson sampling at integer orders.

        The moment of (1 - q) P + q Q against P is a binomial sum of moments of Q against P. It is the larger one of both
        directions because the noise is symmetric (Mironov, Talwar and Zhang 2019, Theorem 5).
        """
        q, j = self.sampling_rate, np.arange(orders.max() + 1)
        spent = np.concatenate([np.zeros(2), (j[2:] - 1) * self._unsampled(j[2:])])
        return _binomial(orders, spent + j * math.log(q), math.log1p(-q))

    def _fixed(self, orders: Reals) -> Reals:
        """Return (A,), the bounds of sampling without replacement at integer orders.

        Wang, Balle and Kasiviswanathan, AISTATS 2019, Theorem 9. Another contribution may replace the unit's, which moves the sum
        by up to twice the norm.
        """
        j = np.arange(orders.max() + 1)
        moved = self._unsampled(j[2:], times=2.0)
        logs = math.log(2) + (j[2:] - 1) * moved
        with np.errstate(over="ignore"):
            logs[0] = min(logs[0], math.log(4) + _log_expm1(float(moved[0])))
        return _binomial(orders, np.concatenate([[0.0, -math.inf], logs + j[2:] * math.log(self.sampling_rate)]), 0.0)


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))


def _binomial(orders: Reals, logs: Reals, rest: float) -> Reals:
    """Return (A,), 1 / (a - 1) times the log of the sum over j <= a of binomial(a, j) exp(logs[j] + (a - j) rest)."""
    found = []
    for a in orders.astype(int):
        j = np.arange(a + 1)
        ways = gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1)
        found.append(float(logsumexp(ways + logs[: a + 1] + (a - j) * rest)) / (a - 1))
    return np.array(found)
