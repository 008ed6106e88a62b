"""Rényi divergences at integer orders, of thousands of noise levels at once, and conversions to epsilon and delta.

Letters: S mechanisms, A orders. Each order gives a separate bound, so the result is valid without some of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from leakbench.core.errors import InputError
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.group import Group
from leakbench.privacy.mechanism import LEAST_NOISE, AnyMechanism, Mixture

__all__ = [
    "INTEGER_ORDERS",
    "Conversion",
    "Reals",
    "by_quadrature",
    "delta_at",
    "divergences",
    "epsilon_at",
    "of_mixture",
    "without_replacement",
]

Reals: TypeAlias = NDArray[np.float64]

Conversion: TypeAlias = Literal["old", "tight"]
"""`old`: Mironov, CSF 2017, Proposition 3; `tight`: Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12."""

INTEGER_ORDERS = (*range(2, 64), *range(64, 128, 4), *range(128, 257, 16), 384, 512, 768, 1024)

SLICE = 256

MOST = 700.0
"""Exponent whose exponential is near the largest number in double precision."""

WIDE = 12.0
"""Half the range of integration, in standard deviations of a Gaussian."""


def divergences(mechanisms: Sequence[AnyMechanism], orders: Sequence[int] = INTEGER_ORDERS) -> Reals:
    """Return (S, A), the Rényi divergence of *one* step (for a mixture, one round) of each mechanism at integer orders >= 2.

    The Poisson-subsampled Gaussian follows Mironov, Talwar and Zhang 2019, section 3.3. `Mechanism.event` explains how a sample of
    fixed size is covered; its divergence is at most that of a unit in every sample, as divergences are quasi-convex. For a visible
    use, the moment is that of the Gaussian with probability q. `DiscreteMechanism` and `Group` have their own bounds.

    Raises:
        InputError: For an order that is not an integer >= 2.
    """
    if not all(a >= 2 and a == int(a) for a in orders):
        raise InputError(f"orders: got {tuple(orders)}, expected integers >= 2")
    rows: dict[tuple[float, str], list[int]] = {}
    found = np.zeros((len(mechanisms), len(orders)))
    for row, mechanism in enumerate(mechanisms):
        if isinstance(mechanism, Mixture):
            inner = np.array([m.steps for m in mechanism.mechanisms]) @ divergences(mechanism.mechanisms, orders)
            found[row] = of_mixture(mechanism, orders, inner)
            continue
        if isinstance(mechanism, DiscreteMechanism | Group):
            found[row] = mechanism.divergences(orders)
            continue
        rows.setdefault((mechanism.sampling_rate, mechanism.sampling), []).append(row)
    for (q, sampling), kind in rows.items():
        sigma = np.array([mechanisms[row].noise_multiplier for row in kind])
        one = _of_one_rate(q, sampling, 1 / (2 * np.maximum(sigma, LEAST_NOISE) ** 2), orders)
        found[kind] = np.where((sigma < LEAST_NOISE)[:, None] & (q > 0), math.inf, one)
    return found


def of_mixture(mixture: Mixture, orders: Sequence[float], participation: Reals) -> Reals:
    """Return (A,), the Rényi divergence of one round of a mixture.

    The moment exp((a - 1) D) of the draw and the releases is the mean of the moments over the visible draw.

    Args:
        participation: (A,), the divergence of one participation.
    """
    exponents = np.asarray(orders, dtype=np.float64) - 1
    counts = np.flatnonzero(mixture.weights > 0)
    with np.errstate(invalid="ignore"):
        spent = np.where(counts == 0, 0.0, np.multiply.outer(exponents * participation, counts))
    terms = spent + np.log(mixture.weights[counts])
    return np.asarray(np.maximum(logsumexp(terms, axis=1), 0.0) / exponents)


def _of_one_rate(q: float, sampling: str, precision: Reals, orders: Sequence[int]) -> Reals:
    """Return (S, A), the divergences of one step of mechanisms with the same sampling.

    Args:
        precision: (S,), 1 / (2 sigma^2).
    """
    a = np.array(orders, dtype=np.float64)
    if q == 0:
        return np.zeros((precision.size, a.size))
    if q == 1:
        return np.asarray(precision[:, None] * a)
    if sampling == "visible":
        return np.asarray(np.logaddexp(math.log1p(-q), math.log(q) + precision[:, None] * a * (a - 1)) / (a - 1))
    moments = np.stack(
        [_log_moment(q, 4 * precision if sampling == "fixed" else precision, order) for order in orders], axis=1
    )
    # For very large noise, the logarithms give -1e-20 for a divergence of 1e-20.
    found = np.maximum(moments / (a - 1), 0.0)
    return np.asarray(np.minimum(found, precision[:, None] * a) if sampling == "fixed" else found)


def by_quadrature(q: float, sigma: float, order: float) -> float:
    """Return the Rényi divergence of one step of the Poisson-subsampled Gaussian at any order above 1, q in (0, 1).

    The trapezoidal rule computes the moment of Mironov, Talwar and Zhang 2019, section 3.3: E over z of
    (1 - q + q exp((2 z - 1) / (2 sigma^2)))^order, where z has deviation sigma. Its error falls exponentially with the step.
    """
    # The integrand lies between two Gaussians with means 0 and order / sigma. If these are far apart, each has its own range.
    far, step = order / sigma, min(1 / 32, sigma / 8) if sigma > 0.02 else 1 / 32
    parts = [(-WIDE, WIDE), (far - WIDE, far + WIDE)] if far > 2 * WIDE else [(-WIDE, far + WIDE)]
    t = np.concatenate([np.arange(*part, step) for part in parts])
    density, loss = -0.5 * t**2 + math.log(step / math.sqrt(2 * math.pi)), t / sigma - 0.5 / sigma**2
    terms = density + order * np.logaddexp(math.log1p(-q), math.log(q) + loss)
    largest = terms.max()
    moment = largest + math.log(np.exp(terms - largest).sum())
    if moment < 1e-3:
        # The moment is too close to 1. E of exp(loss) is 1, so 1 + order q (exp(loss) - 1) may be subtracted from the integrand.
        weight, shown = np.exp(density), np.exp(density + loss)
        more = q * np.expm1(np.minimum(loss, MOST))
        little = np.minimum(more, 1 / order)
        few = order * (order - 1) / 2 * little**2 * (1 + (order - 2) / 3 * little)
        some = np.expm1(order * np.log1p(little)) - order * little
        much = np.exp(terms) - weight - order * q * (shown - weight)
        within = weight * np.where(np.abs(order * more) < 1e-5, few, some)
        moment = math.log1p(float(np.where(order * more < 1, within, much).sum()))
    return max(float(moment), 0.0) / (order - 1)


def _log_moment(q: float, precision: Reals, order: int) -> Reals:
    """Return (S,), the log of the sum over i of binomial(order, i) q^i (1-q)^(order-i) exp((i^2 - i) / (2 sigma^2))."""
    i = np.arange(order + 1)
    ways = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    weights = ways + i * math.log(q) + (order - i) * math.log1p(-q)
    found = np.empty(precision.size)
    # In-place slices that fit into the processor's cache are three times as fast as one large array.
    for start in range(0, precision.size, SLICE):
        terms = np.multiply.outer(precision[start : start + SLICE], i * (i - 1.0))
        terms += weights
        largest = terms.max(axis=1, keepdims=True)
        terms -= largest
        found[start : start + SLICE] = largest[:, 0] + np.log(np.exp(terms, out=terms).sum(axis=1))
    return found


def epsilon_at(orders: Sequence[float], total: Reals, delta: float, conversion: Conversion) -> Reals:
    """Return (...,), the least epsilon at `delta` over all orders.

    Args:
        total: (..., A), the divergences of all steps together.
    """
    a = np.array(orders, dtype=np.float64)
    if conversion == "old":
        return np.asarray((total - math.log(delta) / (a - 1)).min(-1))
    bound = total + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    # delta <= sqrt(1 - exp(-divergence)) at epsilon 0, so epsilon is 0 if this bound is below the requested delta.
    return np.asarray(np.maximum(np.where(delta**2 + np.expm1(-total) > 0, 0.0, bound).min(-1), 0.0))


def delta_at(orders: Sequence[float], total: Reals, epsilon: float, conversion: Conversion) -> Reals:
    """Return (...,), the least delta at `epsilon` over all orders, at most 1.

    The conversion `old` is Abadi et al., CCS 2016, Theorem 2 (their lambda is order - 1).

    Args:
        total: (..., A), as in `epsilon_at`.
    """
    a = np.array(orders, dtype=np.float64)
    exponent = (a - 1) * (total - epsilon)
    if conversion == "tight":
        exponent = exponent + (a - 1) * np.log1p(-1 / a) - np.log(a)
        with np.errstate(divide="ignore"):
            exponent = np.minimum(exponent, 0.5 * np.log(-np.expm1(-total)))
    return np.asarray(np.exp(np.minimum(exponent, 0.0).min(-1)))


def without_replacement(q: float, sigma: float, orders: Sequence[int]) -> Reals:
    """Return (A,), the Rényi divergence of one Gaussian sum over a sample without replacement, at integer orders >= 2.

    Wang, Balle and Kasiviswanathan, AISTATS 2019, Theorem 27 of the long version, for replace-one adjacency. The noise is sigma
    times the L2 norm of the sum's change, which is *twice* a clip's bound.
    """
    if q == 1:
        return np.asarray(np.array(orders) / (2 * sigma**2), dtype=np.float64)
    highest = max(orders)
    # log of exp(x (x + 1) / (2 sigma^2)) at -1, 0, 1, ...; their differences are moments of (density ratio - 1).
    x = np.arange(-1, highest + 2, dtype=np.float64)
    table = x * (x + 1) / (2 * sigma**2)
    differences = [table[0]]
    for _ in range(highest + 1):
        with np.errstate(divide="ignore"):
            table = table[1:] + np.log(-np.expm1(table[:-1] - table[1:]))
        differences.append(table[0])
    first = math.log(4) + 1 / sigma**2 + math.log(-math.expm1(-1 / sigma**2))
    logs = [2 * math.log(q) + min(first, 1 / sigma**2 + math.log(2))]
    for j in range(3, highest + 1):
        exact = math.log(4) + (differences[2 * (j // 2)] + differences[2 * ((j + 1) // 2)]) / 2
        logs.append(j * math.log(q) + min(exact, math.log(2) + j * (j - 1) / (2 * sigma**2)))
    return np.array([_over_orders(order, np.array(logs)) for order in orders])


def _over_orders(order: int, logs: Reals) -> float:
    j = np.arange(2, order + 1)
    ways = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    return float(np.logaddexp.reduce([0.0, *(ways + logs[: j.size])])) / (order - 1)
