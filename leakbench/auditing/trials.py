"""Trials: scores of releases with a canary and without it, drawn in closed form or by the defense itself."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.auditing.bounds import Reals
from leakbench.auditing.canary import Neighbours
from leakbench.auditing.release import Release
from leakbench.privacy.mechanism import Mechanism, Mixture
from leakbench.privacy.pairs import sum_of
from leakbench.progress import Progress, minutes, noting, unreported

__all__ = ["Scores", "affordable", "drawn", "executed"]

FIRST_SEED = 1_000_000
"""Seeds of trials, apart from those with which the statistic was chosen."""

LONG = 3.0
"""Predicted seconds from which trials are announced and show their progress."""


@dataclass(frozen=True)
class Scores:
    """(trials,) each, independent, higher where the canary seems to be there."""

    present: Reals
    absent: Reals


def drawn(mechanism: Mechanism | Mixture, trials: int, rng: torch.Generator) -> Scores:
    """Draw whole runs of a Gaussian mechanism: per run the sum of what its releases are along the canary.

    Lengths are in units of the canary's. `poisson`: without the canary a run is noise, with it, each of a binomial number of
    uses adds 1. `fixed`: whoever is drawn in the canary's stead points against it, the worst case for zero-out; the sum
    then moves by 2 for each use, and by 1 where the canary is zero. `visible`: the log-likelihood ratio, given the
    number of uses, which shows. Of a mixture, the number of participations is drawn for each run and shows; it has one kind of
    release.
    """
    one = mechanism.mechanisms[0] if isinstance(mechanism, Mixture) else mechanism
    q, sigma, visible = one.sampling_rate, one.noise_multiplier, one.sampling == "visible"
    chance = torch.full((trials,), q, dtype=torch.float64)

    def world(shift: float, base: float) -> Reals:
        count = _releases(mechanism, trials, rng)
        uses = torch.binomial(count, chance, generator=rng) if q < 1 else count
        noise = sigma * torch.randn(trials, generator=rng, dtype=torch.float64)
        several = (uses if visible else count).sqrt()
        # Midway between both worlds, where the number of releases differs from run to run.
        middle = q * (base + 0.5) * count if isinstance(mechanism, Mixture) and not visible else 0.0
        scores: Reals = (uses * (shift + base) + several * noise - middle).numpy()
        return scores

    if one.sampling == "fixed" and q < 1:
        return Scores(world(1.0, 1.0), world(0.0, 1.0))
    base = -0.5 if visible else 0.0
    return Scores(world(1.0, base), world(0.0, base))


def _releases(mechanism: Mechanism | Mixture, trials: int, rng: torch.Generator) -> Tensor:
    """Return (trials,), the number of releases of each run."""
    if isinstance(mechanism, Mechanism):
        return torch.full((trials,), float(mechanism.steps), dtype=torch.float64)
    below = torch.from_numpy(sum_of(mechanism.weights, mechanism.steps)).cumsum(0)
    drawn_at = torch.rand(trials, generator=rng, dtype=torch.float64) * below[-1]
    return torch.searchsorted(below, drawn_at).double() * mechanism.mechanisms[0].steps


def affordable(release: Release, pair: Neighbours, draws: float = 1e9) -> int:
    """Return how many trials of each world, 100 to 1000, stay within so many random numbers."""
    each = sum(g[0].numel() for g in pair.present.values())
    return max(100, min(1000, int(draws / each)))


def executed(release: Release, pair: Neighbours, trials: int, progress: Progress = unreported) -> Scores:
    """Run a defense's real transforms `trials` times on each input of one pair.

    The score is the log-likelihood ratio of two Gaussians: (1/s0^2 - 1/s1^2) |r|^2 / 2 + t <r, u> / s^2, where the scales s1 and
    s0, with and without the canary, and its shift t along its own direction u come from other seeds.

    Args:
        progress: Called with the trials that are done, after an estimate of the time of all of them.
    """
    began = time.monotonic()
    learned = [release(side, range(FIRST_SEED - 8, FIRST_SEED)).double() for side in (pair.present, pair.absent)]
    seconds = 2 * trials * (time.monotonic() - began) / sum(map(len, learned))
    if seconds > LONG:
        noting(progress)(f"audit: 2 x {trials} trials of the code of the defense, about {minutes(seconds)}")
    centre = torch.cat(learned).mean(0)
    along = _unit(torch.cat([(p - a)[0, 0].flatten() for p, a in _tensors(pair)]).double())
    spread = [float((side - side.mean(0)).square().mean() * 8 / 7) for side in learned]
    low = 1e-12 * max(*spread, float(centre.square().mean()), 1e-30)
    present, absent = (max(s, low) for s in spread)
    # What is not clearly a change of scale would only add noise to the score.
    clear = abs(math.log(present / absent)) > 5 * math.sqrt(4 / (7 * centre.numel()))
    scale = (1 / absent - 1 / present) / 2 if clear else 0.0
    shift = float((learned[0].mean(0) - learned[1].mean(0)) @ along) / math.sqrt(present * absent)

    def world(inputs: dict[str, Tensor], first: int, before: int) -> Reals:
        found = []
        for start in range(first, first + trials, 50):
            seeds = range(start, min(start + 50, first + trials))
            away = release(inputs, seeds).double() - centre
            found.append(scale * away.square().sum(1) + shift * (away @ along))
            if seconds > LONG:
                progress("audit", before + seeds.stop - first, 2 * trials)
        scores: Reals = torch.cat(found).numpy()
        return scores

    return Scores(world(pair.present, FIRST_SEED, 0), world(pair.absent, FIRST_SEED + trials, trials))


def _tensors(pair: Neighbours) -> list[tuple[Tensor, Tensor]]:
    return [(pair.present[n], pair.absent[n]) for n in pair.present]


def _unit(vector: Tensor) -> Tensor:
    return vector / max(float(vector.norm()), 1e-30)
