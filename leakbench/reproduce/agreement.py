"""The test whether a printed number agrees with what was measured, and Holm's correction for all tests of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr

from leakbench.measure.statistics import student_quantile, wilson

__all__ = ["LEVEL", "UNKNOWN", "Agreement", "agreement", "holm", "mean_test"]

LEVEL = 0.01
"""Largest probability that a page calls any number contradicted although every null hypothesis is true."""


@dataclass(frozen=True)
class Agreement:
    """Result of one test.

    Args:
        p: Two-sided p-value, NaN where the spread over units is unknown.
        low: 95 % interval of the difference, measured minus printed.
        high: 95 % interval of the difference, measured minus printed.
    """

    p: float
    low: float
    high: float


UNKNOWN = Agreement(math.nan, -math.inf, math.inf)


def agreement(
    value: float, low: float, high: float, units: int, printed: float, half: float, samples: int | None, looks: int = 1
) -> Agreement:
    """Test whether a printed share may be the result of one more unit of those that were measured.

    Null hypothesis: the printed share was measured on one more unit (a training with another seed, or an attack on another
    network) of the population of the measured units, on `samples` independent examples, and rounded. The shares of units
    are spread normally, or their log-odds are. Papers seldom say over how many units they average; one contradicts least.
    The sampling error of the examples is counted for both numbers: trainings share one test set, so their spread does not
    show it. Each statistic, on shares and on log-odds, is compared with Student's distribution of units - 1 degrees of
    freedom, and the larger p-value counts: on shares alone, units whose spread is skewed near 0 or 1 are contradicted on
    up to a tenth of all pages.

    Args:
        value: mean over the units, in [0, 1].
        low: lower end of its 95 % interval.
        high: upper end. The standard error is the longer side over Student's quantile, since an end may be cut at 0 or 1.
        units: number of independent units.
        printed: the paper's number, in [0, 1].
        half: half of its last printed digit, above 0.
        samples: number of examples behind the printed number; None where the paper does not give it, and then no sampling
            error is counted.
        looks: after how many numbers of units the test is made, each with this correction: p is multiplied by it, and the
            interval has the level 1 - .05 / looks (Bonferroni), so that the first result that decides may end the measurement.

    Returns:
        The p-value and the interval. p is NaN where the spread over units is unknown: for fewer than two units, units that do
        not differ, and an interval that covers every share.

    References:
        Hahn and Meeker, Statistical Intervals, 1991, section 4.8 (prediction of a further value).
    """
    alike = wilson(value * units, units)  # The interval of units that do not differ, see `mean_interval`.
    if units < 2 or (low <= 0 and high >= 1) or math.dist((low, high), alike) < 1e-9:
        return UNKNOWN
    quantile = student_quantile(0.975, units - 1)
    spread = max(value - low, high - value) / quantile * math.sqrt(1 + units)
    examples = 0.0 if samples is None else 1 / samples
    wide = student_quantile(1 - 0.025 / looks, units - 1)
    difference = value - printed
    error = math.hypot(spread, math.sqrt(2 * examples * max(_variance(value), _variance(printed))))
    # Rounding may have moved the printed number towards the measured one or away from it.
    nearest = printed + math.copysign(min(half, abs(difference)), difference)
    # Log-odds of 0 and 1 are infinite. Shares that differ by less than rounding or one example are not told apart.
    edge = max(half, examples / 2)
    here, there = (min(max(share, edge), 1 - edge) for share in (value, nearest))
    of_odds = math.hypot(spread / _variance(here), math.sqrt(examples / _variance(here) + examples / _variance(there)))
    p = max(
        _two_sided(value - nearest, error, units),
        _two_sided(_log_odds(here) - _log_odds(there), of_odds, units),
    )
    return Agreement(min(1.0, looks * p), difference - wide * error, difference + wide * error)


def mean_test(value: float, low: float, high: float, units: int) -> Agreement:
    """Test whether the mean of differences over units is 0, by Student's t.

    Args:
        value: mean of the differences.
        low: lower end of its 95 % t interval.
        high: upper end.
        units: number of independent differences.

    Returns:
        The p-value and the interval. p is NaN for fewer than two units, and for differences without any spread.
    """
    if units < 2 or not math.isfinite(high - low) or high == low:
        return Agreement(math.nan, low, high)
    error = (high - low) / 2 / student_quantile(0.975, units - 1)
    return Agreement(_two_sided(value, error, units), low, high)


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values adjusted for all tests of a page (Holm, Scandinavian Journal of Statistics 6, 1979), in their order.

    NaN stays NaN; it counts as a test.
    """
    adjusted, least = [math.nan] * len(ps), 0.0
    for rank, (p, place) in enumerate(sorted((p, place) for place, p in enumerate(ps) if not math.isnan(p))):
        least = max(least, min(1.0, p * (len(ps) - rank)))
        adjusted[place] = least
    return adjusted


def _variance(share: float) -> float:
    return share * (1 - share)


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def _two_sided(distance: float, error: float, units: int) -> float:
    """Return the two-sided p-value; an error of 0 states that the spread is unknown, not that it is 0."""
    if distance == 0:
        return 1.0
    return float(2 * stdtr(units - 1, -abs(distance) / error)) if error > 0 else math.nan
