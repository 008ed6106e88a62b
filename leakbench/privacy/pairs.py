"""Dominating pairs beyond the Poisson-subsampled Gaussian, with closed forms of their hockey-stick divergences.

Lengths are in units of one unit's largest contribution: the noise has standard deviation sigma, and the contribution shifts the
output by s = 1 / sigma standard deviations. H is the hockey-stick divergence at exp(epsilon).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from scipy import optimize, stats
from scipy.special import log_ndtr, ndtr

from leakbench.privacy.group import Group
from leakbench.privacy.mechanism import Gaussians, Mechanism, Mixture
from leakbench.privacy.renyi import Reals

__all__ = [
    "coarsest_needed",
    "composed_epsilon",
    "fixed_size_epsilon",
    "gaussian_delta",
    "largest_loss",
    "losses",
    "poisson_epsilon",
    "sum_of",
    "uses_of",
    "visible_epsilon",
]

Divergence: TypeAlias = Callable[[Reals], Reals]
"""epsilons >= 0 -> H."""

TAIL = 9.0
"""Number of standard deviations beyond which a Gaussian has a probability below 1e-18."""

NEGLIGIBLE, SUDDEN = 1e-20, 1e-16
"""Divergence that counts as zero, and the least one that matters if it is the last above zero."""

UNLIKELY = 1e-15
"""Probability below which a number of participations in one round counts as full disclosure of the unit."""

MOST_LOSSES = 2_000_000
"""Largest number of losses on one grid: ten arrays of them take 160 MB."""

SPARSE = 10
"""Number of steps above which dp_accounting always composes dense arrays: it keeps lists of at most 1,000 losses, below 2^10."""


def largest_loss(sigma: float) -> float:
    """Return a loss that one step without sampling exceeds with probability below 1e-18; sigma > 0."""
    return 0.5 / sigma**2 + TAIL / sigma


def coarsest_needed(mechanism: Mechanism | Mixture | Group) -> float:
    """Return the least grid step for which the losses of one step fit into memory; a coarser grid gives an upper bound too."""
    if isinstance(mechanism, Mixture):
        return max(map(coarsest_needed, mechanism.mechanisms))
    least = mechanism.least_noise if isinstance(mechanism, Group) else mechanism.noise_multiplier
    return largest_loss(least) / MOST_LOSSES


def gaussian_delta(epsilon: float | Reals, shift: float | Reals) -> Reals:
    """Return the delta of a Gaussian mechanism at `epsilon`.

    Balle and Wang, ICML 2018, Theorem 8 (the analytic Gaussian mechanism). The shapes of both arguments broadcast.

    Args:
        shift: Sensitivity / standard deviation, >= 0.
    """
    safe = np.maximum(shift, 1e-300)
    delta = ndtr(safe / 2 - epsilon / safe) - np.exp(epsilon + log_ndtr(-safe / 2 - epsilon / safe))
    return np.where(np.asarray(shift) > 0, np.clip(delta, 0.0, 1.0), 0.0)


def uses_of(mechanism: Mechanism | Mixture | Group) -> tuple[float, Reals] | None:
    """Return (noise multiplier, probabilities of 0, 1, 2, ... uses) if every use is visible, else None.

    Then only the number of uses is random, and sampling does not amplify. A mixture qualifies if one participation has one kind of
    release.
    """
    if isinstance(mechanism, Mixture):
        return _uses_in_rounds(mechanism)
    if mechanism.sampling != "visible" or (isinstance(mechanism, Mechanism) and mechanism.sampling_rate == 1):
        return None
    if isinstance(mechanism, Group):
        return mechanism.of_one_use, sum_of(np.array(mechanism.weights), mechanism.steps)
    counts = np.arange(mechanism.steps + 1)
    return mechanism.noise_multiplier, stats.binom(mechanism.steps, mechanism.sampling_rate).pmf(counts)


def _uses_in_rounds(mixture: Mixture) -> tuple[float, Reals] | None:
    if len(mixture.mechanisms) > 1:
        return None
    (one,), weights = mixture.mechanisms, mixture.weights
    if (isinstance(one, Group) or one.sampling_rate < 1) and one.sampling != "visible":
        return None
    each = one.members if isinstance(one, Group) else 1
    inside = np.zeros((weights.size - 1) * one.steps * each + 1)
    for count in np.flatnonzero(weights):
        low, several = _uses_of_one(one, int(count) * one.steps)
        inside[low : low + several.size] += weights[count] * several
    return one.of_one_use if isinstance(one, Group) else one.noise_multiplier, sum_of(inside, mixture.steps)


def _uses_of_one(one: Mechanism | Group, steps: int) -> tuple[int, Reals]:
    """Return (the first number of uses in so many steps, the probabilities of it and the next numbers)."""
    if isinstance(one, Group):
        return 0, sum_of(np.array(one.weights), steps)
    uses = stats.binom(steps, one.sampling_rate)
    low, high = (int(uses.ppf(1e-17)), int(uses.isf(1e-17))) if one.sampling_rate < 1 else (steps,) * 2
    counts = np.arange(max(low, 0), high + 1)
    return max(low, 0), np.asarray(uses.pmf(counts))


def sum_of(weights: Reals, times: int) -> Reals:
    """Return the probabilities of the sum of `times` independent counts with the given probabilities; error about 1e-16."""
    size = (weights.size - 1) * times + 1
    length = 1 << (size - 1).bit_length()
    total = np.fft.irfft(np.fft.rfft(weights, length) ** times, length)[:size]
    return np.asarray(np.maximum(total, 0.0), dtype=np.float64)


def visible_epsilon(sigma: float, uses: Reals, delta: float) -> float:
    """Return the epsilon of a unit that is used a random number of times, where the observer sees each use.

    Sampling does not amplify: delta(epsilon) is the mean of the analytic Gaussian's delta over the number of uses. Very unlikely
    numbers of uses count as full disclosure of the unit.

    Args:
        uses: Probabilities of 0, 1, 2, ... uses.

    Raises:
        ValueError: If delta is smaller than the error of the probabilities.
    """
    counts = np.flatnonzero(uses > min(1e-13, 1e-6 * delta) * uses.max())
    weights = uses[counts]
    rest = max(0.0, 1.0 - float(weights.sum()))
    shifts = np.sqrt(counts) / sigma

    def excess(epsilon: float) -> float:
        return float(weights @ gaussian_delta(epsilon, shifts)) + rest - delta

    if excess(0.0) <= 0:
        return 0.0
    most = shifts[-1] ** 2 / 2 + 2 * shifts[-1] * math.sqrt(-2 * math.log(delta))
    return float(optimize.brentq(excess, 0.0, most, xtol=1e-9))


def _removed(epsilon: Reals, sigma: float, rate: float) -> Reals:
    """H((1-q) N(-s) + q N(s) || (1-q) N(-s) + q N(0)) for epsilon >= 0, by the one root of a quadratic in exp(s x)."""
    s = 1 / sigma
    odds = (1 - rate) / rate * np.exp(-epsilon - s * s) * -np.expm1(-epsilon)
    x = (epsilon + s * s / 2 + np.log((1 + np.sqrt(1 + 4 * odds)) / 2)) / s
    other = np.exp(epsilon + log_ndtr(-x - s)) - ndtr(-x - s)
    return np.asarray(rate * (ndtr(s - x) - np.exp(epsilon + log_ndtr(-x))) - (1 - rate) * other)


def _added(epsilon: Reals, sigma: float, rate: float) -> Reals:
    """q H_alpha(N(s) || N(0)), alpha = 1 + (exp(epsilon) - 1) / q, for epsilon >= 0."""
    s = 1 / sigma
    log_alpha = epsilon + np.log1p(-(1 - rate) * np.exp(-epsilon)) - math.log(rate)
    return np.asarray(rate * (ndtr(s / 2 - log_alpha / s) - np.exp(log_alpha + log_ndtr(-s / 2 - log_alpha / s))))


def fixed_size_epsilon(sigma: float, rate: float, steps: int, delta: float, interval: float) -> float:
    """Return an upper bound of the epsilon of `steps` Gaussian sums over a sample of fixed size without replacement, zero-out.

    One sum is over m of n members, q = m / n, and zero replaces one unit's contribution x. Given all other members, the sample
    contains either the unit or, instead of it, another contribution y. The test is between P = (1-q) N(y) + q N(x) and Q =
    (1-q) N(y) + q N(0). By advanced joint convexity (Balle, Barthe and Gaboardi, NeurIPS 2018, Theorem 2), H(P || Q) = q
    H_alpha(N(x) || (1-beta) N(y) + beta N(0)), which is largest at y = -x (a mixture of Gaussians on a line, with shifts of the
    same lengths, dominates any other: Choquette-Choo et al., ICLR 2024), and H(Q || P) is largest at y = x. The pair of Poisson
    sampling is too optimistic here, because y shows the attacker that the unit is absent.

    For one sum, the bound is exact. For several it is above the epsilon of any y, since each y is worst in one direction only.

    Args:
        interval: Step of the grid of losses, which are rounded upwards.
    """
    single = _of_fixed_size(sigma, rate, interval)
    return float(_repeated(single, steps).get_epsilon_for_delta(delta))


def composed_epsilon(mechanisms: Gaussians, delta: float, interval: float) -> float:
    """Return an upper bound of the epsilon of different mechanisms together; adjacency: zero-out, for which every pair is known.

    Args:
        interval: Step of the grid of losses, which are rounded upwards.
    """
    return float(losses(mechanisms, interval).get_epsilon_for_delta(delta))


def poisson_epsilon(mechanisms: Sequence[Mechanism], delta: float, interval: float) -> float:
    """Return what dp_accounting's `PLDAccountant` returns for Poisson-sampled Gaussian sums; adjacency: add or remove.

    Args:
        interval: Step of the grid of losses, which are rounded upwards.
    """
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415

    total = privacy_loss_distribution.identity(interval)
    for mechanism in mechanisms:
        total = total.compose(_repeated(_loss(mechanism, interval), mechanism.steps))
    return float(total.get_epsilon_for_delta(delta))


def losses(mechanisms: Gaussians, interval: float) -> Any:
    """Return dp_accounting's privacy losses of all steps together, rounded upwards.

    Args:
        mechanisms: At least one.
        interval: Step of the grid of losses.
    """
    # A single step is not self-composed, since that costs as much as a search for its tails.
    each = ((_loss(m, interval), m.steps) for m in mechanisms)
    total, *others = (loss if steps == 1 else _repeated(loss, steps) for loss, steps in each)
    for other in others:
        total = total.compose(other)
    return total


def _repeated(loss: Any, steps: int) -> Any:
    """Return the privacy loss of `steps` equal releases together."""
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415

    if steps > SPARSE:
        # For a short list of losses, dp_accounting computes length^steps as an integer, which takes minutes for millions of steps.
        dense = loss._pmf_remove.to_dense_pmf(), loss._pmf_add.to_dense_pmf()
        loss = privacy_loss_distribution.PrivacyLossDistribution(*(dense[:1] if loss._symmetric else dense))
    return loss.self_compose(steps)


def _loss(mechanism: Mechanism | Mixture | Group, interval: float) -> Any:
    """Return the privacy loss of one step; for a mixture, of one round."""
    if isinstance(mechanism, Mixture):
        return _mixed(mechanism, interval)
    if isinstance(mechanism, Group):
        return _asymmetric(*mechanism.profiles, mechanism.least_noise, interval)
    sigma, rate = mechanism.noise_multiplier, mechanism.sampling_rate
    if mechanism.sampling == "visible" and rate < 1:
        seen = partial(_seen, sigma=sigma, rate=rate)
        return _asymmetric(seen, seen, sigma, interval)
    if mechanism.sampling == "fixed" and rate < 1:
        return _of_fixed_size(sigma, rate, interval)
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415

    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=interval
    )


def _mixed(mixture: Mixture, interval: float) -> Any:
    """Return the mixture of the privacy losses of each number of participations in one round.

    The loss of the least likely numbers, with a total probability below `UNLIKELY`, counts as infinite.
    """
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415

    weights = mixture.weights
    below, above = np.cumsum(weights), np.cumsum(weights[::-1])[::-1]
    counts = np.flatnonzero((below > UNLIKELY) & (above > UNLIKELY))
    one = losses(mixture.mechanisms, interval)
    nothing = privacy_loss_distribution.identity(interval)
    first = int(counts[0])
    several = [one.self_compose(first) if first else nothing]
    for _ in counts[1:]:
        several.append(several[-1].compose(one))
    chosen = weights[counts]
    revealed = max(0.0, 1.0 - float(chosen.sum()))
    removed = _average([loss._pmf_remove.to_dense_pmf() for loss in several], chosen, revealed)
    added = _average([loss._pmf_add.to_dense_pmf() for loss in several], chosen, revealed)
    return privacy_loss_distribution.PrivacyLossDistribution(removed, added)


def _average(several: list[Any], weights: Reals, revealed: float) -> Any:
    """Return the mixture of discrete losses on one grid.

    Args:
        revealed: Additional probability of an infinite loss.
    """
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415

    first = several[0]
    lowest = min(loss._lower_loss for loss in several)
    size = max(loss._lower_loss + loss.size for loss in several) - lowest
    total, infinite = np.zeros(size), revealed
    for loss, weight in zip(several, weights, strict=True):
        start = loss._lower_loss - lowest
        total[start : start + loss.size] += weight * loss._probs
        infinite += weight * loss._infinity_mass
    return pld_pmf.DensePLDPmf(first._discretization, lowest, total, infinite, True)


def _seen(epsilon: Reals, sigma: float, rate: float) -> Reals:
    """q H(N(s) || N(0)): a visible use with probability q, else no release."""
    s = 1 / sigma
    return np.asarray(rate * (ndtr(s / 2 - epsilon / s) - np.exp(epsilon + log_ndtr(-s / 2 - epsilon / s))))


def _of_fixed_size(sigma: float, rate: float, interval: float) -> Any:
    removing, adding = (partial(divergence, sigma=sigma, rate=rate) for divergence in (_removed, _added))
    return _asymmetric(removing, adding, sigma, interval)


def _asymmetric(removing: Divergence, adding: Divergence, sigma: float, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415  (takes a second)

    removed = _loss_mass(removing, adding, sigma, interval)
    added = _loss_mass(adding, removing, sigma, interval)
    return privacy_loss_distribution.PrivacyLossDistribution(removed, added)


def _loss_mass(above: Divergence, below: Divergence, sigma: float, interval: float) -> Any:
    """Return a discrete privacy loss whose H is `above` for epsilon >= 0 and follows from `below` by symmetry for epsilon < 0."""
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415

    # Both ratios of densities stay below max(1, N(s) / N(0)), which bounds the loss up to the tail.
    count = math.ceil(largest_loss(sigma) / interval) + 1
    grid = interval * np.arange(count + 1, dtype=np.float64)
    upper, lower = above(grid), below(grid)
    # The upper tail counts as infinite loss, and the lower tail as the smallest loss on the grid.
    upper, lower = upper[: _kept(upper)], lower[1 : _kept(lower)]
    losses = grid[1 : lower.size + 1]
    deltas = np.concatenate([(-np.expm1(-losses) + np.exp(-losses) * lower)[::-1], upper])
    falling = np.clip(np.minimum.accumulate(deltas), 0.0, 1.0)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -lower.size, upper.size - 1, falling)


def _kept(divergences: Reals) -> int:
    kept = int(np.count_nonzero(divergences > NEGLIGIBLE))
    # A divergence with a last loss falls to 0 at once, and the mass behind the last kept epsilon would count as infinite loss.
    sudden = 0 < kept < divergences.size and divergences[kept - 1] > SUDDEN
    return max(2, kept + sudden)
