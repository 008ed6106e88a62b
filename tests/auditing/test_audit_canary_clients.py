"""The estimate of epsilon from canary clients in random directions: closed forms, slow references and published settings."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from leakbench.auditing.canary_clients import (
    cosines,
    estimate_epsilon,
    gaussians_delta,
    gaussians_epsilon,
    random_directions,
)
from leakbench.auditing.family import gaussian_epsilon
from leakbench.core.errors import InputError
from leakbench.core.rng import generator

DELTA = 1e-6

PUBLISHED = ((4.22, 1.0), (1.54, 3.0), (0.541, 10.0))
"""(sigma, epsilon at delta 1e-6) of the Gaussian mechanisms of Andrew et al. 2023, with k = 1000 canaries and d = 10^6."""


def mechanism_cosines(rng: np.random.Generator, canaries: int, dimension: int, sigma: float) -> np.ndarray:
    """Return the cosines of k random canaries with the sum of all canaries and noise, without the d coordinates.

    <c_j, sum> is 1 + N(0, (k - 1) / d) + sigma N(0, 1), and |sum|^2 is about k + d sigma^2.
    """
    crossed = np.sqrt((canaries - 1) / dimension + sigma**2) * rng.standard_normal(canaries)
    return (1 + crossed) / math.sqrt(canaries + dimension * sigma**2)


@pytest.mark.parametrize("mean", [0.0, 0.3, 2.0, -1.5])
@pytest.mark.parametrize("std", [0.6, 0.999, 1.0, 1.4])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_divergence_equals_its_integral(mean: float, std: float, epsilon: float) -> None:
    """The larger of both integrals of max(p - e^epsilon q, 0)."""
    one, null = stats.norm(mean, std), stats.norm()

    def integral(p: stats.rv_continuous, q: stats.rv_continuous) -> float:
        grid = np.linspace(-15, 15, 200_001)
        return float(integrate.trapezoid(np.maximum(p.pdf(grid) - math.exp(epsilon) * q.pdf(grid), 0), grid))

    expected = max(integral(one, null), integral(null, one))
    assert gaussians_delta(epsilon, mean, std) == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize(("sigma", "printed"), PUBLISHED)
def test_equal_variances_give_the_analytic_gaussian(sigma: float, printed: float) -> None:
    """N(1 / sigma, 1) against N(0, 1) is the Gaussian mechanism, whose epsilons the paper prints."""
    found = gaussians_epsilon(1 / sigma, 1.0, DELTA)
    assert found == pytest.approx(gaussian_epsilon(1 / sigma, DELTA), abs=1e-6)
    assert found == pytest.approx(printed, abs=0.01)


@pytest.mark.parametrize(("sigma", "printed"), PUBLISHED)
def test_estimates_of_the_gaussian_mechanism_are_too_large_and_less_so_with_more_canaries(
    sigma: float, printed: float
) -> None:
    """50 trainings in the paper's setting: by 0.4 to 0.7 with its 1,000 canaries, and by at least twice as much with 200.

    A fitted standard deviation differs from the null's by chance, which adds to the larger of both divergences.
    """
    rng = np.random.default_rng(0)

    def found(canaries: int) -> np.ndarray:
        each = (mechanism_cosines(rng, canaries, 10**6, sigma) for _ in range(50))
        return np.array([estimate_epsilon(e, DELTA, "client", 10**6).estimate for e in each])

    few, many = found(200), found(1000)
    assert 0.3 < np.mean(many) - printed < 0.8
    assert np.mean(few) - printed > 1.8 * (np.mean(many) - printed)
    assert np.mean(few > printed) > 0.8  # Not a lower bound: nearly every estimate is above the epsilon.


def test_limits_contain_the_truth_of_a_gaussian_mechanism() -> None:
    """In at least 95 % of 200 trainings the limits contain its epsilon."""
    rng, inside = np.random.default_rng(2), 0
    for _ in range(200):
        found = estimate_epsilon(mechanism_cosines(rng, 100, 10**6, 1.54), DELTA, "client", 10**6)
        inside += found.low <= gaussian_epsilon(1 / 1.54, DELTA) <= found.high
        assert found.low <= found.estimate <= found.high
    assert inside >= 190


def test_cosines_of_real_vectors_follow_the_model() -> None:
    """200 canaries in 4,000 coordinates: the included ones estimate the mechanism, and others have cosines of N(0, 1/d)."""
    rng = generator(0, "test")
    directions = random_directions(400, 4000, rng)
    included, left_out = directions[:200], directions[200:]
    released = included.sum(0) + 0.5 * torch.randn(4000, generator=rng)
    null = cosines(left_out, released)
    assert stats.kstest(null * math.sqrt(4000), "norm").pvalue > 0.01
    found = estimate_epsilon(cosines(included, released), DELTA, "client", 4000)
    # Each canary is noise for the others: sigma^2 + (k - 1) / d.
    assert found.low < gaussian_epsilon(1 / math.sqrt(0.25 + 199 / 4000), DELTA) < found.high
    assert found.canaries == 200


def test_the_largest_cosine_of_all_rounds_needs_left_out_canaries() -> None:
    """The largest cosine with 10 rounds of noise is not centred at 0, so N(0, 1/d) gives a large epsilon without any leak."""
    rng = generator(1, "test")
    directions, rounds = random_directions(600, 2000, rng), torch.randn(10, 2000, generator=rng)
    largest = cosines(directions, rounds)
    assert largest.shape == (600,)
    assert largest == pytest.approx(cosines(directions, rounds.flip(0)))
    fitted = estimate_epsilon(largest[:300], DELTA, "client", left_out=largest[300:])
    assumed = estimate_epsilon(largest[:300], DELTA, "client", 2000)
    assert fitted.low < 0.1
    assert assumed.estimate > 3 * fitted.estimate + 1


def test_the_text_calls_it_an_estimate() -> None:
    """It says that the number is not a bound, what the limits cover, and the test of normality."""
    found = estimate_epsilon(mechanism_cosines(np.random.default_rng(0), 50, 10**6, 1.0), DELTA, "client", 10**6)
    assert "estimate epsilon" in str(found)
    assert "not a bound" in str(found)
    assert found.normality > 0.001
    skewed = np.random.default_rng(0).exponential(size=200) / 1000
    assert estimate_epsilon(skewed, DELTA, "client", 10**6).normality < 1e-6
    assert found.as_dict()["unit"] == "client"


def test_wrong_input_is_refused() -> None:
    """Too few or equal cosines, a small dimension, no null distribution, and an update of zeros."""
    some = np.linspace(0, 0.1, 20)
    with pytest.raises(InputError, match="included: got an array of shape"):
        estimate_epsilon(some[:3], DELTA, "client", 10**6)
    with pytest.raises(InputError, match="included: got equal cosines"):
        estimate_epsilon(np.zeros(20), DELTA, "client", 10**6)
    with pytest.raises(InputError, match="dimension: got 50"):
        estimate_epsilon(some, DELTA, "client", 50)
    with pytest.raises(InputError, match="dimension: expected either"):
        estimate_epsilon(some, DELTA, "client")
    with pytest.raises(InputError, match="delta, confidence"):
        estimate_epsilon(some, 0.0, "client", 10**6)
    with pytest.raises(InputError, match="released: got an update that is zero"):
        cosines(torch.eye(4), torch.zeros(4))
