"""Trials of whole trainings whose noise is correlated over the rounds, with the transforms of the server."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from leakbench.auditing.bounds import Reals
from leakbench.auditing.release import DefenseRelease
from leakbench.auditing.trials import LONG, Scores
from leakbench.core.progress import Progress, unreported
from leakbench.core.rng import generator, generators
from leakbench.core.types import AT_SERVER, Parameters, Signal
from leakbench.defense.transform import apply
from leakbench.federated.sampling import draw_clients, groups_of

__all__ = ["Turns", "played"]

NUMBERS = 20_000_000
"""Approximate number of random numbers of all rounds that are in memory at once."""

SAMPLE = 100
"""Number of trainings for each round from which the covariance of the noise is computed."""


TRIED = 1000
"""Largest number of clients that take turns among which the one with the most harmful rounds is chosen."""


@dataclasses.dataclass(frozen=True)
class Turns:
    """How a client takes part in a training.

    Args:
        rounds: Number of rounds that are trained.
        cohorts: How the server draws its clients, see `Defense.cohorts`.
        rate: Probability that the client takes part in a round in which it can, independently; 1 if the epsilon counts on all.
        length: Length of its contribution to a round's sum.
    """

    rounds: int
    cohorts: str
    rate: float
    length: float


def played(release: DefenseRelease, turns: Turns, trials: int, progress: Progress = unreported) -> Scores:
    """Return the scores of trainings with and without a client, as an observer of the released models computes them.

    Each coordinate is a training by itself, with its own noise of all rounds and its own client, which moves it by `turns.length`.
    The rounds of the client are those for which the federation's own draw chooses it, and if the epsilon counts on all rounds of
    its turns, also these. The score is the likelihood ratio if two rounds of the client share no noise, and else close to it: a
    score that is not the best one only lowers the audited epsilon. It takes the covariance of the noise from other trainings.

    Args:
        release: The client and the server station, with the clock of the whole training.
        turns: How the client takes part.
        trials: Number of trainings of each world.
        progress: Called with the number of finished trainings, if all of them take long.
    """
    began = time.monotonic()
    shape, several = torch.zeros(turns.rounds, turns.rounds, dtype=torch.float64), 20_000 + SAMPLE * turns.rounds
    for _, noise in _noise(release, turns.rounds, several, 0):
        shape += noise @ noise.T
    whole = torch.linalg.inv(shape / several)
    where = _worst(release, turns, whole)
    precision = whole[where]
    own = turns.length**2 * precision[range(len(where)), where]

    def world(shift: float, kind: int) -> Reals:
        pieces = []
        for start, noise in _noise(release, turns.rounds, trials, kind):
            if shift:
                noise += shift * _taking_part(release, turns, where, noise.shape[1], start)  # noqa: PLW2901
            each = turns.length * (precision @ noise) - own[:, None] / 2
            pieces.append(_mixed(each, turns.rate).sum(0))
            if time.monotonic() - began > LONG:
                progress("audit", (kind - 1) * trials + start + noise.shape[1], 2 * trials)
        scores: Reals = torch.cat(pieces).numpy()
        return scores

    return Scores(world(turns.length, 1), world(0.0, 2))


def _worst(release: DefenseRelease, turns: Turns, precision: Tensor) -> list[int]:
    """Return the indices of the rounds in which the client takes part that the noise protects the least.

    Args:
        precision: The inverse of the covariance (T, T) of the noise.
    """
    clock, rounds = release.clock, turns.rounds
    several = [list(range(first, rounds, clock.groups)) for first in range(min(clock.groups, rounds))]
    if clock.in_turn:
        drawn = torch.zeros(rounds, clock.clients, dtype=torch.bool)
        for t in range(rounds):
            drawn[t, draw_clients(clock.clients, clock.cohort, turns.cohorts, release.seed, t)] = True
        patterns = {tuple(own.nonzero()[:, 0].tolist()) for own in drawn[:, :TRIED].T}
        several = [list(pattern) for pattern in sorted(patterns)]
    return max(several, key=lambda where: float(precision[where][:, where].sum()))


def _taking_part(release: DefenseRelease, turns: Turns, where: list[int], count: int, start: int) -> Tensor:
    """Return in which rounds each of `count` clients takes part, (rounds, count) bool.

    The clients are those of one group of a federation that is as many times larger as it must be, with the same rates.

    Args:
        where: The rounds in which their group has its turn.
        start: Number of trainings before these.
    """
    clock, there = release.clock, torch.zeros(turns.rounds, count, dtype=torch.bool)
    if turns.rate < 1 or clock.groups > 1:
        seed = int(torch.randint(2**31, (1,), generator=generator(release.seed, "audit cohorts", start)))
        times = -(-count * clock.groups // clock.clients)
        clients, cohort = times * clock.clients, times * clock.cohort
        members = (groups_of(clients, seed, clock.groups) == where[0]).nonzero()[:count, 0]
        for t in range(turns.rounds):
            drawn = torch.zeros(clients, dtype=torch.bool)
            drawn[draw_clients(clients, cohort, turns.cohorts, seed, t, clock.groups)] = True
            there[t] = drawn[members]
    if turns.rate == 1:
        there[where] = True
    return there


def _mixed(ratios: Tensor, rate: float) -> Tensor:
    """Return log(1 - rate + rate exp(ratios))."""
    if rate == 1:
        return ratios
    return torch.logaddexp(ratios + math.log(rate), torch.full_like(ratios, math.log1p(-rate)))


def _noise(release: DefenseRelease, rounds: int, trials: int, kind: int) -> Iterator[tuple[int, Tensor]]:
    """Yield (number of trainings before, noise (rounds, n) in their sums), together for `trials` trainings."""
    names = list(release.probe.network.parameters)
    most = max(len(names), NUMBERS // max(rounds, release.clock.groups))
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
        yield start, torch.stack(seen)
