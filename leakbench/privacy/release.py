"""Releases: the mechanisms that one observer is up against over a whole training, in the order of its rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from leakbench.privacy.calibration import Noise
from leakbench.privacy.ledger import Stretch
from leakbench.privacy.mechanism import Mechanisms, merged

__all__ = ["GROWING", "Guarded", "Observation", "Part", "Released", "multiplier", "span"]

GROWING = "the noise grows with the number drawn, which shows who was drawn, so q amplifies nothing"


@dataclass(frozen=True)
class Guarded:
    """A stretch of the training and the noises that guard one unit in each of its phases, at least one each."""

    stretch: Stretch
    noises: tuple[tuple[Noise, ...], ...]


@dataclass(frozen=True)
class Part:
    """What is released in `rounds` consecutive rounds; the mechanisms hold all steps of `participations` of the unit."""

    rounds: int
    participations: int
    mechanisms: Mechanisms


@dataclass(frozen=True)
class Released:
    """What an observer sees of one unit, and the same as one sentence with its numbers and its adjacency."""

    parts: tuple[Part, ...]
    sentence: str

    @property
    def mechanisms(self) -> Mechanisms:
        """All parts, one after the other."""
        return merged(mechanism for part in self.parts for mechanism in part.mechanisms)


Observation: TypeAlias = Released | str
"""What is released, or why there is no guarantee."""


def multiplier(noises: tuple[Noise, ...], std: Callable[[Noise], float]) -> float:
    """Return noise over bound: noises of one part add up in squares; of several parts the strongest stands alone."""
    squares: dict[int, float] = defaultdict(float)
    for noise in noises:
        squares[noise.part] += (std(noise) / noise.bound) ** 2
    return math.sqrt(max(squares.values()))


def span(parts: Sequence[Part]) -> str:
    """Return the noise multiplier in words: a number, or where it varies the least with its round, and the most."""
    first, levels = 1, list[tuple[float, int]]()
    for part in parts:
        levels += [(mechanism.noise_multiplier, first) for mechanism in part.mechanisms]
        first += part.rounds
    (least, where), (most, _) = min(levels), max(levels)
    return f"{least:.4g}" if least == most else f"{least:.4g} (least, in round {where}) to {most:.4g}"
