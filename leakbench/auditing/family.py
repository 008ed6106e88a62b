"""The epsilon that error rates imply within a family: sampled and repeated Gaussian sums with unknown noise.

It is tighter than the bound without assumptions, which uses only one point of the trade-off (Nasr et al., USENIX Security 2023,
section 3). It is valid if the noise is Gaussian and independent of the data, which the coupled check tests.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize
from scipy.special import ndtri

from leakbench.auditing.bounds import Rates, Reals, gaussian_shift
from leakbench.privacy.accountants import best, rdp
from leakbench.privacy.mechanism import Mechanism, Mixture
from leakbench.privacy.pairs import fixed_size_epsilon, gaussian_delta, losses, uses_of

__all__ = ["family_epsilon", "gaussian_epsilon", "privacy_curve"]


def gaussian_epsilon(shift: float, delta: float) -> float:
    """Return the epsilon at `delta` of a Gaussian whose mean one unit moves by `shift` >= 0 standard deviations.

    This inverts Balle and Wang, ICML 2018, Theorem 8.
    """

    def excess(epsilon: float) -> float:
        return float(gaussian_delta(epsilon, np.array(shift))) - delta

    if shift <= 0 or excess(0.0) <= 0:
        return 0.0
    most = shift**2 / 2 + 2 * shift * math.sqrt(-2 * math.log(delta))
    return float(optimize.brentq(excess, 0.0, most, xtol=1e-12))


def family_epsilon(rates: tuple[Rates, Rates], mechanism: Mechanism | Mixture, delta: float) -> float | None:
    """Return the least epsilon at `delta` among the family's members that allow both rates; None if the computation fails.

    Args:
        rates: The result of `both_ways`.
        mechanism: The family's sampling, rate and steps; its noise is the start of the search.
    """
    if isinstance(mechanism, Mechanism) and mechanism.sampling_rate == 1:
        return gaussian_epsilon(max(float(gaussian_shift(r)) for r in rates), delta)
    try:
        noise = _most_noise(rates, mechanism)
        return 0.0 if noise == math.inf else best((mechanism.with_noise(noise),), delta)[0]
    except (ArithmeticError, MemoryError, ValueError):
        return None


def _most_noise(rates: tuple[Rates, Rates], start: Mechanism | Mixture) -> float:
    """Return the largest noise multiplier that allows the rates, to 0.3 %, rounded such that the epsilon is a lower bound."""
    strongest = max(rates, key=lambda r: float(gaussian_shift(r)))
    # The opposite guess is a guess too: slopes of the trade-off below 1 become slopes above 1.
    guesses = [strongest, Rates(1 - strongest.true_positive, 1 - strongest.false_positive)]
    deltas = sorted({d for g in guesses for d in _tangents(g)})
    # A coarse grid of losses overestimates a member's epsilon, so the bound stays valid.
    interval = max(2e-4, 4e-4 * rdp((start,), 1e-5))

    def possible(noise: float) -> bool:
        epsilons, excess = privacy_curve(start.with_noise(noise), deltas, interval)
        return all(bool(np.all(g.true_positive <= np.exp(epsilons) * g.false_positive + excess)) for g in guesses)

    if not deltas:
        return math.inf
    low, high = start.noise_multiplier, start.noise_multiplier
    while not possible(low):
        low, high = low / 1.5, low
    while high == low or possible(high):
        low, high = high, high * 1.5
    while high > 1.003 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if possible(middle) else (low, middle)
    return high


def _tangents(guess: Rates) -> list[float]:
    """Return deltas near that of the tangent to a Gaussian's trade-off at these rates; none if its slope is below 1."""
    shift, threshold = float(gaussian_shift(guess)), float(-ndtri(guess.false_positive))
    loss = shift * threshold - shift**2 / 2
    touching = guess.true_positive - math.exp(min(loss, 700.0)) * guess.false_positive
    return [touching * share for share in (0.6, 0.85, 1.0, 1.15)] if loss >= 0 and touching > 0 else []


def privacy_curve(mechanism: Mechanism | Mixture, deltas: list[float], interval: float) -> tuple[Reals, Reals]:
    """Return (epsilons, deltas), (n,) each: points on a mechanism's privacy curve or above it."""
    if isinstance(mechanism, Mechanism) and mechanism.sampling == "fixed":
        sigma, q, steps = mechanism.noise_multiplier, mechanism.sampling_rate, mechanism.steps
        at_deltas = [fixed_size_epsilon(sigma, q, steps, d, interval) for d in deltas]
        return np.array(at_deltas), np.array(deltas)
    epsilons = np.concatenate([np.linspace(0, 2, 41), np.geomspace(2.1, 50, 40)])
    visible = uses_of(mechanism)
    if visible is not None:
        return epsilons, _visible_deltas(epsilons, *visible)
    with np.errstate(all="ignore"):
        return epsilons, np.asarray(losses((mechanism,), interval).get_delta_for_epsilon(epsilons))


def _visible_deltas(epsilons: Reals, sigma: float, uses: Reals) -> Reals:
    counts = np.flatnonzero(uses > 1e-14 * uses.max())
    shifts = np.sqrt(counts) / sigma
    rest = 1e-12 + max(0.0, 1.0 - float(uses[counts].sum()))
    return np.array([float(uses[counts] @ gaussian_delta(float(e), shifts)) for e in epsilons]) + rest
