"""Reconstruction robustness: the largest probability with which any attack is right about one unit, given its releases.

An attacker without the release is right with probability at most kappa: one guess within the threshold, one candidate of k, one
label. An attacker with the release is right with probability at most gamma(kappa). This is the largest true-positive rate at
false-positive rate kappa of a test between the release with the unit and the release without it (Balle, Cherubin and Hayes, IEEE
S&P 2022, arXiv 2201.04845, Theorem 2; Hayes, Mahloujifar and Balle, NeurIPS 2023, arXiv 2302.07225, Theorem 2). The attacker is
assumed to know all other data, so gamma bounds one unit given the others. An epsilon comes from the error curve of the same test
(Neyman and Pearson). The computation does not sample, and rounds every step upwards.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from leakbench.core.errors import InputError
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.group import Group
from leakbench.privacy.mechanism import LEAST_NOISE, Gaussians, Mechanism, Mechanisms, Mixture, gathered, gaussians
from leakbench.privacy.pairs import TAIL, coarsest_needed, gaussian_delta, largest_loss, losses, uses_of
from leakbench.privacy.renyi import INTEGER_ORDERS, divergences

__all__ = ["Seen", "gaussian_robustness", "reconstruction_robustness"]

Reals = NDArray[np.float64]

GRID = 4001
"""Number of epsilons in the grid. Each gives an upper bound, so a coarse grid is loose but valid."""

UNRESOLVED = 1e-9
"""Probability beyond the largest epsilon of the grid, far below any kappa of a finite list of candidates."""

GRAIN = 1.01
"""Ratio of the grid to which different noise multipliers are rounded down."""

SURE = 40.0
"""Shift, in standard deviations, above which gamma = 1 for every kappa > 0 in double precision."""

SILENT = 1e-4
"""Shift, in standard deviations, below which no probability rises by more than 4e-5, even if the draws are known."""

LARGEST = 50.0
"""Largest epsilon of the grid: a larger one gives no bound for kappa > exp(-50), and one below -50 gives the bound 1."""


@dataclass(frozen=True)
class Seen:
    """The releases of one unit that an attacker has.

    Args:
        sigma: Noise divided by the unit's bound, in each of `releases` releases that certainly contain the unit.
        before: Earlier releases of the unit, such as the training of the model at which it leaks.
    """

    sigma: float
    releases: int
    before: Mechanisms = ()

    def robustness(self, kappas: ArrayLike) -> Reals:
        """Return gamma(kappa) of all releases together; see `reconstruction_robustness`."""
        return reconstruction_robustness(kappas, (*self.before, Mechanism(self.sigma, 1.0, self.releases)))


def gaussian_robustness(kappas: ArrayLike, shift: float) -> Reals:
    """Return gamma(kappa) = Phi(Phi^-1(kappa) + shift) of Gaussian releases that certainly contain the unit.

    Hayes et al. 2023, section 3; Dong, Roth and Su, JRSS B 2022, Corollary 3.3.

    Args:
        kappas: Any shape, in [0, 1].
        shift: Square root of the sum over the releases of (bound / standard deviation)^2, >= 0; sqrt(steps) / sigma for equal ones.
    """
    return np.asarray(ndtr(ndtri(_checked(kappas)) + shift), dtype=np.float64)


def reconstruction_robustness(kappas: ArrayLike, mechanisms: Mechanisms) -> Reals:
    """Return gamma(kappa) of all steps of several mechanisms together, in the shape of the kappas.

    The result is the larger one of both directions of the pair (the unit added, the unit removed).

    Args:
        kappas: Any shape, in [0, 1].

    Raises:
        InputError: For a kappa outside [0, 1].
        ArithmeticError: If the range of losses does not fit into memory; also MemoryError and ValueError.
    """
    levels, telling = _checked(kappas), [m for m in mechanisms if not m.idle]
    if any(m.noise_multiplier < LEAST_NOISE for m in telling):
        return np.ones_like(levels)
    if any(isinstance(m, DiscreteMechanism) for m in telling):
        return _by_divergences(levels, gathered(telling))
    known = gaussians(tuple(telling))
    certain = [m for m in known if isinstance(m, Mechanism) and m.sampling_rate == 1]
    shift = math.sqrt(sum(_most_shift(m) for m in certain))
    if shift > SURE:  # These releases alone reveal the unit. Composing the others with them would take hours.
        return np.where(levels > 0, 1.0, 0.0)
    sampled = gaussians(gathered(m for m in known if m not in certain))
    whole = math.hypot(shift, math.sqrt(sum(_most_shift(m) for m in sampled)))
    if not sampled or whole < SILENT:  # This bounds an attacker that also knows the draws.
        return gaussian_robustness(levels, whole)
    with np.errstate(all="ignore"):
        visible = uses_of(sampled[0]) if len(sampled) == 1 else None
        if visible is not None:
            epsilons, deltas = _visible(*visible, shift)
        else:
            kinds = gathered(sampled, GRAIN if len(sampled) > 1 else None)
            epsilons, deltas = _sampled(gaussians(kinds), shift)
        # P(E) <= delta(epsilon) + exp(epsilon) Q(E) for every epsilon, and the least of these is attained.
        rates = np.array([np.min(deltas + np.exp(epsilons) * kappa) for kappa in levels.flat])
    # An output of Gaussian noise that is possible with the unit is possible without it, so gamma(0) = 0 despite the grid.
    rates[levels.ravel() == 0] = 0.0
    return np.asarray(np.clip(rates, levels.ravel(), 1.0).reshape(levels.shape), dtype=np.float64)


def _by_divergences(levels: Reals, mechanisms: Mechanisms) -> Reals:
    """Return upper bounds of gamma from Rényi divergences: P(E) <= (exp(D) Q(E))^((a - 1) / a) at every order a.

    Mironov, CSF 2017, Proposition 10.
    """
    total = np.array([m.steps for m in mechanisms]) @ divergences(mechanisms)
    share = 1 - 1 / np.array(INTEGER_ORDERS)
    logs = np.log(np.where(levels > 0, levels, 1.0))[..., None]
    rates = np.exp(np.minimum(((logs + total) * share).min(-1), 0.0))
    return np.where(levels > 0, np.clip(rates, levels, 1.0), 0.0)


def _most_shift(mechanism: Mechanism | Mixture | Group) -> float:
    """Return the square of the shift if every release used the unit as often as possible."""
    if isinstance(mechanism, Mixture):
        most = (mechanism.weights.size - 1) * mechanism.steps
        return most * sum(_most_shift(m) for m in mechanism.mechanisms)
    return mechanism.steps / mechanism.noise_multiplier**2


def _checked(kappas: ArrayLike) -> Reals:
    levels = np.asarray(kappas, dtype=np.float64)
    if not ((levels >= 0) & (levels <= 1)).all():
        raise InputError(f"kappa: got {levels.tolist()}, expected probabilities in [0, 1]")
    return levels


def _sampled(mechanisms: Gaussians, shift: float) -> tuple[Reals, Reals]:
    """Return (epsilons, deltas) from the discrete privacy losses of dp_accounting, rounded upwards."""
    beside = (Mechanism(1 / shift, 1.0, 1),) if shift > 0 else ()
    total = losses((*mechanisms, *beside), max(_interval(m) for m in mechanisms))
    largest = float(total.get_epsilon_for_delta(UNRESOLVED))
    if not math.isfinite(largest):
        raise ArithmeticError("the privacy losses have no finite end")
    epsilons = _grid(largest)
    return epsilons, np.asarray(total.get_delta_for_epsilon(epsilons))


def _grid(largest: float) -> Reals:
    end = min(largest, LARGEST)
    return np.linspace(-end, end, GRID)


def _interval(mechanism: Mechanism | Mixture | Group) -> float:
    """Return the step of the grid of losses: a twentieth of the standard deviation of one step's loss.

    Rounding adds up to a quarter of the step squared to a variance, here 0.06 %. The grid is coarser if one mechanism step spans
    more than 20,000 grid steps, if the mean loss of all steps is more than 50,000 grid steps, or if memory requires it.
    """
    if isinstance(mechanism, Mixture):
        times = mechanism.steps * math.ceil(mechanism.holders * mechanism.per_round / mechanism.clients)
        return max(_interval(dataclasses.replace(m, steps=m.steps * times)) for m in mechanism.mechanisms)
    sigma, q = mechanism.noise_multiplier, mechanism.sampling_rate
    spread = q * math.sqrt(math.expm1(min(1 / sigma**2, 50.0)))
    alone = largest_loss(sigma)  # Its exponential overflows above 700.
    span = math.log1p(q * math.expm1(alone)) if alone < 700 else max(0.0, alone + math.log(q))
    mean = mechanism.steps * min(q * 0.5 / sigma**2, spread**2)
    return max(min(spread / 20, 0.01), span / 20_000, mean / 50_000, coarsest_needed(mechanism))


def _visible(sigma: float, uses: Reals, shift: float) -> tuple[Reals, Reals]:
    """Return (epsilons, deltas) if each use is visible, as the mean over the number of uses in closed form.

    Args:
        uses: Probabilities of 0, 1, 2, ... uses.
    """
    counts = np.flatnonzero(uses > UNRESOLVED * 1e-6 * uses.max())
    weights = uses[counts]
    shifts = np.hypot(np.sqrt(counts) / sigma, shift)
    largest = shifts[-1] ** 2 / 2 + TAIL * shifts[-1]
    epsilons = _grid(float(largest))
    nothing = np.maximum(0.0, -np.expm1(epsilons))  # The delta of two equal outputs.
    each = [w * (nothing if s == 0 else gaussian_delta(epsilons, s)) for w, s in zip(weights, shifts, strict=True)]
    return epsilons, np.sum(each, axis=0) + max(0.0, 1.0 - float(weights.sum()))
