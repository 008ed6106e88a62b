"""Statistics of an audit: error rates with confidence limits from the scores of trials, and a bound without assumptions.

A trial releases with or without a canary, and a score guesses which. (epsilon, delta) limits every guess:
TPR <= exp(epsilon) FPR + delta (Kairouz, Oh and Viswanath, ICML 2015, Theorem 2.1), in both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy.special import betaincinv, ndtri

from leakbench.privacy.renyi import Reals

__all__ = [
    "CONFIDENCE",
    "Rates",
    "Reals",
    "both_ways",
    "direct_epsilon",
    "gaussian_shift",
    "lower_limit",
    "upper_limit",
]

Objective: TypeAlias = Callable[["Rates"], Any]

CONFIDENCE = 0.95

LIMITS = 8
"""Number of one-sided limits in one audit, which share its 5 %: 2 rates x 2 directions x 2 bounds."""


@dataclass(frozen=True)
class Rates:
    """Confidence limits of one guess, any shape.

    Args:
        false_positive: Upper limit of the false positive rate.
        true_positive: Lower limit of the true positive rate.
    """

    false_positive: Any
    true_positive: Any


def lower_limit(successes: Any, trials: int, alpha: float) -> Any:
    """Return the one-sided Clopper-Pearson lower limit: the probability is below it in at most a share `alpha` of all audits.

    Args:
        successes: Numbers of successes, any shape.
    """
    k = np.asarray(successes, dtype=np.float64)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), trials - np.maximum(k, 1) + 1, alpha), 0.0)


def upper_limit(successes: Any, trials: int, alpha: float) -> Any:
    """Return the one-sided Clopper-Pearson upper limit: the probability is above it in at most a share `alpha` of all audits."""
    return 1.0 - lower_limit(trials - np.asarray(successes), trials, alpha)


def direct_epsilon(rates: Rates, delta: float) -> Any:
    """Return ln((TPR - delta) / FPR), at least 0: a lower bound on the epsilon of any mechanism with these rates."""
    above = np.maximum(rates.true_positive - delta, 1e-300)
    return np.maximum(np.log(above / np.maximum(rates.false_positive, 1e-300)), 0.0)


def gaussian_shift(rates: Rates) -> Any:
    """Return mu = Phi^-1(TPR) - Phi^-1(FPR), the least shift of a unit Gaussian with these rates (Dong et al. 2022)."""
    return np.maximum(ndtri(rates.true_positive) - ndtri(rates.false_positive), 0.0)


def both_ways(present: Reals, absent: Reals, objective: Objective) -> tuple[Rates, Rates]:
    """Return the rates of the guesses `the canary is present` and `the canary is absent`, each at its best threshold.

    One half of the trials chooses the threshold and the other half gives the limits. Each limit holds with confidence 1 - 0.05 / 8.

    Args:
        present: (n,), scores of independent trials with the canary; high scores suggest its presence.
        absent: (n,), scores of independent trials without the canary.
        objective: Function of the rates that the best threshold maximises.
    """
    alpha = (1 - CONFIDENCE) / LIMITS
    return _held_out(present, absent, objective, alpha), _held_out(-absent, -present, objective, alpha)


def _held_out(positive: Reals, negative: Reals, objective: Objective, alpha: float) -> Rates:
    first, last = (positive[::2], negative[::2]), (positive[1::2], negative[1::2])
    grid = _thresholds(*first)
    # A dense search would find a threshold that is best by chance, so the grid is small and its limits are corrected for its size.
    chosen = int(np.argmax(objective(_rates(*first, grid, alpha / len(grid)))))
    rates = _rates(*last, grid[chosen : chosen + 1], alpha)
    return Rates(float(rates.false_positive[0]), float(rates.true_positive[0]))


def _thresholds(positive: Reals, negative: Reals, each: int = 50) -> Reals:
    """Return 2 * each thresholds, geometric in the upper tail of the negatives and in the lower tail of the positives."""
    tails = np.geomspace(min(5 / len(negative), 0.1), 0.6, each)
    upper = np.quantile(negative, 1 - tails, method="higher")
    return np.concatenate([upper, np.quantile(positive, tails, method="lower")])


def _rates(positive: Reals, negative: Reals, thresholds: Reals, alpha: float) -> Rates:
    def above(scores: Reals) -> Any:
        return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")

    return Rates(upper_limit(above(negative), len(negative), alpha), lower_limit(above(positive), len(positive), alpha))
