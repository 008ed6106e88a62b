"""What is computed of the seconds of work in turns; `leakbench.reproduce.cost` measures them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch

from leakbench.reproduce.cost import with_threads

T = TypeVar("T")

ONE = ", one thread"
"""End of the name of an arm that runs a reference with one thread."""


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


def median(repeats: Sequence[Mapping[str, float]], arm: str) -> float:
    """Return the median seconds of one arm."""
    return statistics.median(repeat[arm] for repeat in repeats)
