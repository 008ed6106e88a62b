"""The posterior mean under a Gaussian of public examples, against dense formulas and a sample."""

import math

import pytest
import torch

from leakbench.attack.search.shrinkage import shrinkage_of


@pytest.mark.parametrize("many", [5, 40])
def test_it_equals_the_posterior_mean_of_the_dense_formula(many):
    rng = torch.Generator().manual_seed(0)
    public = torch.rand(many, 8, generator=rng, dtype=torch.float64)
    read, variance = (
        torch.rand(3, 4, 8, generator=rng, dtype=torch.float64),
        torch.tensor([1e-4, 0.01, 0.1, 1.0]).double(),
    )
    prior = shrinkage_of(public)
    covariance = torch.cov(public.T, correction=0) + prior.rest * torch.eye(8).double()
    found = prior(read, variance.expand(3, 4))
    for place, noise in enumerate(variance):
        gain = covariance @ torch.linalg.inv(covariance + noise * torch.eye(8).double())
        expected = public.mean(0) + (read[:, place] - public.mean(0)) @ gain.T
        torch.testing.assert_close(found[:, place], expected)


def test_without_noise_it_equals_the_reading():
    public = torch.rand(6, 5, generator=torch.Generator().manual_seed(1))
    read = torch.rand(2, 5, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(shrinkage_of(public)(read, torch.zeros(2)), read, rtol=0, atol=1e-5)


def test_the_expected_error_equals_that_of_a_sample():
    rng = torch.Generator().manual_seed(3)
    prior = shrinkage_of(torch.rand(30, 12, generator=rng, dtype=torch.float64))
    truth, variance = torch.rand(12, generator=rng, dtype=torch.float64), torch.tensor(0.02).double()
    read = truth + variance.sqrt() * torch.randn(20_000, 12, generator=rng, dtype=torch.float64)
    errors = (prior(read, variance.expand(20_000)) - truth).square().sum(1)
    mean, spread = (float(moment) for moment in prior.error(truth, variance))
    assert abs(float(errors.mean()) - mean) < 4 * float(errors.std()) / 20_000**0.5
    assert abs(float(errors.var()) / spread - 1) < 0.05


def test_few_examples_do_not_make_it_overconfident():
    """With a white Gaussian and fewer examples than values, unobserved directions keep a variance of the same order."""
    public = 0.5 + 0.2 * torch.randn(20, 60, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert 0.01 < shrinkage_of(public).rest < 0.11
    many = torch.randn(4000, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert shrinkage_of(many @ torch.diag(torch.tensor([0.3, 0.1, 1e-3]).double())).rest <= 1e-4


@pytest.mark.parametrize("many", [5, 40])
def test_its_density_equals_that_of_the_dense_covariance(many):
    """For an input read in noise, whether or not the examples span all directions; and along a functional."""
    rng = torch.Generator().manual_seed(6)
    public = torch.rand(many, 8, generator=rng, dtype=torch.float64)
    read, functional = (torch.rand(*n, generator=rng, dtype=torch.float64) for n in ((3, 8), (8,)))
    variance, prior = torch.tensor([1e-4, 0.1, 3.0]).double(), shrinkage_of(public)
    covariance = torch.cov(public.T, correction=0) + prior.rest * torch.eye(8).double()
    dense = torch.distributions.MultivariateNormal(
        public.mean(0), covariance + variance[:, None, None] * torch.eye(8).double()
    )
    torch.testing.assert_close(prior.unlikelihood(read, variance) + 4 * math.log(2 * math.pi), -dense.log_prob(read))
    mean, spread = prior.along(functional)
    torch.testing.assert_close(mean, functional @ public.mean(0))
    torch.testing.assert_close(spread, functional @ covariance @ functional)
