"""Samplers of integer noise: chi-square against the probabilities, moments, and exact decisions of close draws."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.defense import integer_noise
from leakbench.defense.integer_noise import discrete_gaussian, skellam

DRAWS = 200_000


def gaussian_pmf(variance: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(-math.ceil(20 * math.sqrt(variance)) - 2, math.ceil(20 * math.sqrt(variance)) + 3)
    weights = np.exp(-(x**2) / (2 * variance))
    return x, weights / weights.sum()


def chi_square(samples: torch.Tensor, x: np.ndarray, pmf: np.ndarray) -> float:
    """Return the p-value of a chi-square test over the values that are expected at least 20 times, and the rest."""
    counts = np.bincount(samples.numpy() - x[0], minlength=len(x))
    assert counts.sum() == len(samples) and len(counts) == len(x)
    often = pmf * len(samples) >= 20
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(pmf[often], pmf[~often].sum()) * len(samples)
    kept = expected > 1e-6
    return float(stats.chisquare(observed[kept], expected[kept] * observed[kept].sum() / expected[kept].sum()).pvalue)


@pytest.mark.parametrize("variance", [0.05, 0.25, 1.0, 3.7, 40.0, 2500.0])
def test_discrete_gaussians_have_their_distribution(variance: float) -> None:
    x, pmf = gaussian_pmf(variance)
    samples = discrete_gaussian((DRAWS,), variance, generator(0, "noise", int(variance * 100)))
    assert chi_square(samples, x, pmf) > 1e-3
    true = float(pmf @ x**2)
    assert true <= variance * (1 + 1e-12)
    assert samples.double().mean() == pytest.approx(0, abs=4 * math.sqrt(true / DRAWS))
    assert samples.double().square().mean() == pytest.approx(
        true, rel=4 * math.sqrt(2 / DRAWS) if variance > 0.2 else 0.5
    )


@pytest.mark.parametrize("variance", [0.1, 1.0, 9.0, 60.0])
def test_skellam_noise_has_its_distribution(variance: float) -> None:
    x = np.arange(-300, 301)
    pmf = stats.skellam(variance / 2, variance / 2).pmf(x)
    samples = skellam((DRAWS,), variance, generator(1, "noise", int(variance * 100)))
    assert chi_square(samples, x, pmf) > 1e-3
    fourth = 3 * variance**2 + variance
    assert samples.double().square().mean() == pytest.approx(variance, abs=4 * math.sqrt(fourth / DRAWS))


def test_the_test_of_distributions_sees_a_change_of_two_percent() -> None:
    x, pmf = gaussian_pmf(9.0)
    assert chi_square(discrete_gaussian((DRAWS,), 9.0 * 1.02, generator(2, "noise")), x, pmf) < 1e-3


@pytest.mark.parametrize("noise", [discrete_gaussian, skellam])
def test_noise_is_a_function_of_its_generator(noise) -> None:
    first, same, other = (noise((4, 3, 5), 6.0, generator(seed, "noise")) for seed in (7, 7, 8))
    assert first.shape == (4, 3, 5) and first.dtype == torch.int64
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert not noise((3, 2), 0.0, generator(0, "noise")).any()
    assert noise((0, 3), 2.0, generator(0, "noise")).shape == (0, 3)


@pytest.mark.parametrize("noise", [discrete_gaussian, skellam])
@pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf])
def test_wrong_variances_are_refused(noise, variance: float) -> None:
    with pytest.raises(InputError, match=r"variance: got .*, expected a number in \[0, "):
        noise((2,), variance, generator(0, "noise"))


def test_very_wide_noise_is_exact_in_its_last_digit() -> None:
    samples = discrete_gaussian((20_000,), 2.0**60, generator(3, "noise"))
    assert samples.double().std() == pytest.approx(2.0**30, rel=0.02)
    assert stats.chisquare(np.bincount((samples % 8).numpy(), minlength=8)).pvalue > 1e-3


def test_close_draws_are_decided_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    # With the largest margin, every decision is exact, and must agree with float64 on the same random numbers.
    expected = discrete_gaussian((300,), 2.3, generator(4, "noise"))
    monkeypatch.setattr(integer_noise, "MARGIN", 2.0)
    assert torch.equal(discrete_gaussian((300,), 2.3, generator(4, "noise")), expected)


@pytest.mark.parametrize("exponent", [Fraction(1), Fraction(1, 3), Fraction(45, 7)])
def test_a_draw_on_the_border_reads_more_bits(exponent: Fraction) -> None:
    border = math.floor(Fraction(math.exp(-float(exponent))) * 2**63)
    below, above = border - 2**20, border + 2**20
    rng = generator(5, "noise")
    before = rng.get_state()
    assert integer_noise._below(below, exponent, rng) and not integer_noise._below(above, exponent, rng)
    assert torch.equal(rng.get_state(), before)
    # e^-1 has the 63 bits 0.367879..., so one 63-bit word shares all of them.
    word = int(
        Fraction("0.36787944117144232159552377016146086744581113103176783450783680169746149574489980335714") * 2**63
    )
    drawn = {integer_noise._below(word, Fraction(1), rng) for _ in range(40)}
    assert drawn == {True, False}
    assert not torch.equal(rng.get_state(), before)


@pytest.mark.parametrize("below", [1, 3, 2**32, 2**62 + 1])
def test_uniform_numbers_are_uniform(below: int) -> None:
    drawn = integer_noise._uniform(30_000, below, generator(16, "noise"))
    assert drawn.min() >= 0 and drawn.max() < below
    parts = torch.div(drawn, max(1, -(-below // 6)), rounding_mode="floor")
    size = -(-below // max(1, -(-below // 6)))
    assert stats.chisquare(np.bincount(parts.numpy(), minlength=size)).pvalue > 1e-3 or below == 1
