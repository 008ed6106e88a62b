"""The noise of a release, measured: how strong it is, in which tensors, and whether it is independent and Gaussian."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from leakbench.privacy.audit.release import Release
from leakbench.types import Parameters

__all__ = ["Noise", "measure", "seeds_for"]

ALMOST_NEVER = 1e-6
"""A test that an honest defense fails in one audit of a million."""

BLOCKS = 32


@dataclass(frozen=True)
class Noise:
    """Additive noise of a release.

    std: (coordinates,) of each coordinate, equal within a tensor, equal throughout where no tensor differs.
    error: relative standard error of the smallest std.  even: whether all tensors have the same.
    gaussian: whether coordinates pass as independent draws of one Gaussian each.
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


def measure(release: Release, inputs: Parameters, seeds: Sequence[int]) -> Noise:
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
    error = 1 / math.sqrt(2 * drawn.numel()) if even else float(errors[own.argmin()])
    return Noise(std, error, even, bool((std > 0).all()) and _gaussian(drawn / std))


def _gaussian(drawn: Tensor) -> bool:
    """Tell whether (draws, coordinates) pass as independent standard normals: one by one, summed, and draw against draw."""
    draws, coordinates = drawn.shape
    one_by_one = stats.kstest(drawn.flatten().numpy(), "norm").pvalue
    # Sums over blocks, plain and with mixed signs, show what coordinates share: only independent ones keep variance 1.
    signs = torch.where(torch.arange(coordinates) * 0.618 % 1 < 0.5, 1.0, -1.0)
    blocks = [b for d in (drawn, drawn * signs) for b in torch.split(d, -(-coordinates // BLOCKS), 1)]
    sums = torch.stack([b.sum(1) / math.sqrt(b.shape[1]) for b in blocks])
    energy = float(sums.square().sum())
    summed = 2 * min(stats.chi2.cdf(energy, sums.numel()), stats.chi2.sf(energy, sums.numel()))
    shared = (torch.corrcoef(drawn) - torch.eye(draws)).abs().max()
    limit = stats.norm.isf(ALMOST_NEVER / draws**2) / math.sqrt(coordinates)
    return bool(one_by_one > ALMOST_NEVER and summed > ALMOST_NEVER and shared < limit)
