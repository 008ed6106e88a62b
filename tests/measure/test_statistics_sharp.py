"""Details of intervals that general laws do not check: confidence, lost trials as failures, ends of ranges, defaults."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm, t

from leakbench.measure.statistics import (
    difference_interval,
    exact,
    exact_low,
    mean_interval,
    median_interval,
    paired_means,
    paired_shares,
    proportion,
    wilson,
)

OUTCOMES = np.array([1, 0, 0, 1, 0, 0, 0, 1, 0, 0], dtype=float)
PAIRS = np.repeat(np.arange(5), 2)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    "interval",
    [
        lambda confidence: proportion(OUTCOMES, PAIRS, confidence),
        lambda confidence: exact(OUTCOMES, PAIRS, confidence),
        lambda confidence: mean_interval(OUTCOMES, confidence),
        lambda confidence: mean_interval(np.full(10, 0.4), confidence),
        lambda confidence: difference_interval(OUTCOMES - 0.2, confidence),
        lambda confidence: paired_shares(OUTCOMES, 1 - OUTCOMES, PAIRS, rng(), confidence=confidence),
        lambda confidence: paired_means(OUTCOMES, OUTCOMES / 3, PAIRS, rng(), confidence=confidence),
    ],
)
def test_less_confidence_gives_a_narrower_interval_at_both_ends(interval):
    middle, low, high = interval(0.95)
    same, nearer, less = interval(0.6)
    assert same == middle and low < nearer < middle < less < high


def test_the_default_confidence_is_95_percent():
    assert exact_low(OUTCOMES, np.arange(10)) == exact_low(OUTCOMES, np.arange(10), 0.95) > 0
    assert exact(OUTCOMES, PAIRS) == exact(OUTCOMES, PAIRS, 0.95)


def test_a_lost_trial_is_a_failure_in_an_exact_limit():
    lost = np.array([1, 1, np.nan, np.nan])
    assert exact_low(lost, np.arange(4)) == exact_low(np.nan_to_num(lost), np.arange(4)) < exact_low([1, 1], [0, 1])
    assert exact_low([], []) == 0.0


def test_few_clusters_widen_the_interval_by_students_quantiles():
    """If clusters vary like their members the design effect is 1; only the squared correction for few clusters remains."""
    _, low, high = proportion(OUTCOMES, PAIRS)
    few = (t.ppf(0.975, 9) / t.ppf(0.975, 4)) ** 2
    sums = OUTCOMES.reshape(5, 2).sum(1)
    between = 5 / 4 * ((sums - 2 * 0.3) ** 2).sum() / 100
    trials = few * 10 / max(1.0, between / (0.21 / 9))
    assert (low, high) == pytest.approx(wilson(0.3 * trials, trials))


def test_zero_trials_give_no_bound():
    for found, low, high in (
        (proportion([], []), 0.0, 1.0),
        (mean_interval([]), 0.0, 1.0),
        (paired_shares([], [], [], rng()), -1.0, 1.0),
        (paired_means([], [], [], rng()), -1.0, 1.0),
        (median_interval([]), -math.inf, math.inf),
        (difference_interval([]), -math.inf, math.inf),
    ):
        assert math.isnan(found[0]) and found[1:] == (low, high)


def test_one_value_has_no_spread():
    assert mean_interval([0.4]) == (0.4, *wilson(0.4, 1))
    assert mean_interval([0.25] * 4) == (0.25, *wilson(1, 4))
    assert difference_interval([3.0]) == (3.0, -math.inf, math.inf)


def test_a_difference_has_students_interval():
    values = np.array([-4.0, 1.0, 2.5, 7.0])
    half = t.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert difference_interval(values) == pytest.approx((1.625, 1.625 - half, 1.625 + half))
    assert difference_interval([1.0, 3.0])[1:] == pytest.approx((2 - t.ppf(0.975, 1), 2 + t.ppf(0.975, 1)))


def test_the_number_of_draws_and_the_generator_are_arguments(monkeypatch):
    drawn = []
    real = torch.randint

    def counted(high, size, *, generator):
        assert generator is passed
        drawn.append(size)
        return real(high, size, generator=generator)

    monkeypatch.setattr(torch, "randint", counted)
    for paired, number in ((paired_shares, 5 + 3), (paired_means, 5)):
        for draws, sizes in ((2500, [1000, 1000, 500]), (None, [1000] * 10)):
            passed = rng()
            drawn.clear()
            paired(OUTCOMES, 1 - OUTCOMES, PAIRS, passed, **({"draws": draws} if draws else {}))
            assert drawn == [(size, number) for size in sizes]


def test_means_use_the_level_at_which_the_normal_quantile_equals_students():
    n = 12
    values = np.linspace(0, 1, n)
    tail = norm.cdf(-math.sqrt(n / (n - 1)) * t.ppf(0.975, n - 1))
    means = values[picks(n)].mean(1)
    low, high = np.quantile(means, [tail, 1 - tail])
    assert paired_means(values, np.zeros(n), np.arange(n), rng())[1:] == pytest.approx((low, high))


def picks(n: int) -> np.ndarray:
    passed = rng()
    return np.concatenate([torch.randint(n, (1000, n), generator=passed).numpy() for _ in range(10)])


def test_a_median_of_failures_is_infinite_and_ranks_include_equality():
    assert median_interval([0.1, np.nan, np.nan, np.inf])[0] == math.inf
    assert median_interval([0.2, 0.3])[0] == 0.25
    # Six values: one tail of a median is 1 / 64, so at 1 - 2 / 64 the first and last value are the ends.
    values = np.arange(6.0)
    assert binom.cdf(0, 6, 0.5) == 1 / 64
    assert median_interval(values, 1 - 2 / 64) == (2.5, 0.0, 5.0)
    assert median_interval(values, 1 - 1.9 / 64) == (2.5, -math.inf, math.inf)
