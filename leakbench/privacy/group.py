"""Sums with Gaussian noise that contain a random number of one person's K examples.

Removing a person removes all K examples at once. Each of them moves a sum by at most the bound C of one example, so J drawn ones
move it by at most J * C. The privacy loss is that of a mixture of Gaussians over J (Ganesh, "Tight Group-Level DP Guarantees for
DP-SGD with Sampling via Mixture of Gaussians Mechanisms", arXiv 2401.10294). A mixture of Gaussians with vectors as means is
dominated by the one with their lengths on a line, also if the lengths are only upper bounds (Choquette-Choo, Ganesh, Steinke and
Thakurta, ICLR 2024, arXiv 2310.15526, Corollary 4.7).

Letters: E epsilons; H is the hockey-stick divergence at exp(epsilon), sup over events S of P(S) - exp(epsilon) Q(S).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp, ndtr

from leakbench.core.errors import InputError

__all__ = ["Group", "drawn_examples"]

Reals: TypeAlias = NDArray[np.float64]

Profile: TypeAlias = Callable[[Reals], Reals]
"""(E,) epsilons >= 0 -> (E,) H."""

UNLIKELY = 1e-21
"""Probability of numbers of drawn examples that count as full disclosure of the person."""

HIGHEST = 64.0
"""Highest order for which the Rényi divergence of a hidden draw is computed; above it, the person counts as always drawn."""

WIDE = 12.0
"""Half the range of integration, in standard deviations of a Gaussian."""

COARSE = 1 / 32
"""Step of an integration over Gaussians of width 1."""

MOST_TERMS = 50_000_000
"""Largest number of Gaussians times points of an integration, a second of work."""

MOST_POINTS = 4_000_000
"""Largest number of points of an integration, for which its arrays together take half a gigabyte."""

RARE = 1e-9
"""Probability of numbers of drawn examples that do not matter for the choice of a grid."""

CLOSE, RATIO = 5000, 1.001
"""Number of epsilons at which H is computed one by one, and the ratio between the numbers of later ones."""


def drawn_examples(members: int, batch: int, examples: int, sampling: Literal["poisson", "fixed"]) -> tuple[float, ...]:
    """Return the probabilities that a batch has 0, 1, 2, ... examples of a person, up to K or the size of a fixed batch.

    Args:
        members: K, the person's examples among the client's.
        batch: B.
        examples: |D_i|, at least K and B.
        sampling: `poisson`: each example with probability B / |D_i|; `fixed`: B of the examples without replacement.
    """
    from scipy import stats  # noqa: PLC0415  (takes a second)

    counts = np.arange((min(members, batch) if sampling == "fixed" else members) + 1)
    if sampling == "poisson":
        weights = stats.binom(members, batch / examples).pmf(counts)
    else:
        weights = stats.hypergeom(examples, members, batch).pmf(counts)
    return tuple((weights / weights.sum()).tolist())


@dataclass(frozen=True)
class Group:
    """A sum with Gaussian noise that contains a random number of a person's examples, at most K, released `steps` times.

    Args:
        noise_multiplier: Standard deviation of the noise divided by the largest L2 norm of K examples' contribution, >= 0.
        weights: Probabilities, (K + 1,), that the sum contains 0, 1, ..., K of the examples.
        steps: Number of releases, >= 0.
        sampling: `poisson`: each example is drawn independently, and the draw is hidden (adjacency: add or remove the person);
            `fixed`: a fixed number of examples without replacement, and the draw is hidden (zero-out: the contributions of all K
            examples become zero); `visible`: each drawn example is a release of its own with its own noise (zero-out).

    Raises:
        InputError: For a number outside its range.
    """

    noise_multiplier: float
    weights: tuple[float, ...]
    steps: int
    sampling: Literal["poisson", "fixed", "visible"]

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0:
            raise InputError(f"noise_multiplier: got {self.noise_multiplier}, expected a number >= 0")
        if len(self.weights) < 2 or min(self.weights) < 0 or not math.isclose(sum(self.weights), 1.0, rel_tol=1e-9):
            raise InputError(f"weights: got {self.weights}, expected two or more probabilities with the sum 1")
        if self.steps < 0:
            raise InputError(f"steps: got {self.steps}, expected a whole number >= 0")

    @property
    def members(self) -> int:
        """K, the largest number of the person's examples in one sum."""
        return len(self.weights) - 1

    @property
    def sampling_rate(self) -> float:
        """Probability that a sum contains at least one of the examples."""
        return math.fsum(self.weights[1:])

    @property
    def idle(self) -> bool:
        """Whether it releases nothing about the person."""
        return self.sampling_rate == 0 or self.steps == 0 or self.noise_multiplier == math.inf

    @property
    def releases(self) -> int:
        """Number of releases."""
        return self.steps

    def with_noise(self, noise_multiplier: float) -> Group:
        """Return the same mechanism with another noise multiplier."""
        return dataclasses.replace(self, noise_multiplier=noise_multiplier)

    @property
    def of_one_use(self) -> float:
        """Noise multiplier of one example's release for `visible` sampling; K of them together have `noise_multiplier`."""
        return self.noise_multiplier * math.sqrt(self.members)

    def _likely(self) -> tuple[Reals, float]:
        """Return (the probabilities up to a number of drawn examples, the probability of more)."""
        weights = np.array(self.weights)
        above = np.cumsum(weights[::-1])[::-1]
        most = max(1, int(np.flatnonzero(above > UNLIKELY)[-1]))
        return weights[: most + 1], float(weights[most + 1 :].sum())

    def _shifts(self, count: int) -> Reals:
        """Return the shifts by 0, 1, ..., count - 1 drawn examples, in standard deviations of the noise."""
        drawn = np.arange(count) / self.members
        return np.asarray((np.sqrt(drawn) if self.sampling == "visible" else drawn) / self.noise_multiplier)

    @property
    def least_noise(self) -> float:
        """Noise divided by the largest contribution of a likely number of examples; it bounds the losses that are not rare."""
        return float(1 / self._shifts(self._likely()[0].size)[-1])

    @property
    def profiles(self) -> tuple[Profile, Profile]:
        """(H of the outputs with the person against those without, H the other way round), each an upper bound, of one release.

        The bounds are convex in exp(epsilon), so a line between two points of a curve is an upper bound too.
        """
        removed: Profile
        added: Profile
        weights, rest = self._likely()
        shifts = self._shifts(weights.size)
        with np.errstate(divide="ignore"):
            logs = np.log(weights)
        if self.sampling == "visible":
            removed = added = partial(_of_visible, weights=weights, shifts=shifts)
        elif self.sampling == "poisson":
            removed = partial(_of_mixture, logs=logs, shifts=shifts)
            added = partial(_to_mixture, logs=logs, shifts=shifts)
        else:
            removed, added = (partial(_of_fixed, weights=weights, shifts=shifts, own=own) for own in (2, 1))
        return _on_few(removed, rest), _on_few(added, rest)

    def divergences(self, orders: Sequence[float]) -> Reals:
        """Return (A,), upper bounds of the Rényi divergences of *one* release at orders > 1.

        At most, they are those of a person whose examples are all always drawn, since divergences are quasi-convex. For integer
        orders and a hidden Poisson draw they are exact, up to the order `HIGHEST` or less for many examples. For batches of fixed
        size, the observer counts as one that sees the draw.
        """
        a = np.asarray(orders, dtype=np.float64)
        always = a / (2 * self.noise_multiplier**2)
        if self.sampling == "poisson":
            return np.minimum(always, _by_quadrature(dataclasses.replace(self, steps=0), tuple(a.tolist())))
        weights = np.array(self.weights)
        counts = np.flatnonzero(weights)
        spent = np.multiply.outer(a * (a - 1) / 2, self._shifts(weights.size)[counts] ** 2)
        seen = logsumexp(spent + np.log(weights[counts]), axis=1) / (a - 1)
        return np.asarray(np.minimum(always, np.maximum(seen, 0.0)))

    def similar(self) -> Group:
        """Return a mechanism with a similar epsilon and useful Rényi divergences, to choose a grid by; it bounds nothing.

        Rare draws of many examples decide Rényi divergences, but not an epsilon. The draw of a batch of fixed size is nearly that
        of a Poisson batch with half the noise.
        """
        if self.sampling == "visible":
            return self
        weights = np.array(self.weights)
        most = max(1, int(np.flatnonzero(np.cumsum(weights[::-1])[::-1] > RARE)[-1]))
        few = weights[: most + 1] / weights[: most + 1].sum()
        noise = self.noise_multiplier * self.members / most / (2 if self.sampling == "fixed" else 1)
        return Group(noise, tuple(few.tolist()), self.steps, "poisson")


