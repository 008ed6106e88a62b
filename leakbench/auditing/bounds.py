"""Statistics of an audit: from the scores of trials to error rates with confidence, and to a bound without assumptions.

A trial releases with a canary or without it, and a score guesses which. (epsilon, delta) limits every guess:
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
"""One-sided limits behind one audit, among which its 5 % are split: 2 rates x 2 directions x 2 bounds."""


@dataclass(frozen=True)
class Rates:
    """Limits of one guess, any shape: its false positive rate is at most, its true positive rate at least this."""

    false_positive: Any
    true_positive: Any


def lower_limit(successes: Any, trials: int, alpha: float) -> Any:
    """Return the one-sided Clopper-Pearson limit: the probability is below it in at most a share `alpha` of all audits."""
    k = np.asarray(successes, dtype=np.float64)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), trials - np.maximum(k, 1) + 1, alpha), 0.0)


def upper_limit(successes: Any, trials: int, alpha: float) -> Any:
    """Return the mirror image of `lower_limit`: the probability is above it in at most a share `alpha`."""
    return 1.0 - lower_limit(trials - np.asarray(successes), trials, alpha)


def direct_epsilon(rates: Rates, delta: float) -> Any:
    """Return ln((TPR - delta) / FPR), at least 0: an epsilon that no mechanism with these rates can stay below."""
    above = np.maximum(rates.true_positive - delta, 1e-300)
    return np.maximum(np.log(above / np.maximum(rates.false_positive, 1e-300)), 0.0)


def gaussian_shift(rates: Rates) -> Any:
    """Return mu = Phi^-1(TPR) - Phi^-1(FPR): the least shift of a unit Gaussian that allows these rates (Dong et al. 2022)."""
    return np.maximum(ndtri(rates.true_positive) - ndtri(rates.false_positive), 0.0)


def both_ways(present: Reals, absent: Reals, objective: Objective) -> tuple[Rates, Rates]:
    """Return the rates of a guess `the canary is there` and of `it is not`, each at the threshold that promises most.

    Args:
        present: (n,) scores of independent trials with and without the canary, high where it seems to be there.
        absent: (n,) scores of independent trials with and without the canary, high where it seems to be there.
        objective: What a threshold is chosen by, on the first half of the trials; the second half, which had no part in the
            choice, gives the limits. Each of the rates that are returned holds at 1 - 0.05 / 8.
    """
    alpha = (1 - CONFIDENCE) / LIMITS
    return _held_out(present, absent, objective, alpha), _held_out(-absent, -present, objective, alpha)


def _held_out(positive: Reals, negative: Reals, objective: Objective, alpha: float) -> Rates:
    first, last = (positive[::2], negative[::2]), (positive[1::2], negative[1::2])
    grid = _thresholds(*first)
    # A dense search finds the luckiest threshold, not the best one: few thresholds, and each pays for all.
    chosen = int(np.argmax(objective(_rates(*first, grid, alpha / len(grid)))))
    rates = _rates(*last, grid[chosen : chosen + 1], alpha)
    return Rates(float(rates.false_positive[0]), float(rates.true_positive[0]))


def _thresholds(positive: Reals, negative: Reals, each: int = 50) -> Reals:
    """Return 2 * each thresholds: geometric in the upper tail of the negatives and in the lower tail of the positives."""
    tails = np.geomspace(min(5 / len(negative), 0.1), 0.6, each)
    upper = np.quantile(negative, 1 - tails, method="higher")
    return np.concatenate([upper, np.quantile(positive, tails, method="lower")])


def _rates(positive: Reals, negative: Reals, thresholds: Reals, alpha: float) -> Rates:
    def above(scores: Reals) -> Any:
        return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")

    return Rates(upper_limit(above(negative), len(negative), alpha), lower_limit(above(positive), len(positive), alpha))
