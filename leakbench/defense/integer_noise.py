"""Integer noise, from a passed generator: discrete Gaussian and Skellam."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import torch
from torch import Tensor

from leakbench.core.errors import InputError

__all__ = ["discrete_gaussian", "skellam"]

WORD = 63
"""Number of random bits in one draw of an int64."""

MARGIN = 2.0**-40
"""Distance from a probability within which rounding in float64 could decide a draw, which is then decided exactly."""

LARGEST = 2.0**64
"""Largest variance of the noise, for which integers stay exact in float64."""


def skellam(shape: tuple[int, ...], variance: float, rng: torch.Generator) -> Tensor:
    """Return Skellam noise, int64: the difference of two Poisson variables with half the variance each.

    Agarwal, Kairouz and Liu, NeurIPS 2021 (arXiv 2110.04995), section 3. PyTorch's Poisson sampler computes in float64.

    Args:
        variance: In squared steps of the grid, >= 0.

    Raises:
        InputError: For a variance outside its range.
    """
    _check(variance)
    rates = torch.full(shape, variance / 2, dtype=torch.float64, device=rng.device)
    return (torch.poisson(rates, generator=rng) - torch.poisson(rates, generator=rng)).long()


def discrete_gaussian(shape: tuple[int, ...], variance: float, rng: torch.Generator) -> Tensor:
    """Return discrete Gaussian noise, int64, with probabilities proportional to exp(-x^2 / (2 variance)).

    Canonne, Kamath and Steinke, NeurIPS 2020 (arXiv 2004.00010), Algorithms 1 to 3: rejection from a discrete Laplace
    distribution. The distribution is exact for a perfect generator: a draw that rounding in float64 could decide is decided with
    as many digits as it needs.

    Args:
        variance: sigma^2 in squared steps of the grid, >= 0; the true variance is at most this.

    Raises:
        InputError: For a variance outside its range.
    """
    _check(variance)
    found = torch.zeros(math.prod(shape), dtype=torch.int64, device=rng.device)
    if variance == 0:
        return found.reshape(shape)
    left = torch.arange(len(found), device=rng.device)
    while len(left):
        candidates, accepted = _candidates(len(left), variance, rng)
        found[left[accepted]] = candidates[accepted]
        left = left[~accepted]
    return found.reshape(shape)


def _check(variance: float) -> None:
    if not 0 <= variance <= LARGEST:
        raise InputError(f"variance: got {variance}, expected a number in [0, {LARGEST:g}]")


def _candidates(count: int, variance: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (candidates, whether each is accepted), each (count,).

    A size u + t v has u uniform below t and v geometric. It is accepted as a discrete Laplace variable with probability
    exp(-u / t), and as a discrete Gaussian one with probability exp(-(size - variance / t)^2 / (2 variance)), so with the product
    of both. A second zero, with a minus sign, is rejected.
    """
    t = math.floor(math.sqrt(variance)) + 1
    u, v = _uniform(count, t, rng), _geometric(count, rng)
    size = u + t * v
    exponents = u.double() / t + (size.double() - variance / t).square() / (2 * variance)
    exact = Fraction(variance)

    def exponent(index: int) -> Fraction:
        return Fraction(int(u[index]), t) + (int(size[index]) - exact / t) ** 2 / (2 * exact)

    negative = _words(count, rng) % 2 == 1
    accepted = _bernoulli(exponents, exponent, rng) & ~(negative & (size == 0))
    return torch.where(negative, -size, size), accepted


def _words(count: int, rng: torch.Generator) -> Tensor:
    """Return (count,), int64, uniform in [0, 2^63)."""
    return torch.empty(count, dtype=torch.int64, device=rng.device).random_(generator=rng)


def _uniform(count: int, below: int, rng: torch.Generator) -> Tensor:
    """Return (count,), int64, exactly uniform in [0, below)."""
    words = _words(count, rng)
    # The last numbers would make small remainders more likely.
    while len(outside := (words > 2**WORD - 1 - 2**WORD % below).nonzero()[:, 0]):
        words[outside] = _words(len(outside), rng)
    return words % below


def _geometric(count: int, rng: torch.Generator) -> Tensor:
    """Return (count,), int64, with probabilities (1 - 1/e) exp(-v)."""
    found = torch.zeros(count, dtype=torch.int64, device=rng.device)
    left = torch.arange(count, device=rng.device)
    while len(left):
        ones = torch.ones(len(left), dtype=torch.float64, device=rng.device)
        left = left[_bernoulli(ones, lambda _: Fraction(1), rng)]
        found[left] += 1
    return found


def _bernoulli(exponents: Tensor, exact: Callable[[int], Fraction], rng: torch.Generator) -> Tensor:
    """Return draws with probabilities exp(-exponents), shape (n,), each a bool.

    Args:
        exponents: (n,), float64, >= 0.
        exact: Index -> the exact exponent.
    """
    words = _words(len(exponents), rng)
    gaps = words.double() / 2.0**WORD - torch.exp(-exponents)
    drawn = gaps < 0
    for index in (gaps.abs() <= MARGIN).nonzero()[:, 0].tolist():
        drawn[index] = _below(int(words[index]), exact(index), rng)
    return drawn


def _below(word: int, exponent: Fraction, rng: torch.Generator) -> bool:
    """Return whether a uniform number that starts with the bits of `word` is below exp(-exponent)."""
    bits = WORD
    while True:
        with localcontext() as context:
            context.prec = bits // 3 + 20
            scaled = (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp() * 2**bits
            # The exponential has more than 20 digits after the point, and the quotient a relative error far below that.
            low, high = int((scaled - Decimal("1e-9")).to_integral_value("ROUND_FLOOR")), scaled + Decimal("1e-9")
        if word + 1 <= low:
            return True
        if word >= high:
            return False
        word = word << WORD | int(_words(1, rng))
        bits += WORD
