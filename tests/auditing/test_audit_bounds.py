"""Statistics of an audit: closed forms, published figures, and how often a bound is wrong."""

import math

import numpy as np
import pytest
from scipy import stats

from leakbench.auditing.bounds import (
    Rates,
    both_ways,
    direct_epsilon,
    gaussian_shift,
    lower_limit,
    upper_limit,
)
from leakbench.auditing.family import family_epsilon, gaussian_epsilon
from leakbench.auditing.trials import Scores, drawn
from leakbench.auditing.verdict import lower_bounds
from leakbench.core.rng import generator
from leakbench.privacy.accountants import pld
from leakbench.privacy.mechanism import Mechanism

DELTA = 1e-5


def test_clopper_pearson_has_its_closed_forms() -> None:
    """No success in n: 1 - alpha^(1/n); only successes: alpha^(1/n); else the binomial tail at the limit is alpha."""
    assert upper_limit(0, 1000, 0.05) == pytest.approx(1 - 0.05**0.001)
    assert lower_limit(1000, 1000, 0.05) == pytest.approx(0.05**0.001)
    assert lower_limit(0, 1000, 0.05) == 0
    assert upper_limit(1000, 1000, 0.05) == 1
    for k in (1, 17, 99):
        assert stats.binom.sf(k - 1, 100, float(lower_limit(k, 100, 0.01))) == pytest.approx(0.01)
        assert stats.binom.cdf(k, 100, float(upper_limit(k, 100, 0.01))) == pytest.approx(0.01)


def test_limits_equal_scipy_intervals() -> None:
    """A two-sided interval at 90 % equals two one-sided limits at 5 %."""
    interval = stats.binomtest(13, 200).proportion_ci(0.90, "exact")
    assert lower_limit(13, 200, 0.05) == pytest.approx(interval.low)
    assert upper_limit(13, 200, 0.05) == pytest.approx(interval.high)


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_randomised_response_is_bounded_by_its_own_epsilon(epsilon: float) -> None:
    """Its rates are e^epsilon / (1 + e^epsilon) and 1 / (1 + e^epsilon), for which the direct bound is exact."""
    odds = math.exp(epsilon)
    assert direct_epsilon(Rates(1 / (1 + odds), odds / (1 + odds)), 0.0) == pytest.approx(epsilon)
    assert direct_epsilon(Rates(0.5, 0.5), 0.0) == 0


@pytest.mark.parametrize("sigma", [0.5, 1.0, 6.0])
def test_rates_of_a_gaussian_give_back_its_epsilon(sigma: float) -> None:
    """(FPR, TPR) at any threshold invert to mu = 1 / sigma, and mu to the accountant's epsilon."""
    for threshold in (-0.3, 0.4, 2.0):
        rates = Rates(stats.norm.sf(threshold), stats.norm.sf(threshold - 1 / sigma))
        assert gaussian_shift(rates) == pytest.approx(1 / sigma)
        found = family_epsilon((rates, Rates(0.5, 0.5)), Mechanism(1.0, 1.0, 1), DELTA)
        assert found == pytest.approx(pld((Mechanism(sigma, 1.0, 1),), DELTA), abs=2e-3)
    assert gaussian_epsilon(0.0, DELTA) == 0


@pytest.mark.parametrize(("sigma", "direct", "family", "truth"), [(6.0, 0.38, 0.565, 0.594), (1.0, 3.0, 4.34, 4.377)])
def test_one_gaussian_release_reaches_the_reference(sigma: float, direct: float, family: float, truth: float) -> None:
    """2 x 10^6 trials: within the family as an independent implementation; directly less, since only half of the trials bound.

    Expected without choosing a threshold: .380 at sigma 6 (.435 with twice the trials and a limit at 2.5 %).
    """
    mechanism = Mechanism(sigma, 1.0, 1)
    lower, within = lower_bounds(drawn(mechanism, 1_000_000, generator(1, "test")), DELTA, mechanism)
    assert within is not None
    assert lower == pytest.approx(direct, rel=0.12)
    assert within == pytest.approx(family, rel=0.03)
    assert lower < within < truth == pytest.approx(gaussian_epsilon(1 / sigma, DELTA), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "visible"])
def test_subsampled_runs_stay_below_the_truth_and_come_near_it(sampling: str) -> None:
    """10 releases at q = 0.3: the sum over the run finds at least half of the epsilon."""
    mechanism = Mechanism(2.0, 0.3, 10, sampling)  # type: ignore[arg-type]
    truth = pld((mechanism,), DELTA)
    lower, within = lower_bounds(drawn(mechanism, 200_000, generator(0, "test")), DELTA, mechanism)
    assert within is not None
    assert 0 < lower < truth
    assert 0.5 * truth < within < truth
    assert within > lower


def test_fed_sdp_over_100_rounds_reaches_the_reference() -> None:
    """q = .1, sigma = 6, 100 steps, linear score: .588 to .605 of the true .616 with 4e6 trials; here with 1e6."""
    mechanism = Mechanism(6.0, 0.1, 100)
    lower, within = lower_bounds(drawn(mechanism, 1_000_000, generator(0, "test")), DELTA, mechanism)
    assert within is not None
    assert 0.36 < lower < 0.616
    assert 0.55 < within < 0.616


def test_audits_are_wrong_in_at_most_five_of_a_hundred() -> None:
    """Randomised response, where the direct bound is tight, and a Gaussian in its family: 200 small audits of each."""
    rng = np.random.default_rng(0)
    epsilon, wrong, shift, too_far = 1.0, 0, 0.5, 0
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    for _ in range(200):
        present, absent = ((rng.random(2000) < p).astype(float) for p in (chance, 1 - chance))
        wrong += lower_bounds(Scores(present, absent), 0.0, None)[0] > epsilon
        normal = both_ways(rng.standard_normal(2000) + shift, rng.standard_normal(2000), gaussian_shift)
        too_far += max(float(gaussian_shift(r)) for r in normal) > shift
    assert wrong <= 10
    assert too_far <= 10


def test_bounds_are_not_vacuous() -> None:
    """The same randomised response: a bound of at least two thirds of the truth from 2 x 20,000 trials."""
    rng = np.random.default_rng(1)
    chance = math.exp(1) / (1 + math.exp(1))
    scores = Scores(*((rng.random(20_000) < p).astype(float) for p in (chance, 1 - chance)))
    assert 0.66 < lower_bounds(scores, 0.0, None)[0] < 1


def test_equal_worlds_give_an_epsilon_of_zero() -> None:
    """If the canary has no effect, no epsilon is claimed, also with ties."""
    same = np.zeros(1000)
    assert lower_bounds(Scores(same, same), DELTA, None) == (0.0, None)
    noise = np.random.default_rng(0).standard_normal((2, 1000))
    assert lower_bounds(Scores(*noise), DELTA, Mechanism(1.0, 1.0, 1))[0] == 0


def test_fixed_size_sampling_is_audited_at_its_worst_pair() -> None:
    """The example that replaces the canary points against it: each use moves the sum by 2, and its absence by 1."""
    scores = drawn(Mechanism(0.01, 0.1, 100, "fixed"), 2000, generator(0, "test"))
    assert scores.present.mean() == pytest.approx(20, rel=0.03)
    assert scores.absent.mean() == pytest.approx(10, rel=0.03)
