"""The coupled-noise check: releases of neighbouring inputs with the same seed show one unit's effect, also on the noise.

If the difference of two releases is the same for every seed, the noise is additive and independent of the data, and its standard
deviation divided by the largest difference is the actual noise multiplier. The check tests some inputs only: passing is not a
proof.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.auditing.canary import BOUNDLESS, FAR, Neighbours, focused, joined, neighbours, opposed
from leakbench.auditing.noise import MeasuredNoise, measure, seeds_for
from leakbench.auditing.release import Release
from leakbench.core.types import Parameters

__all__ = ["SCALES", "Coupled", "check", "check_pairs", "strength"]

SCALES = (1.0, 10.0, FAR, BOUNDLESS)

ROUNDING = 1e-5
"""Tolerance of equal differences, as a share of a release's norm, for sums of many members in single precision."""


@dataclass(frozen=True)
class Coupled:
    """The result of the check.

    Args:
        independent: Whether the noise is additive and does not depend on one unit's data; true without noise.
        clip_holds: Whether one unit's effect is bounded.
        moved: Largest L2 distance of a pair; infinite without a bound; None if noise that depends on the data hides it.
        sigma: Standard deviation of the noise divided by `moved` (if tensors have different noise: 1 divided by the distance in
            units of the noise); 0 without noise or without a bound; None if `moved` is.
        error: Relative standard error of `sigma`.
        noise: The noise on the absent side of the first pair.
        telling: The pair for trials: the one whose noise changes most, or else the one that a clip lets move most.
    """

    independent: bool
    clip_holds: bool
    moved: float | None
    sigma: float | None
    error: float
    noise: MeasuredNoise
    telling: Neighbours

    @property
    def gaussian(self) -> bool:
        """Whether one unit shifts a release with Gaussian noise, so that trials can be drawn in closed form."""
        return self.independent and (self.noise.gaussian or bool((self.noise.std == 0).all()))


def check(release: Release, shapes: Mapping[str, tuple[int, ...]], rng: torch.Generator, grid: float = 0.0) -> Coupled:
    """Check a release on pairs of neighbouring inputs.

    Args:
        shapes: {parameter: shape}.
        grid: Largest L2 distance of two releases that rounding to a grid causes; 0 without a grid.
    """
    pairs = [neighbours(shapes, release.members, SCALES, rng), opposed(shapes, release.members, FAR, rng)]
    found = check_pairs(release, joined(pairs), grid)
    if found.noise.even or not found.independent:
        return found
    return check_pairs(release, joined([*pairs, focused(shapes, release.members, FAR, rng)]), grid)


def check_pairs(release: Release, pairs: Neighbours, grid: float = 0.0) -> Coupled:
    """Check a release on given pairs; the third has the canary at FAR and the fourth has the same canary at BOUNDLESS."""
    quiet = pairs.at(0).absent
    coordinates = sum(g[0, 0].numel() for g in quiet.values())
    noise = measure(release, quiet, range(seeds_for(coordinates)))
    present, absent = ([_lanes(release, side, seed) for seed in (0, 1)] for side in (pairs.present, pairs.absent))
    differences = [p - a for p, a in zip(present, absent, strict=True)]
    size = torch.stack([r.norm(dim=1) for r in (*present, *absent)]).amax(0)
    near = ROUNDING * size + grid
    independent = bool(((differences[0] - differences[1]).norm(dim=1) <= near).all())
    distance = differences[0].norm(dim=1)
    energy = [(one - two).norm(dim=1) for one, two in (present, absent)]
    change = (energy[0].clamp_min(1e-30) / energy[1].clamp_min(1e-30)).log().abs()
    holds = bool(distance[3] <= 1.01 * distance[2] + near[2])
    moved, sigma = _strength(differences[0], noise, holds) if independent else (None, None)
    telling = change if change.max() > 5 / math.sqrt(coordinates) else distance.index_fill(0, torch.tensor([3]), -1.0)
    return Coupled(independent, holds, moved, sigma, noise.error, noise, pairs.at(int(telling.argmax())))


def _lanes(release: Release, inputs: Parameters, seed: int) -> Tensor:
    return release(inputs, [seed] * next(iter(inputs.values())).shape[0]).double()


def _strength(differences: Tensor, noise: MeasuredNoise, holds: bool) -> tuple[float, float]:
    moved = float(differences.norm(dim=1).max())
    if not holds:
        return math.inf, 0.0
    if noise.missing:
        bare = bool((differences[:, noise.std == 0] != 0).any())
        return moved, 0.0 if bare else math.inf
    farthest = float((differences / noise.std).norm(dim=1).max())
    return moved, 1 / farthest if farthest > 0 else math.inf


def strength(release: Release, pair: Neighbours) -> float:
    """Return the noise divided by the distance of one pair, from three releases, to compare moments of a schedule."""
    first, again = (release(pair.present, [seed]).double() for seed in (0, 1))
    moved = float((first - release(pair.absent, [0]).double()).norm())
    return float((first - again).norm()) / moved if moved else math.inf
