"""The check of a function that takes no seed: the same questions, answered by averages over many calls, hence less sharply."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from leakbench.auditing.canary import neighbours
from leakbench.auditing.coupled import SCALES, Coupled
from leakbench.auditing.noise import measure, seeds_for
from leakbench.auditing.release import Release
from leakbench.types import Parameters

__all__ = ["check_unseeded"]

CALLS = 200
"""Calls on each input; a clip's distance is then known to a tenth of the noise's standard deviation."""


def check_unseeded(release: Release, shapes: Mapping[str, tuple[int, ...]], rng: torch.Generator) -> Coupled:
    """Return what the coupled check would, from distributions: moved and sigma only where the shift stands out of the noise.

    The shift is measured along the canary, so that a function which turns it moves farther than is said here.
    """
    pairs = neighbours(shapes, release.members, SCALES, rng)
    noise = measure(release, pairs.at(0).absent, range(seeds_for(sum(g[0, 0].numel() for g in pairs.present.values()))))
    quiet = _calls(release, pairs.at(0).absent)
    along = torch.cat([g[0, 0].flatten() for g in pairs.at(0).present.values()]).double()
    along /= along.norm()
    shifts, changes = [], []
    for index in range(pairs.pairs):
        released = _calls(release, pairs.at(index).present)
        shifts.append(float((released.mean(0) - quiet.mean(0)) @ along))
        changes.append(abs(math.log(max(_std(released), 1e-30) / max(_std(quiet), 1e-30))))
    scale = max(float(along.mul(quiet).sum(1).std()), 1e-30)
    error = scale * math.sqrt(2 / CALLS)
    # Rounding grows with the canary; a scale that follows the data does so already at the small ones.
    clear = 5 * math.sqrt(1 / (CALLS * quiet.shape[1]))
    independent = max(changes[:2]) <= clear
    holds = shifts[3] <= 2 * abs(shifts[2]) + 10 * error
    moved = max(shifts[:3]) if holds else math.inf
    known = independent and moved > 5 * error
    sigma = None if not known else 0.0 if noise.missing or not holds else scale / moved
    telling = pairs.at(2 if independent else max(range(2), key=changes.__getitem__))
    return Coupled(independent, holds, moved if known else None, sigma, error / max(moved, error), noise, telling)


def _calls(release: Release, inputs: Parameters) -> Tensor:
    return release(inputs, range(CALLS))


def _std(released: Tensor) -> float:
    return float(released.var(0).mean().sqrt())
