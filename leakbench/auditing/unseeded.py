"""The check of a function without a seed: the same tests by averages over many calls, which are less accurate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from leakbench.auditing.canary import neighbours
from leakbench.auditing.coupled import SCALES, Coupled
from leakbench.auditing.noise import measure, seeds_for
from leakbench.auditing.release import Release
from leakbench.core.types import Parameters

__all__ = ["check_unseeded"]

CALLS = 200
"""Number of calls on each input, which gives a clip's distance to a tenth of the noise's standard deviation."""


def check_unseeded(release: Release, shapes: Mapping[str, tuple[int, ...]], rng: torch.Generator) -> Coupled:
    """Return the result of the coupled check, estimated from the outputs of many calls.

    If the noise hides the shift or depends on the input, `moved` and `sigma` have no value. The shift is measured along the canary,
    so a function that rotates the canary moves farther than `moved`.
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
    # Only the small canaries test the scale: rounding grows with the canary.
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
