"""Independent pieces of work on all cores: one thread per piece, each with a share of PyTorch's threads.

The tensors of one piece stay in one core's cache, and cores wait for each other once per piece and not once per operation. For
small networks this is faster than threads within operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch

__all__ = ["Pieces", "pieces_of", "shares_of", "side_by_side"]

T = TypeVar("T")

MOST_WORKERS = 8
"""Largest number of threads: Python runs one thread at a time between operations, so more would wait for each other."""

LEAST_SHARE = 4
"""A thread pays off if its lanes fill at least 1 / LEAST_SHARE of a core's cache, since threads wait for Python's lock."""


def side_by_side(work: Sequence[Callable[[], T]], threads: int | None = None) -> list[T]:
    """Return the result of each piece, in order; the first error of a piece is raised.

    Args:
        threads: Number of threads of each piece's operations; by default its share of PyTorch's. One thread is best for small
            pieces, where two cores that wait for each other after each operation are slower than one.
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
        # A worker sets the number of threads for later threads too, so it is reset here.
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
    """Return slices of `count` lanes of nearly equal length, at most `size`, in a number that keeps all useful threads busy."""
    pieces = -(-count // max(1, size))
    threads = _paying(count, size)
    return _equal(count, max(1, min(count, -(-pieces // threads) * threads)))


def shares_of(count: int, size: int) -> list[slice]:
    """Return slices of `count` lanes of nearly equal length, one for each useful thread if `size` lanes fill a core's cache."""
    return _equal(count, max(1, min(count, _paying(count, size))))


def _paying(count: int, size: int) -> int:
    return max(1, min(torch.get_num_threads(), MOST_WORKERS, count * LEAST_SHARE // max(1, size)))


def _equal(count: int, pieces: int) -> list[slice]:
    ends = [round(count * i / pieces) for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


@dataclass(frozen=True)
class Pieces:
    """The division of lanes into pieces for threads.

    Args:
        size: Number of lanes that fill the caches; None for one piece with all lanes.
    """

    size: int | None

    def pieces(self, count: int) -> list[slice]:
        """Return `pieces_of(count, size)`."""
        return [slice(0, count)] if self.size is None else pieces_of(count, self.size)

    def shares(self, count: int) -> list[slice]:
        """Return `shares_of(count, size)`."""
        return [slice(0, count)] if self.size is None else shares_of(count, self.size)

    def __call__(self, work: Sequence[Callable[[], T]]) -> list[T]:
        """Return the result of each piece, as `side_by_side`; a lane that fills the caches alone gets several threads."""
        return side_by_side(work, 1 if self.size is not None and self.size > 1 else None)
