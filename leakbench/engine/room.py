"""Work on many lanes that halves the number of lanes at once if memory is too small for all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch

from leakbench.core.errors import InputError, out_of_memory, wanted

__all__ = ["Room", "Say", "unsaid"]

T = TypeVar("T")

Say: TypeAlias = Callable[[str], None]
"""Called with one line for the user, without a line break."""


def unsaid(line: str) -> None:
    """Ignore a line."""


@dataclass
class Room:
    """Runs work on lanes in chunks, and halves the size of the chunks whenever memory is too small.

    Args:
        what: Name of the lanes in messages, such as `victims`.
        most: Largest number of lanes at once.
        lower: Advice for the message if one lane alone needs too much memory.
        say: Called with a message at each halving.
    """

    what: str
    most: int
    lower: str
    say: Say = unsaid

    def __call__(self, lanes: slice, work: Callable[[slice], T]) -> Iterator[tuple[slice, T]]:
        """Yield (some lanes, the result of `work` on them) in order, for all from `lanes.start` to `lanes.stop`.

        Args:
            work: Called again on a part of the same lanes if memory was too small, so it has to create its random generators.

        Raises:
            InputError: If memory is too small for one lane.
        """
        start = lanes.start
        while start < lanes.stop:
            where = slice(start, min(lanes.stop, start + self.most))
            result = self._tried(where, work)
            if result is None:
                self._free()
            else:
                yield where, result[0]
                start = where.stop

    def _tried(self, where: slice, work: Callable[[slice], T]) -> tuple[T] | None:
        """Return the result of the work on the lanes; if memory is too small, halve the number of lanes and return None."""
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
        if half < self.most:  # Otherwise another thread has halved the number already.
            self.most = half
            self.say(f"not enough memory for {many} {self.what} side by side: continuing with {half} at a time")
        return None

    @staticmethod
    def _free() -> None:
        """Free the memory of failed work. Called after the error is gone, since its frames hold tensors."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
