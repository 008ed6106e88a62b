"""Independent pieces of work on all cores: one thread a piece, each on its share of PyTorch's threads.

The tensors of one piece stay in one core's cache, and cores wait for each other once a piece and not once an operation: on small
networks that is faster than threads within operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import torch

__all__ = ["pieces_of", "side_by_side"]

T = TypeVar("T")

MOST_WORKERS = 8
"""Python runs one thread at a time between operations, so that more would wait for each other."""


def side_by_side(work: Sequence[Callable[[], T]]) -> list[T]:
    """Return what each piece returns, in order; the first error that a piece raises is raised here."""
    threads = torch.get_num_threads()
    workers = min(threads, len(work), MOST_WORKERS)
    if workers <= 1:
        return [piece() for piece in work]
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
    try:
        running = [pool.submit(piece) for piece in work]
        return [one.result() for one in running]
    finally:
        pool.shutdown(cancel_futures=True)
        # A worker's count, also of one that has only just begun, is what threads to come would begin with.
        torch.set_num_threads(threads)


def pieces_of(count: int, size: int) -> list[slice]:
    """Return slices of `count` lanes, each of at most `size`, as equal as can be and as many as keep all threads busy."""
    threads = min(torch.get_num_threads(), MOST_WORKERS)
    pieces = -(-count // max(1, size))
    pieces = max(1, min(count, -(-pieces // threads) * threads))
    ends = [round(count * i / pieces) for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
