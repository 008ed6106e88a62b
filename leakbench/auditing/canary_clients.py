"""An estimate of epsilon from canary clients in random directions, in one training, without clients that are left out.

A random direction that was not part of the training has a cosine of about N(0, 1/d) with anything that the training released. The
estimate is the epsilon between this distribution and a Gaussian fitted to the cosines of the included canaries (Andrew, Kairouz,
Oh, Oprea, McMahan and Suriyakumar, ICLR 2024, arXiv:2302.03098). It is not a bound: the true epsilon may be larger or smaller.
With few canaries it is mostly too large, since the standard deviation of the fit differs from that of the null by chance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import optimize, stats
from scipy.special import log_ndtr, ndtr
from torch import Tensor, nn

from leakbench.auditing.bounds import CONFIDENCE, Reals
from leakbench.core.errors import InputError

__all__ = ["Estimate", "cosines", "estimate_epsilon", "gaussians_delta", "gaussians_epsilon", "random_directions"]

FEWEST = 8
"""Least number of cosines for a fit and its test of normality."""

LEAST_DIMENSION = 1000
"""Least number of coordinates for which N(0, 1/d) replaces the exact distribution of a cosine."""

LIMITS = "an estimate for these canaries, not a bound: the epsilon of the training may be larger or smaller"


@dataclass(frozen=True)
class Estimate:
    """The estimate of one training. The fields are the keys of its JSON.

    Args:
        estimate: Estimated epsilon at `delta`; neither a lower nor an upper bound.
        low: Least epsilon of the Gaussians within the confidence limits of the fit.
        high: Largest one.
        confidence: Probability that both fitted Gaussians are within the limits, if the cosines are independent and Gaussian. It
            says nothing about the epsilon of other canaries, or about cosines with another distribution.
        normality: p-value of D'Agostino and Pearson's test that the included canaries' cosines are Gaussian.
        delta: Delta of the epsilons.
        unit: What a canary is.
        canaries: Number of included canaries.
        mean: Mean of their cosines.
        std: Standard deviation of their cosines.
        null_mean: Mean for canaries that were left out.
        null_std: Standard deviation for canaries that were left out.
        limits: What the estimate does not show.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    normality: float
    delta: float
    unit: str
    canaries: int
    mean: float
    std: float
    null_mean: float
    null_std: float
    limits: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Return the text of the estimate."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        fit = f"{self.low:.4g} to {self.high:.4g} within the fit's {self.confidence:.0%} limits"
        yield f"estimate epsilon {self.estimate:.4g} ({fit}), delta {self.delta:g}, unit: one {self.unit}"
        yield f"         {self.canaries} canaries, p = {self.normality:.2g} of the test that their cosines are Gaussian"
        yield f"         {self.limits}"


def random_directions(count: int, dimension: int, rng: torch.Generator) -> Tensor:
    """Return directions (count, dimension) that are uniform on the unit sphere."""
    return nn.functional.normalize(torch.randn(count, dimension, generator=rng))


def cosines(directions: Tensor, released: Tensor) -> Reals:
    """Return the largest cosine of each direction with the releases.

    Args:
        directions: (k, d).
        released: (d,), the change of the model over the training, for an observer of the last model; or (T, d), the updates of all
            rounds, for an observer of all models.

    Returns:
        (k,), in [-1, 1].

    Raises:
        InputError: For a release that is zero or not finite.
    """
    several = released.reshape(-1, released.shape[-1]).double()
    lengths = several.norm(dim=1)
    if not bool((lengths > 0).all()) or not bool(lengths.isfinite().all()):
        raise InputError(
            "released: got an update that is zero or not finite, expected the updates of rounds that changed the model"
        )
    unit = directions.double() / directions.double().norm(dim=1, keepdim=True)
    return np.asarray((unit @ (several / lengths[:, None]).T).amax(1).numpy(), dtype=np.float64)


def gaussians_delta(epsilon: float, mean: float, std: float) -> float:
    """Return the larger hockey-stick divergence, of both directions, between N(mean, std^2) and N(0, 1) at exp(epsilon).

    The logarithm of the ratio of densities is a quadratic, so each divergence is a difference of normal probabilities.
    """
    square, linear = (1 - std**-2) / 2, mean / std**2
    constant = -(mean**2) / (2 * std**2) - math.log(std)
    other, null = (mean, std), (0.0, 1.0)
    forward = _divergence(square, linear, constant, epsilon, other, null)
    return max(forward, _divergence(-square, -linear, -constant, epsilon, null, other))


def _divergence(
    square: float,
    linear: float,
    constant: float,
    epsilon: float,
    first: tuple[float, float],
    second: tuple[float, float],
) -> float:
    """Return P(R) - e^epsilon Q(R) for the set R where square y^2 + linear y + constant > epsilon.

    Args:
        first: Mean and standard deviation of P.
        second: Mean and standard deviation of Q.
    """
    if abs(square) < 1e-12:
        if linear == 0:
            return 0.0
        edge = (epsilon - constant) / linear
        sets = [(edge, math.inf)] if linear > 0 else [(-math.inf, edge)]
    else:
        inside = linear**2 - 4 * square * (constant - epsilon)
        if inside <= 0:
            return 0.0 if square < 0 else max(0.0, 1.0 - math.exp(epsilon))
        # This form of the roots loses no digits to a small `square`.
        half = -(linear + math.copysign(math.sqrt(inside), linear)) / 2
        low, high = sorted((half / square, (constant - epsilon) / half))
        sets = [(low, high)] if square < 0 else [(-math.inf, low), (high, math.inf)]
    return sum(_mass(s, *first) for s in sets) - sum(
        math.exp(min(epsilon + _log_mass(s, *second), 700.0)) for s in sets
    )