def _on_few(profile: Profile, rest: float) -> Profile:
    """Return the profile, computed at a part of the epsilons and joined by lines in exp(epsilon), plus the probability `rest`."""

    def joined(epsilons: Reals) -> Reals:
        last = len(epsilons) - 1
        if last <= CLOSE:
            return np.asarray(profile(epsilons) + rest)
        far = CLOSE * RATIO ** np.arange(1, math.ceil(math.log(last / CLOSE) / math.log(RATIO)) + 1)
        points = np.unique(np.concatenate([np.arange(CLOSE + 1), np.minimum(far.astype(int), last), [last]]))
        values = profile(epsilons[points])
        below = np.clip(np.searchsorted(points, np.arange(last + 1), side="right") - 1, 0, points.size - 2)
        left, right = epsilons[points[below]], epsilons[points[below + 1]]
        share = np.expm1(epsilons - left) / np.expm1(right - left)
        return np.asarray(values[below] * (1 - share) + values[below + 1] * share + rest)

    return joined


def _crossing(logs: Reals, shifts: Reals, target: Reals) -> Reals:
    """Return (E,), x at which the sum of v_i exp(d_i x - d_i^2 / 2), that is of v_i N(d_i) / N(0), is exp(target).

    Args:
        logs: (n, E), the logarithms of the weights v_i, at least one of them finite for each E.
        shifts: (n,), d_i > 0.
        target: (E,).
    """
    d = shifts[:, None]
    # Each term alone gives an upper bound. The logarithm of the sum is convex, so Newton's steps stay above the root.
    x: Reals = np.min((target - logs) / d + d / 2, axis=0)
    for _ in range(200):
        terms = logs + d * x - d**2 / 2
        largest = terms.max(axis=0)
        shares = np.exp(terms - largest)
        total = shares.sum(axis=0)
        step = (largest + np.log(total) - target) * total / (d * shares).sum(axis=0)
        x = x - step
        if float(np.max(np.abs(step))) < 1e-11:
            break
    return x


