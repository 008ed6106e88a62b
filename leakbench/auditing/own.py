"""A user's own defense as a Python function, audited as one client's update."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from leakbench.auditing.canary import BOUNDLESS, FAR, Neighbours, focused, joined, neighbours, pointed
from leakbench.auditing.coupled import ROUNDING, Coupled, check
from leakbench.auditing.function import CallableRelease
from leakbench.auditing.unseeded import check_unseeded
from leakbench.auditing.verdict import Audit, Stated, judge
from leakbench.core.errors import InputError
from leakbench.core.progress import Progress, unreported
from leakbench.core.rng import generator
from leakbench.privacy.accountants import best
from leakbench.privacy.mechanism import Mechanism

__all__ = ["audit_callable"]

PERIODS = (10, 100, 1000, *(2**k for k in range(4, 32)))
"""Distances of tested seeds: a function that uses a seed modulo one of these repeats its noise."""

NORMS = tuple(10 ** (k / 8) for k in range(-16, 25))
"""Norms of a canary's tensors, .01 to 1000, at which the noise must be the same: a function may treat some norms differently."""


def audit_callable(
    release: CallableRelease,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    delta: float,
    trials: int | None,
    sigma: float | None,
    clip: float | None,
    progress: Progress = unreported,
) -> Audit:
    """Audit a function as one release of one client's update, q = 1, zero-out adjacency.

    The valid epsilon is that of the measured Gaussian noise, since the code of the function is not read.

    Args:
        shapes: {parameter: shape}.
        sigma: Stated noise multiplier, from which the claimed epsilon follows; None without a claim.
        clip: Stated L2 bound; a function without a seed needs it for a valid epsilon.

    Raises:
        InputError: For a function with a seed whose noise has another source too.
    """
    rng = generator(seed, "audit")
    release = dataclasses.replace(release, seed=seed)
    _check_drawn_from_seed(release, shapes, rng)
    found = (check if release.seeded else check_unseeded)(release, shapes, rng)
    found = farther(release, found, shapes, rng) if release.seeded else found
    bound = found.moved if release.seeded else clip
    valid, missing = None, _missing(found, bound) or (_untrue(release, shapes, rng) if release.seeded else "")
    if not missing and bound:
        multiplier = found.sigma if release.seeded and found.sigma else float(found.noise.std.min()) / bound
        value = best((Mechanism(multiplier, 1.0, 1),), delta)[0]
        valid, missing = (value, "") if value < math.inf else (None, "so little noise gives no finite epsilon")
    claimed = None if sigma is None else best((Mechanism(sigma, 1.0, 1),), delta)[0]
    scope = "all values are for one release of one client's update; valid as far as these checks see"
    stated = Stated(claimed, valid, missing, scope)
    result = judge(release, found, Mechanism(1.0, 1.0, 1), stated, sigma, trials, delta, rng, progress)
    return result if clip is None else _against_clip(result, found, clip)


def farther(
    release: CallableRelease, found: Coupled, shapes: Mapping[str, tuple[int, ...]], rng: torch.Generator
) -> Coupled:
    """Extend a check by canaries of other shapes, if the noise does not depend on the data.

    A canary with equal norms in all tensors does not test a clip that uses the norm of one tensor, a mean of norms, the largest
    coordinate, or the sign of a sum.
    """
    if not (found.independent and found.noise.even and found.clip_holds):
        return found
    far = joined([focused(shapes, 1, FAR, rng), *pointed(shapes, FAR, rng)])
    boundless = Neighbours({n: t * (BOUNDLESS / FAR) for n, t in far.present.items()}, far.absent)
    moved, again = ([_moved(release, pairs, seed) for seed in (0, 1)] for pairs in (far, boundless))
    size = torch.cat([release(p.present, [0] * p.pairs).double().norm(dim=1) for p in (far, boundless)]).chunk(2)
    if bool(((moved[0] - moved[1]).norm(dim=1) > ROUNDING * size[0].clamp_min(1.0)).any()):
        return dataclasses.replace(found, independent=False, moved=None, sigma=None)
    most, beyond = moved[0].norm(dim=1), again[0].norm(dim=1)
    if bool((beyond > 1.01 * most + ROUNDING * size[1]).any()):
        return dataclasses.replace(found, clip_holds=False, moved=math.inf, sigma=0.0)
    longest = float(most.max())
    if found.moved is None or longest <= 1.001 * found.moved:
        return found
    sigma = found.sigma * found.moved / longest if found.sigma and math.isfinite(found.sigma) else found.sigma
    return dataclasses.replace(found, moved=longest, sigma=sigma, telling=far.at(int(most.argmax())))


def _moved(release: CallableRelease, pairs: Neighbours, seed: int) -> Tensor:
    present, absent = (release(side, [seed] * pairs.pairs).double() for side in (pairs.present, pairs.absent))
    return present - absent


def _missing(found: Coupled, bound: float | None) -> str:
    if not found.clip_holds:
        return "no clip"
    if found.noise.missing:
        return "no noise"
    if not found.independent:
        return "the noise depends on the data"
    if not found.noise.gaussian:
        return "the noise is not independent Gaussian noise"
    return "" if bound else "without a seed the clip's bound cannot be measured; state it with --clip, or take a seed"


def _untrue(release: CallableRelease, shapes: Mapping[str, tuple[int, ...]], rng: torch.Generator) -> str:
    """Return why the noise of a function that passed so far is not valid, or an empty text."""
    at_norms = neighbours(shapes, 1, NORMS, rng)
    # The last one is zero outside its first tensor: a zero update needs the same noise.
    tried = {n: torch.cat([t, t[:1] * (place == 0)]) for place, (n, t) in enumerate(at_norms.present.items())}
    again = [release(tried, [seed] * (len(NORMS) + 1)).double() for seed in (2, 3)]
    drawn = (again[0] - again[1]).norm(dim=1)
    odd = (drawn - drawn.median()).abs() > 10 * ROUNDING * torch.stack(again).norm(dim=2).amax(0).clamp_min(
        drawn.median()
    )
    if bool(odd[-1]):
        return "the noise differs where an update is zero"
    if bool(odd.any()):
        return f"the noise differs where a tensor's norm is about {NORMS[int(odd.nonzero()[0])]:.3g}"
    first = release(at_norms.at(0).absent, [0])
    same = (release(at_norms.at(0).absent, PERIODS) == first).all(1)
    return f"seeds {PERIODS[int(same.nonzero()[0])]} apart give the same noise" if bool(same.any()) else ""


def _check_drawn_from_seed(
    release: CallableRelease, shapes: Mapping[str, tuple[int, ...]], rng: torch.Generator
) -> None:
    """Raise InputError if the same update and seed give two different releases, since the check compares releases by seeds."""
    if not release.seeded:
        return
    update = neighbours(shapes, 1, (1.0,), rng).present
    first, again = (release(update, [0]).double() for _ in range(2))
    apart = float((first - again).norm())
    if apart > ROUNDING * max(1.0, float(first.norm())):
        raise InputError(
            f"callable: the same update and seed twice gave releases {apart:.3g} apart; draw all its noise from its"
            f" {'generator' if release.takes == 'generator' else 'seed'}, or take none"
        )


def _against_clip(result: Audit, found: Coupled, clip: float) -> Audit:
    least = 0.0 if found.moved is None else found.moved * (1 - 5 * found.error)
    if not math.isfinite(least) or least <= 1.01 * clip:
        return result
    reason = f"one update moves the release by {found.moved:.4g}, more than the stated clip {clip:g}; {result.reason}"
    return dataclasses.replace(result, clip_holds=False, verdict="violated", reason=reason)