def _mass(interval: tuple[float, float], mean: float, std: float) -> float:
    low, high = ((edge - mean) / std for edge in interval)
    return float(ndtr(high) - ndtr(low)) if low <= 0 else float(ndtr(-low) - ndtr(-high))


def _log_mass(interval: tuple[float, float], mean: float, std: float) -> float:
    low, high = ((edge - mean) / std for edge in interval)
    low, high = (low, high) if low <= 0 else (-high, -low)
    larger, smaller = float(log_ndtr(high)), float(log_ndtr(low))
    return larger + math.log1p(-math.exp(smaller - larger)) if smaller < larger else -math.inf


def gaussians_epsilon(mean: float, std: float, delta: float) -> float:
    """Return the epsilon at `delta` between N(mean, std^2) and N(0, 1), in both directions.

    Args:
        std: Positive.
        delta: In (0, 1).
    """

    def excess(epsilon: float) -> float:
        return gaussians_delta(epsilon, mean, std) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, high / 2 if high > 1 else 0.0, high, xtol=1e-10))


def estimate_epsilon(
    included: Reals,
    delta: float,
    unit: str,
    dimension: int | None = None,
    left_out: Reals | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Estimate epsilon from the cosines of included canaries.

    Args:
        included: (k,), the cosines of canaries that took part.
        delta: Delta of the epsilons, in (0, 1).
        unit: What a canary is.
        dimension: d, the number of coordinates; for cosines with one release, the null distribution is N(0, 1/d).
        left_out: (l,), cosines of directions that did not take part, to which the null distribution is fitted instead. The largest
            cosine over several rounds needs it, since its distribution is not N(0, 1/d).
        confidence: Confidence of the limits `low` and `high`, in (0, 1).

    Raises:
        InputError: For too few cosines, cosines without spread, or unless exactly one of `dimension` and `left_out` is given.
    """
    if not 0 < delta < 1 or not 0 < confidence < 1:
        raise InputError(f"delta, confidence: got {delta} and {confidence}, expected numbers in (0, 1)")
    if (dimension is None) == (left_out is None):
        raise InputError("dimension: expected either it or the cosines of canaries that were left out")
    if dimension is not None and dimension < LEAST_DIMENSION:
        raise InputError(
            f"dimension: got {dimension}, expected at least {LEAST_DIMENSION}, or cosines of canaries left out"
        )
    alpha = (1 - confidence) / (2 if left_out is None else 4)
    mean, std, means, stds = _fit("included", included, alpha)
    if left_out is None:
        null, null_std = 0.0, float(dimension or 1) ** -0.5
        nulls, null_stds = (null, null), (null_std, null_std)
    else:
        null, null_std, nulls, null_stds = _fit("left_out", left_out, alpha)
    limits = [
        gaussians_epsilon(shift / null_spread, spread / null_spread, delta)
        for null_spread in _between(null_stds, null_std)
        for spread in _between(stds, null_spread)
        for shift in _between((means[0] - nulls[1], means[1] - nulls[0]), 0.0)
    ]
    normality = float(stats.normaltest(np.asarray(included, dtype=np.float64)).pvalue)
    return Estimate(
        estimate=gaussians_epsilon((mean - null) / null_std, std / null_std, delta),
        low=min(limits),
        high=max(limits),
        confidence=confidence,
        normality=normality,
        delta=delta,
        unit=unit,
        canaries=len(included),
        mean=mean,
        std=std,
        null_mean=null,
        null_std=null_std,
        limits=LIMITS,
    )


def _between(limits: tuple[float, float], least: float) -> list[float]:
    """Return points within limits, and the one nearest to the value at which the epsilon is least."""
    return [*(float(x) for x in np.linspace(*limits, 3)), min(max(least, limits[0]), limits[1])]


def _fit(name: str, values: Reals, alpha: float) -> tuple[float, float, tuple[float, float], tuple[float, float]]:
    """Return the mean, the standard deviation and the limits of both, each limit pair wrong with probability alpha."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) < FEWEST or not np.isfinite(values).all():
        raise InputError(f"{name}: got an array of shape {values.shape}, expected at least {FEWEST} finite cosines")
    free, mean, std = len(values) - 1, float(values.mean()), float(values.std(ddof=1))
    if std == 0:
        raise InputError(f"{name}: got equal cosines, expected cosines of different directions")
    reach = float(stats.t(free).isf(alpha / 2)) * std / math.sqrt(len(values))
    spread = [std * math.sqrt(free / float(q)) for q in stats.chi2(free).ppf([1 - alpha / 2, alpha / 2])]
    return mean, std, (mean - reach, mean + reach), (spread[0], spread[1])
