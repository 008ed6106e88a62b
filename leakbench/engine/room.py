"""Work on many lanes that goes on in halves where memory does not hold all of them side by side."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch

from leakbench.errors import InputError, out_of_memory, wanted

__all__ = ["Room", "Say", "unsaid"]

T = TypeVar("T")

Say: TypeAlias = Callable[[str], None]
"""Told one line for the user, without its end."""


def unsaid(line: str) -> None:
    """Say nothing."""


@dataclass
class Room:
    """For how many lanes there is room side by side: half as many from the first lack of memory on.

    Args:
        what: What the lanes are, as in `victims`.
        most: How many at once.
        lower: What takes less memory where one lane alone is too much.
        say: Told of each halving.
    """

    what: str
    most: int
    lower: str
    say: Say = unsaid

    def __call__(self, lanes: slice, work: Callable[[slice], T]) -> Iterator[tuple[slice, T]]:
        """Yield (some lanes, what `work` makes of them) in order, until all from `lanes.start` to `lanes.stop` are done.

        Args:
            work: May be called again on a part of the same lanes after it failed, so that it makes all generators from which it
                draws. Raises InputError where memory does not suffice for one lane.
        """
        start = lanes.start
        while start < lanes.stop:
            where = slice(start, min(lanes.stop, start + self.most))
            done = self._tried(where, work)
            if done is None:
                self._free()
            else:
                yield where, done[0]
                start = where.stop

    def _tried(self, where: slice, work: Callable[[slice], T]) -> tuple[T] | None:
        """Return what the work makes of the lanes; None, and from now on half as many, where memory did not suffice."""
        many = where.stop - where.start
        try:
            return (work(where),)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if many == 1:
                alone = f"memory: not enough for one of the {self.what} alone{wanted(error)}; {self.lower}"
                raise InputError(alone) from None
        half = (many + 1) // 2
        if half < self.most:  # Else a thread beside this one has said so.
            self.most = half
            self.say(f"not enough memory for {many} {self.what} side by side: continuing with {half} at a time")
        return None

    @staticmethod
    def _free() -> None:
        """Let go of what failed: called when the error, whose frames hold its tensors, is gone."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