def _of_mixture(epsilons: Reals, logs: Reals, shifts: Reals) -> Reals:
    """Return (E,), H of the mixture of N(d_i) against N(0); the first shift is 0, the others are above it."""
    nothing = math.exp(logs[0])
    target = epsilons + np.log1p(-nothing * np.exp(-epsilons))
    x = _crossing(np.broadcast_to(logs[1:, None], (logs.size - 1, epsilons.size)), shifts[1:], target)
    above = np.exp(logs) @ ndtr(shifts[:, None] - x)
    return np.asarray(np.maximum(above - np.exp(epsilons + log_ndtr(-x)), 0.0))


def _against_mixture(logs: Reals, shifts: Reals) -> Reals:
    """Return (E,), sup over events S of N(0)(S) - the sum of v_i N(d_i)(S).

    Args:
        logs: (n, E), the logarithms of the weights v_i.
        shifts: (n,), d_i >= 0; only the first may be 0.
    """
    found, some = np.zeros(logs.shape[1]), np.ones(logs.shape[1], dtype=bool)
    target, moved = np.zeros(logs.shape[1]), slice(None)
    if shifts[0] == 0:
        # Where the weight of N(0) itself is 1 or more, no event has a positive difference.
        moved, some = slice(1, None), logs[0] < 0
        target = np.log(-np.expm1(np.minimum(logs[0], -1e-300)))
    if some.any():
        x = _crossing(logs[moved][:, some], shifts[moved], target[some])
        against = np.exp(logs[:, some] + log_ndtr(x - shifts[:, None])).sum(axis=0)
        found[some] = ndtr(x) - against
    return np.maximum(found, 0.0)


def _to_mixture(epsilons: Reals, logs: Reals, shifts: Reals) -> Reals:
    """Return (E,), H of N(0) against the mixture of N(d_i)."""
    return _against_mixture(epsilons + logs[:, None], shifts)


def _of_visible(epsilons: Reals, weights: Reals, shifts: Reals) -> Reals:
    """Return (E,), the mean over the visible number of drawn examples of H of N(d_j) against N(0)."""
    found = np.zeros(epsilons.size)
    for weight, shift in zip(weights[1:], shifts[1:], strict=True):
        found += weight * _against_mixture(epsilons[None, :], np.array([shift]))
    return found


