"""Measures the noise of a release: its standard deviation in each tensor, and whether it is independent and Gaussian."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from leakbench.auditing.release import Release
from leakbench.core.types import Parameters

__all__ = ["MeasuredNoise", "measure", "seeds_for"]

ALMOST_NEVER = 1e-6
"""Probability that a correct defense fails a test."""

BLOCKS = 32

ENOUGH = 200
"""Number of products of two normals whose mean is close enough to a normal for a test at ALMOST_NEVER."""


@dataclass(frozen=True)
class MeasuredNoise:
    """Additive noise of a release.

    Args:
        std: (coordinates,), the standard deviation of each coordinate, equal within a tensor; equal for all if `even`.
        error: Relative standard error of the smallest std.
        even: Whether all tensors have the same std.
        gaussian: Whether the coordinates pass the tests of independent Gaussian draws.
    """

    std: Tensor
    error: float
    even: bool
    gaussian: bool

    @property
    def missing(self) -> bool:
        """Whether some tensor has no noise."""
        return bool((self.std == 0).any())


def seeds_for(coordinates: int) -> int:
    """Return the number of seeds (even, 4 to 64) for a standard error of a std of at most 0.15 %."""
    return 2 * min(32, max(2, math.ceil(250_000 / coordinates)))


def measure(release: Release, inputs: Parameters, seeds: Sequence[int]) -> MeasuredNoise:
    """Measure the noise on one input {p: (1, members, *p)} over an even number of seeds.

    The difference of two releases of one input, divided by sqrt(2), contains only noise.
    """
    released = release(inputs, seeds).double()
    drawn = (released[0::2] - released[1::2]) / math.sqrt(2)
    drawn[drawn.abs() <= 1e-6 * released.abs().mean()] = 0.0
    sizes = [g[0, 0].numel() for g in inputs.values()]
    own = torch.stack([t.square().mean().sqrt() for t in torch.split(drawn, sizes, 1)])
    errors = torch.tensor([1 / math.sqrt(2 * n * len(drawn)) for n in sizes], dtype=torch.float64)
    pooled = drawn.square().mean().sqrt()
    even = bool(((own - pooled).abs() <= 5 * errors * pooled).all())
    each = pooled.expand(len(sizes)) if even else own
    std = torch.cat([s.expand(n) for s, n in zip(each, sizes, strict=True)])
    # A coordinate that never changes has no noise, even if its tensor has.
    std = torch.where((drawn == 0).all(0), 0.0, std)
    error = 1 / math.sqrt(2 * drawn.numel()) if even else float(errors[own.argmin()])
    return MeasuredNoise(std, error, even, bool((std > 0).all()) and _gaussian(drawn / std, sizes))


def _gaussian(drawn: Tensor, sizes: Sequence[int]) -> bool:
    """Return whether (draws, coordinates) pass the tests of independent standard normals.

    Args:
        sizes: Number of coordinates of each tensor.
    """
    tensors = torch.split(drawn, list(sizes), 1)
    return _pass_alone(drawn) and _pass_summed(drawn) and _tensors_differ(tensors)


def _pass_alone(drawn: Tensor) -> bool:
    """Return whether single coordinates pass: all together as normals, and the one with the least variance.

    A tail that is cut at about 3 standard deviations passes, since the difference of two draws hides it.
    """
    draws, coordinates = drawn.shape
    quietest = coordinates * stats.chi2.cdf(float(drawn.square().sum(0).min()), draws)
    return bool(min(quietest, stats.kstest(drawn.flatten().numpy(), "norm").pvalue) > ALMOST_NEVER)


def _tensors_differ(tensors: Sequence[Tensor]) -> bool:
    """Return whether the sum of each tensor's noise, and of all, has its variance, and no tensor repeats another one's noise."""
    draws = tensors[0].shape[0]
    several = (*tensors, torch.cat(list(tensors), 1))
    sums = [float((t.sum(1) / math.sqrt(t.shape[1])).square().sum()) for t in several]
    if min(stats.chi2.cdf(s, draws) for s in sums) * len(sums) <= ALMOST_NEVER:
        return False
    for one, other in itertools.combinations(tensors, 2):
        shared = min(one.shape[1], other.shape[1])
        both = float((one[:, :shared] * other[:, :shared]).sum()) / math.sqrt(draws * shared)
        if draws * shared >= ENOUGH and abs(both) > stats.norm.isf(ALMOST_NEVER / len(sums) ** 2):
            return False
    return True


def _pass_summed(drawn: Tensor) -> bool:
    """Return whether sums over blocks, and correlations of draws, pass as those of independent coordinates."""
    draws, coordinates = drawn.shape
    # Sums over blocks, with and without mixed signs, have variance 1 only if the coordinates are independent.
    signs = torch.where(torch.arange(coordinates) * 0.618 % 1 < 0.5, 1.0, -1.0)
    blocks = [b for d in (drawn, drawn * signs) for b in torch.split(d, -(-coordinates // BLOCKS), 1)]
    sums = torch.stack([b.sum(1) / math.sqrt(b.shape[1]) for b in blocks])
    energy = float(sums.square().sum())
    summed = 2 * min(stats.chi2.cdf(energy, sums.numel()), stats.chi2.sf(energy, sums.numel()))
    shared = (torch.corrcoef(drawn) - torch.eye(draws)).abs().max()
    limit = stats.norm.isf(ALMOST_NEVER / draws**2) / math.sqrt(coordinates)
    return bool(summed > ALMOST_NEVER and shared < limit)
