"""Trials: scores of releases with and without a canary, drawn in closed form or computed by the defense's code."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.auditing.bounds import Reals
from leakbench.auditing.canary import Neighbours
from leakbench.auditing.release import Release
from leakbench.core.progress import Progress, minutes, noting, unreported
from leakbench.privacy.mechanism import Mechanism, Mixture
from leakbench.privacy.pairs import sum_of

__all__ = ["LONG", "Scores", "affordable", "drawn", "executed"]

FIRST_SEED = 1_000_000
"""First seed of trials; the choice of the statistic uses smaller ones."""

LONG = 3.0
"""Predicted seconds above which the audit announces trials and shows their progress."""


@dataclass(frozen=True)
class Scores:
    """Independent scores, (trials,) each; high scores suggest the presence of the canary."""

    present: Reals
    absent: Reals


def drawn(mechanism: Mechanism | Mixture, trials: int, rng: torch.Generator) -> Scores:
    """Draw the scores of whole runs of a Gaussian mechanism: the sum over a run's releases of their component along the canary.

    Lengths are in units of the canary's length.

    - `poisson`: without the canary a run is noise; with it, each of a binomial number of uses adds 1.
    - `fixed`: the member that replaces the canary points against it, the worst case for zero-out. The sum then moves by 2 for each
      use, and by 1 if the canary is zero.
    - `visible`: the score is the log-likelihood ratio, given the visible number of uses.
    - A mixture has one kind of release; each run draws its number of participations, which is visible.
    """
    one = mechanism.mechanisms[0] if isinstance(mechanism, Mixture) else mechanism
    q, sigma, visible = one.sampling_rate, one.noise_multiplier, one.sampling == "visible"
    chance = torch.full((trials,), q, dtype=torch.float64)

    def world(shift: float, base: float) -> Reals:
        count = _releases(mechanism, trials, rng)
        uses = torch.binomial(count, chance, generator=rng) if q < 1 else count
        noise = sigma * torch.randn(trials, generator=rng, dtype=torch.float64)
        several = (uses if visible else count).sqrt()
        # If the number of releases differs from run to run, scores are relative to the midpoint between both worlds.
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


DRAWS = 1e9
"""Approximate number of random numbers for the trials of each world."""


def affordable(pair: Neighbours) -> int:
    """Return the number of trials of each world, 100 to 1000, for about `DRAWS` random numbers."""
    each = sum(g[0].numel() for g in pair.present.values())
    return max(100, min(1000, int(DRAWS / each)))


def executed(release: Release, pair: Neighbours, trials: int, progress: Progress = unreported) -> Scores:
    """Run a defense's real transforms `trials` times on each input of one pair.

    The score is the log-likelihood ratio of two Gaussians: (1/s0^2 - 1/s1^2) |r|^2 / 2 + t <r, u> / s^2. The scales s1 and s0, with
    and without the canary, and the shift t along the canary's direction u come from other seeds.

    Args:
        progress: Called with the number of finished trials, if all of them take long.
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
    # An uncertain change of scale would only add noise to the score.
    clear = abs(math.log(present / absent)) > 5 * math.sqrt(4 / (7 * centre.numel()))
    scale = (1 / absent - 1 / present) / 2 if clear else 0.0
    shift = float((learned[0].mean(0) - learned[1].mean(0)) @ along) / math.sqrt(present * absent)

    def world(inputs: dict[str, Tensor], first: int, before: int) -> Reals:
        pieces = []
        for start in range(first, first + trials, 50):
            seeds = range(start, min(start + 50, first + trials))
            away = release(inputs, seeds).double() - centre
            pieces.append(scale * away.square().sum(1) + shift * (away @ along))
            if seconds > LONG:
                progress("audit", before + seeds.stop - first, 2 * trials)
        scores: Reals = torch.cat(pieces).numpy()
        return scores

    return Scores(world(pair.present, FIRST_SEED, 0), world(pair.absent, FIRST_SEED + trials, trials))


def _tensors(pair: Neighbours) -> list[tuple[Tensor, Tensor]]:
    return [(pair.present[n], pair.absent[n]) for n in pair.present]


def _unit(vector: Tensor) -> Tensor:
    return vector / max(float(vector.norm()), 1e-30)
