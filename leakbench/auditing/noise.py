"""The noise of a release, measured: how strong it is, in which tensors, and whether it is independent and Gaussian."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from leakbench.auditing.release import Release
from leakbench.types import Parameters

__all__ = ["MeasuredNoise", "measure", "seeds_for"]

ALMOST_NEVER = 1e-6
"""A test that an honest defense fails in one audit of a million."""

BLOCKS = 32

ENOUGH = 200
"""Products of two normals, from which on their mean is near enough to a normal for a test at ALMOST_NEVER."""


@dataclass(frozen=True)
class MeasuredNoise:
    """Additive noise of a release.

    Args:
        std: (coordinates,) of each coordinate, equal within a tensor, equal throughout where no tensor differs.
        error: Relative standard error of the smallest std.
        even: Whether all tensors have the same.
        gaussian: Whether coordinates pass as independent draws of one Gaussian each.
    """

    std: Tensor
    error: float
    even: bool
    gaussian: bool

    @property
    def missing(self) -> bool:
        """Whether some tensor has none."""
        return bool((self.std == 0).any())


def seeds_for(coordinates: int) -> int:
    """Return how many seeds make the standard error of a std at most 0.15 % (an even number, 4 to 64)."""
    return 2 * min(32, max(2, math.ceil(250_000 / coordinates)))


def measure(release: Release, inputs: Parameters, seeds: Sequence[int]) -> MeasuredNoise:
    """Measure the noise on one input {p: (1, members, *p)} over an even number of seeds.

    Half the difference of two releases of one input, times sqrt(2), is noise alone, whatever the input.
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
    # A coordinate that never moves has no noise, however much its tensor has.
    std = torch.where((drawn == 0).all(0), 0.0, std)
    error = 1 / math.sqrt(2 * drawn.numel()) if even else float(errors[own.argmin()])
    return MeasuredNoise(std, error, even, bool((std > 0).all()) and _gaussian(drawn / std, sizes))


def _gaussian(drawn: Tensor, sizes: Sequence[int]) -> bool:
    """Tell whether (draws, coordinates) pass as independent standard normals.

    Args:
        sizes: Coordinates of each tensor.
    """
    tensors = torch.split(drawn, list(sizes), 1)
    return _pass_alone(drawn) and _pass_summed(drawn) and _tensors_differ(tensors)


def _pass_alone(drawn: Tensor) -> bool:
    """Tell whether coordinates pass one by one: all of them as normals, and the quietest as one of so many.

    A tail that is cut off at some 3 standard deviations passes: of differences of two draws it leaves too little missing.
    """
    draws, coordinates = drawn.shape
    quietest = coordinates * stats.chi2.cdf(float(drawn.square().sum(0).min()), draws)
    return bool(min(quietest, stats.kstest(drawn.flatten().numpy(), "norm").pvalue) > ALMOST_NEVER)


def _tensors_differ(tensors: Sequence[Tensor]) -> bool:
    """Tell whether each tensor's noise has a sum of its own, as all have together, and is no copy of another's."""
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
    """Tell whether sums over blocks, and draws against each other, pass as those of independent coordinates."""
    draws, coordinates = drawn.shape
    # Sums over blocks, plain and with mixed signs, show what coordinates share: only independent ones keep variance 1.
    signs = torch.where(torch.arange(coordinates) * 0.618 % 1 < 0.5, 1.0, -1.0)
    blocks = [b for d in (drawn, drawn * signs) for b in torch.split(d, -(-coordinates // BLOCKS), 1)]
    sums = torch.stack([b.sum(1) / math.sqrt(b.shape[1]) for b in blocks])
    energy = float(sums.square().sum())
    summed = 2 * min(stats.chi2.cdf(energy, sums.numel()), stats.chi2.sf(energy, sums.numel()))
    shared = (torch.corrcoef(drawn) - torch.eye(draws)).abs().max()
    limit = stats.norm.isf(ALMOST_NEVER / draws**2) / math.sqrt(coordinates)
    return bool(summed > ALMOST_NEVER and shared < limit)
