"""Seconds of work, in turns: what is compared meets the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

__all__ = ["Arms", "in_turns", "median", "seconds"]

Arms: TypeAlias = Mapping[str, Callable[[], object]]
"""{name: the work}, in the order of the turns."""


def seconds(work: Callable[[], object]) -> float:
    """Return the wall seconds that a piece of work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(arms: Arms, repeats: int, warm: bool = True) -> list[dict[str, float]]:
    """Return the seconds of each arm in each repeat: all arms once, then all again.

    warm: run every arm once before, untimed, since the first run of anything in PyTorch also prepares what later ones find.
    """
    if warm:
        for work in arms.values():
            work()
    return [{name: seconds(work) for name, work in arms.items()} for _ in range(repeats)]


def median(repeats: Sequence[Mapping[str, float]], arm: str) -> float:
    """Return the median seconds of one arm."""
    return statistics.median(repeat[arm] for repeat in repeats)
