"""Trials of whole trainings whose noise is correlated over the rounds, with the transforms of the server."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from leakbench.auditing.bounds import Reals
from leakbench.auditing.release import DefenseRelease
from leakbench.auditing.trials import Scores
from leakbench.core.rng import generators
from leakbench.core.types import AT_SERVER, Parameters, Signal
from leakbench.defense.transform import apply

__all__ = ["Turns", "played"]

NUMBERS = 20_000_000
"""Approximate number of random numbers of all rounds that are in memory at once."""

SAMPLE = 100
"""Number of trainings for each round from which the covariance of the noise is computed."""


@dataclasses.dataclass(frozen=True)
class Turns:
    """The rounds in which a client can take part, and how.

    Args:
        rounds: Number of rounds that are trained.
        where: Indices of the rounds.
        rate: Probability that it takes part in each of them, independently.
        length: Length of its contribution to a round's sum.
    """

    rounds: int
    where: tuple[int, ...]
    rate: float
    length: float


def played(release: DefenseRelease, turns: Turns, trials: int) -> Scores:
    """Return the scores of trainings with and without a client, as an observer of the released models computes them.

    Each coordinate is a training by itself, with its own noise of all rounds, and the client moves it by `turns.length`. The
    score is the likelihood ratio if two rounds of the client share no noise, and else close to it: a score that is not the best
    one only lowers the audited epsilon. It takes the covariance of the noise from other trainings.

    Args:
        release: The client and the server station, with the clock of the whole training.
        turns: Rounds in which the client can take part.
        trials: Number of trainings of each world.
    """
    shape, several = torch.zeros(turns.rounds, turns.rounds, dtype=torch.float64), 20_000 + SAMPLE * turns.rounds
    for noise in _noise(release, turns.rounds, several, 0):
        shape += noise @ noise.T
    where = list(turns.where)
    precision = torch.linalg.inv(shape / several)[where]
    own = turns.length**2 * precision[range(len(where)), where]

    def world(shift: float, kind: int) -> Reals:
        rng, pieces = generators(release.seed, "audit turns", [(kind,)])[0], []
        for noise in _noise(release, turns.rounds, trials, kind):
            there = torch.rand(len(where), noise.shape[1], generator=rng, dtype=torch.float64) < turns.rate
            noise[where] += shift * there
            each = turns.length * (precision @ noise) - own[:, None] / 2
            pieces.append(_mixed(each, turns.rate).sum(0))
        scores: Reals = torch.cat(pieces).numpy()
        return scores

    return Scores(world(turns.length, 1), world(0.0, 2))


def _mixed(ratios: Tensor, rate: float) -> Tensor:
    """Return log(1 - rate + rate exp(ratios))."""
    if rate == 1:
        return ratios
    return torch.logaddexp(ratios + math.log(rate), torch.full_like(ratios, math.log1p(-rate)))


def _noise(release: DefenseRelease, rounds: int, trials: int, kind: int) -> Iterator[Tensor]:
    """Yield the noise (rounds, n) in the sums of trainings, together for `trials` trainings."""
    names = list(release.probe.network.parameters)
    most = max(len(names), NUMBERS // rounds)
    for start in range(0, trials, most):
        count = min(most, trials - start)
        # A clip of each tensor must see as many tensors as the model has.
        zeros = {n: torch.zeros(1, 1, -(-count // len(names))) for n in names}
        memory: Parameters = {}
        seen = []
        for t in range(rounds):
            clock = dataclasses.replace(release.clock, round=t).at_the_end()
            sent = apply(release.stations.client, Signal(zeros), clock, None)
            sent = dataclasses.replace(sent, memory={**sent.memory, **memory})
            rngs = generators(release.seed, "audit rounds", [(kind, start, t)])
            after = apply(release.stations.server, sent, clock, rngs)
            memory = {n: m for n, m in after.memory.items() if n.startswith(AT_SERVER)}
            seen.append(torch.cat([g[0, 0] for g in after.grads.values()])[:count].double())
        yield torch.stack(seen)