def _of_fixed(epsilons: Reals, weights: Reals, shifts: Reals, own: int) -> Reals:
    """Return (E,), an upper bound of H for a sum over a fixed number of examples without replacement, zero-out adjacency.

    The batch is B other examples in random order, in which the first J are replaced by J examples of the person. Let y_l be the
    replaced contributions and x_l those of the person, each at most 1 long. Relative to the sum of the B others, the mean is
    a_J + s_J with the person and a_J with zeros instead, where a_j = -(y_1 + ... + y_j) and s_j = x_1 + ... + x_j. The draw of
    J = 0 is common to both. With p_j = P(J = j), r = 1 - p_0 and g = exp(epsilon), P(S) - g Q(S) is the sum over j > 0 of p_j times

        N(m_j)(S) - (g - 1) (1 - r) / r N(0)(S) - g N(m'_j)(S),

    and H is at most the sum of the suprema over S. With the person's outputs first, m_j = a_j + s_j and m'_j = a_j; the other way
    round, m_j = a_j and m'_j = a_j + s_j. Relative to m_j, N(0) is at most 2j or j away, and N(m'_j) at most j. Each supremum is at
    most H of N(j) against N(0), so that the bound is below that of a person with the largest J in every batch. With one example,
    it is the exact divergence of one release of `leakbench.privacy.pairs` (by advanced joint convexity, Balle, Barthe and Gaboardi,
    NeurIPS 2018, Theorem 2). If fewer than B others exist, the first contributions are the person's for certain: a_j has fewer
    terms, and the same distances hold.

    Args:
        weights: P(J = 0), P(J = 1), ...
        shifts: Those of 0, 1, ... examples.
        own: Largest distance of N(m_j) from N(0), divided by j: 2 with the person's outputs first, else 1.
    """
    rate = float(weights[1:].sum())
    with np.errstate(divide="ignore"):
        # log((g - 1) (1 - r) / r), which is -inf at epsilon 0 or if the person is always drawn.
        common = epsilons + np.log(-np.expm1(-epsilons)) + np.log(max(0.0, 1.0 - rate)) - math.log(rate)
    logs = np.stack([common, epsilons])
    found = np.zeros(epsilons.size)
    for weight, shift in zip(weights[1:], shifts[1:], strict=True):
        if weight > 0:
            found += weight * _against_mixture(logs, np.array([own, 1]) * shift)
    return found


@lru_cache(maxsize=256)
def _by_quadrature(group: Group, orders: tuple[float, ...]) -> Reals:
    """Return (A,), the Rényi divergences of one release with a hidden Poisson draw, the larger of both directions.

    With r the ratio of the densities with and without the person, the moments are E[r^a] and E[r^(1 - a)] over N(0). They are
    infinite for orders that are not whole numbers or above the largest order that is computed.
    """
    weights, shifts = np.array(group.weights), group._shifts(group.members + 1)
    widest = min(MOST_TERMS / weights.size, MOST_POINTS)
    highest = min(HIGHEST, (widest * COARSE - 2 * WIDE) / float(shifts[-1]))
    found, chosen = np.full(len(orders), math.inf), [a for a in orders if a <= highest and a == int(a)]
    if not chosen:
        return found
    # r^a is a sum of Gaussians of width 1. The zeros of r are about pi / (largest shift) away from the real axis.
    fine = min(COARSE, 1 / (8 * float(shifts[-1])))
    lowest = -(max(chosen) - 1) * float(weights @ shifts) - WIDE
    if (WIDE - lowest) / fine > widest:
        return found
    forward = np.arange(-WIDE, max(chosen) * float(shifts[-1]) + WIDE, COARSE)
    back = np.arange(lowest, WIDE, fine)
    sides = [(x, _log_ratio(x, weights, shifts), math.log(step)) for x, step in ((forward, COARSE), (back, fine))]
    for place, a in enumerate(orders):
        if a in chosen:
            logs = [
                logsumexp(power * ratio - x**2 / 2 + step) - math.log(2 * math.pi) / 2
                for power, (x, ratio, step) in zip((a, 1 - a), sides, strict=True)
            ]
            found[place] = max(*logs, 0.0) / (a - 1)
    return found


def _log_ratio(x: Reals, weights: Reals, shifts: Reals) -> Reals:
    """Return (X,), the logarithm of the sum of p_j N(d_j) / N(0) at x."""
    found = np.full(x.size, -np.inf)
    for weight, shift in zip(weights, shifts, strict=True):
        if weight > 0:
            found = np.logaddexp(found, math.log(weight) + shift * x - shift**2 / 2)
    return found
