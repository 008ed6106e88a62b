"""Releases: the mechanisms that one observer sees over a whole training, in the order of the rounds."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from leakbench.core.words import epsilon_text
from leakbench.privacy.calibration import Noise
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.group import Group
from leakbench.privacy.ledger import Schedule, Stretch, Unit
from leakbench.privacy.mechanism import Mechanism, Mechanisms, Mixture, merged
from leakbench.privacy.shuffle import Shuffled

__all__ = [
    "GROWING",
    "OBSERVERS",
    "Guarded",
    "Observation",
    "Part",
    "Released",
    "Releases",
    "drawn",
    "in_blocks",
    "multiplier",
    "repeated",
    "span",
]

GROWING = "the noise grows with the number drawn and shows how many were drawn: sampling (q) does not amplify privacy"


OBSERVERS = ("global", "type-2", "type-1", "type-0")

Releases: TypeAlias = tuple[Mechanism | Group | DiscreteMechanism, ...]
"""The releases of one participation."""

One = TypeVar("One", bound=Mechanism | Group | DiscreteMechanism)


@dataclass(frozen=True)
class Guarded:
    """A stretch of the training, with the noises that protect one unit in each of its phases, at least one each."""

    stretch: Stretch
    noises: tuple[tuple[Noise, ...], ...]


@dataclass(frozen=True)
class Part:
    """The releases of one unit in consecutive rounds.

    Args:
        rounds: Number of rounds.
        drawn: The releases, with the randomness of the draw of clients.
        every: The releases if the unit takes part as often as it can.
        one: The release of one counted event (`Released.counted`).
        most: Largest number of counted events in these rounds.
    """

    rounds: int
    drawn: Mechanisms
    every: Mechanisms
    one: Releases
    most: int


@dataclass(frozen=True)
class Released:
    """The releases of one unit to an observer.

    Args:
        sentence: The releases in one sentence, with their numbers and adjacency.
        counted: Name of the run's count (`Schedule.largest`) that the realised figure uses.
        shuffled: The same releases to an observer that does not see which client sent what; None if it does.
    """

    parts: tuple[Part, ...]
    sentence: str
    counted: str
    shuffled: Shuffled | None = None

    @property
    def mechanisms(self) -> Mechanisms:
        """The releases of all parts, with the randomness of the draw of clients."""
        return merged(mechanism for part in self.parts for mechanism in part.drawn)

    @property
    def without_draw(self) -> Mechanisms:
        """The releases of all parts if the unit takes part as often as it can."""
        return merged(mechanism for part in self.parts for mechanism in part.every)

    def realised(self, count: int) -> Mechanisms:
        """Return the releases of `count` counted events in the rounds with the least noise, since a run does not count by round."""
        releases, left = list[Mechanism | Group | DiscreteMechanism](), count
        for part in sorted(self.parts, key=lambda part: min(m.noise_multiplier for m in part.one)):
            times = min(left, part.most)
            releases += repeated(part.one, times)
            left -= times
        return merged(releases)


def repeated(mechanisms: Releases, times: int) -> Releases:
    """Return the releases of `times` participations."""
    return tuple(dataclasses.replace(m, steps=m.steps * times) for m in mechanisms)


def drawn(one: Releases, unit: Unit, stretch: Stretch, schedule: Schedule) -> Mechanisms:
    """Return the releases of a stretch to an observer that sees which clients take part.

    Args:
        one: The releases of one participation; integer noise only alone, for a client.
        unit: `example` is the example with the most copies.
    """
    cohort, holders = stretch.clients_per_round, schedule.most_copies if unit == "example" else 1
    if schedule.client_sampling == "in_turn":
        return repeated(one, schedule.most_participations(unit, cohort, stretch.rounds))
    rounds, rate = schedule.turns(stretch.rounds), schedule.rate(cohort)
    if rate == 1:
        return repeated(one, holders * rounds)
    first = one[0]
    single = holders == 1 and len(one) == 1 and (first.sampling_rate, first.steps) == (1.0, 1)
    if single and not isinstance(first, Group):
        return (dataclasses.replace(first, sampling_rate=rate, steps=rounds, sampling="visible"),)
    inner = tuple(m for m in one if isinstance(m, Mechanism | Group))
    if len(inner) < len(one):
        raise ValueError("releases: got integer noise with others or for an example, expected one release of a client")
    # Holders in several groups take part in other rounds than holders in one, but as often: each draw is independent.
    drawn_of = (schedule.clients, holders, schedule.groups * cohort, schedule.client_sampling)
    return (Mixture(inner, *drawn_of, rounds),)


def in_blocks(
    several: Sequence[tuple[tuple[One, ...], Stretch]], schedule: Schedule
) -> list[tuple[tuple[One, ...], Stretch]]:
    """Return (the releases of one participation, their rounds) such that the turns of all stretches can be added up.

    If groups of clients take turns, each group has one turn in every block of G rounds, and at most one in the last rounds. Turns
    that are counted for each stretch of rounds by itself would be far more. So every block counts once, with the least noise in it
    and the largest cohort, which covers every group. Releases of different kinds are not compared, and count for each stretch.
    """
    if schedule.groups == 1 or len({_kind(one) for one, _ in several}) > 1:
        return list(several)
    by_round = [pair for pair in several for _ in range(pair[1].rounds)]
    found = list[tuple[tuple[One, ...], Stretch]]()
    for first in range(0, len(by_round), schedule.groups):
        block = by_round[first : first + schedule.groups]
        one = tuple(min(each, key=lambda m: m.noise_multiplier) for each in zip(*(r for r, _ in block), strict=True))
        largest = max((stretch for _, stretch in block), key=lambda stretch: stretch.clients_per_round)
        rounds = len(block)
        if found and (found[-1][0], found[-1][1].clients_per_round) == (one, largest.clients_per_round):
            _, before = found.pop()
            first, rounds = before.first, before.rounds + rounds  # noqa: PLW2901
        found.append((one, dataclasses.replace(largest, first=first, rounds=rounds)))
    return found


def _kind(one: Releases) -> Releases:
    """Return the releases without their Gaussian noise, by which two of the same kind differ."""
    return tuple(dataclasses.replace(m, noise_multiplier=1.0) if isinstance(m, Mechanism | Group) else m for m in one)


Observation: TypeAlias = Released | str
"""The releases, or the reason why no guarantee follows."""


def multiplier(noises: tuple[Noise, ...], std: Callable[[Noise], float]) -> float:
    """Return the noise multiplier: the squares of the noises of one part add up, and the strongest part counts."""
    squares: dict[int, float] = defaultdict(float)
    for noise in noises:
        squares[noise.part] += (std(noise) / noise.bound) ** 2
    return math.sqrt(max(squares.values()))


def span(parts: Sequence[Part]) -> str:
    """Return the noise multiplier as text: a number, or the least (with its round) and the largest one if it varies."""
    first, levels = 1, list[tuple[float, int]]()
    for part in parts:
        levels += [(mechanism.noise_multiplier, first) for mechanism in part.every]
        first += part.rounds
    (least, where), (most, _) = min(levels), max(levels)
    text = epsilon_text(least, ".4g")
    return text if least == most else f"{text} (least, in round {where}) to {epsilon_text(most, '.4g')}"
