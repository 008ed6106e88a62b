"""Independent pieces of work on all cores: one thread a piece, each on its share of PyTorch's threads.

The tensors of one piece stay in one core's cache, and cores wait for each other once a piece and not once an operation: on small
networks that is faster than threads within operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch

__all__ = ["Cut", "pieces_of", "shares_of", "side_by_side"]

T = TypeVar("T")

MOST_WORKERS = 8
"""Python runs one thread at a time between operations, so that more would wait for each other."""

LEAST_SHARE = 4
"""A thread is worth its waits for Python's lock from a quarter of the lanes on that fill a core's cache."""


def side_by_side(work: Sequence[Callable[[], T]], threads: int | None = None) -> list[T]:
    """Return what each piece returns, in order; the first error that a piece raises is raised here.

    Args:
        threads: Of each piece's operations; by default its share of PyTorch's. One where a piece is small: two cores that wait
            for each other after each small operation are slower than one.
    """
    all_threads = torch.get_num_threads()
    workers = min(all_threads, len(work), MOST_WORKERS)
    each = threads or all_threads // max(1, workers)
    if workers <= 1:
        return _within(each, work)
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(each,))
    try:
        running = [pool.submit(piece) for piece in work]
        return [one.result() for one in running]
    finally:
        pool.shutdown(cancel_futures=True)
        # A worker's count, also of one that has only just begun, is what threads to come would begin with.
        torch.set_num_threads(all_threads)


def _within(threads: int, work: Sequence[Callable[[], T]]) -> list[T]:
    before = torch.get_num_threads()
    if threads == before:
        return [piece() for piece in work]
    torch.set_num_threads(threads)
    try:
        return [piece() for piece in work]
    finally:
        torch.set_num_threads(before)


def pieces_of(count: int, size: int) -> list[slice]:
    """Return slices of `count` lanes, each of at most `size`, as equal as can be, and as many as keep all threads busy that pay."""
    pieces = -(-count // max(1, size))
    threads = _paying(count, size)
    return _equal(count, max(1, min(count, -(-pieces // threads) * threads)))


def shares_of(count: int, size: int) -> list[slice]:
    """Return slices of `count` lanes, as equal as can be, one for each thread that pays where `size` lanes fill a core's cache."""
    return _equal(count, max(1, min(count, _paying(count, size))))


def _paying(count: int, size: int) -> int:
    return max(1, min(torch.get_num_threads(), MOST_WORKERS, count * LEAST_SHARE // max(1, size)))


def _equal(count: int, pieces: int) -> list[slice]:
    ends = [round(count * i / pieces) for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


@dataclass(frozen=True)
class Cut:
    """How lanes are cut into pieces for threads: `size` of them fill the caches; None: all lanes are one piece."""

    size: int | None

    def pieces(self, count: int) -> list[slice]:
        """Return `pieces_of` so many lanes."""
        return [slice(0, count)] if self.size is None else pieces_of(count, self.size)

    def shares(self, count: int) -> list[slice]:
        """Return `shares_of` so many lanes."""
        return [slice(0, count)] if self.size is None else shares_of(count, self.size)

    def __call__(self, work: Sequence[Callable[[], T]]) -> list[T]:
        """Return what each piece returns, `side_by_side`; a lane that fills the caches alone gets several threads."""
        return side_by_side(work, 1 if self.size is not None and self.size > 1 else None)
