"""Measures the seconds of work in turns, so that compared work runs under the same conditions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import torch

__all__ = ["ONE", "Arms", "either_way", "in_turns", "least", "median", "one_thread_each", "seconds", "with_threads"]

T = TypeVar("T")

Arms: TypeAlias = Mapping[str, Callable[[], object]]
"""{name: the work}, in the order of the turns."""


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that a piece of work takes by a clock, by default wall seconds."""
    began = clock()
    work()
    return clock() - began


ONE = ", one thread"
"""End of the name of an arm that runs a reference with one thread."""


def with_threads(count: int, work: Callable[[], T]) -> T:
    """Return the result of the work, run with `threads` of PyTorch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return work()
    finally:
        torch.set_num_threads(before)


def either_way(arms: Mapping[str, Callable[[], T]]) -> dict[str, Callable[[], T]]:
    """Return references with PyTorch's current threads, and each with one thread too, which is faster for small networks."""
    if torch.get_num_threads() == 1:
        return dict(arms)
    alone = {f"{name}{ONE}": partial(with_threads, 1, work) for name, work in arms.items()}
    return {name: work for both in zip(arms.items(), alone.items(), strict=True) for name, work in both}


def least(repeat: Mapping[str, float], names: Iterable[str]) -> float:
    """Return the least seconds of these references in one repeat, with any number of threads."""
    return min(repeat[way] for name in names for way in (name, f"{name}{ONE}") if way in repeat)


def one_thread_each(
    repeats: Sequence[Mapping[str, float]], names: Sequence[str], ours: str, factor: float = 1.0
) -> dict[str, float]:
    """Return the ratio of the fastest reference's time to leakbench's, both with one thread, for a figure's parts.

    Ours works with all cores on one piece of work, and a reference's one process may not.

    Args:
        factor: Of ours in a unit of the reference's.
    """
    if f"{ours}{ONE}" not in repeats[0]:
        return {}
    ratios = [min(t[f"{name}{ONE}"] for name in names) / (t[f"{ours}{ONE}"] * factor) for t in repeats]
    return {"times, one thread each": statistics.median(ratios)}


def in_turns(
    arms: Arms, repeats: int, warm: bool = True, clock: Callable[[], float] = time.perf_counter
) -> list[dict[str, float]]:
    """Return the seconds of each arm in each repeat; each repeat runs all arms once.

    Args:
        warm: Run every arm once before, untimed, since the first run of anything in PyTorch also prepares what later ones find.
        clock: Returns the seconds so far; `time.process_time` for those of the processor.
    """
    if warm:
        for work in arms.values():
            work()
    return [{name: seconds(work, clock) for name, work in arms.items()} for _ in range(repeats)]


def median(repeats: Sequence[Mapping[str, float]], arm: str) -> float:
    """Return the median seconds of one arm."""
    return statistics.median(repeat[arm] for repeat in repeats)
