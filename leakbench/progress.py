"""Progress of long work on stderr: what, how far, how fast, how long still."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

__all__ = ["Progress", "Reporter", "minutes", "saying"]

Progress: TypeAlias = Callable[[str, float, int | None], None]
"""(phase, done, total): called after each piece of work; within a piece, done is a fraction."""


@dataclass
class Reporter:
    """Called with (phase, done, total) after each piece; on a terminal it rewrites one line, else it writes a line now and then.

    every: least seconds between two lines where stderr is no terminal; a terminal's line is rewritten ten times a second at most.
    tail: what stands after a line's rate.
    """

    quiet: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    every: float = 10.0
    tail: str = ""
    _phase: str = ""
    _started: float = 0.0
    _first: float = 0
    _written: float = float("-inf")

    def __call__(self, phase: str, done: float, total: int | None) -> None:
        """Say where the work is."""
        now = time.monotonic()
        if phase != self._phase:
            self.close()
            # What was done before this process began says nothing of its rate.
            self._phase, self._started, self._first, self._written = phase, now, done, float("-inf")
        if total is None:  # A server that does not say how much is to come.
            total = int(done)
        every = 0.1 if self.stream.isatty() else self.every
        if self.quiet or total == 0 or not (done == total or now - self._written >= every):
            return
        self._written = now
        fresh, seconds = done - self._first, now - self._started
        pace = f", {seconds / fresh:.2f} s each, {minutes(seconds / fresh * (total - done))} left" if fresh > 0 else ""
        line = f"{phase}: {_count(done)} of {total}{pace}{self.tail}"
        self.stream.write(f"{line}\x1b[K\r" if self.stream.isatty() else f"{line}\n")
        self.stream.flush()

    def say(self, line: str) -> None:
        """Write a line that is no progress, also where progress is quiet; a line that is being rewritten stays above it."""
        self.close()
        self.stream.write(f"{line}\n")
        self.stream.flush()

    def close(self) -> None:
        """End the line that is being rewritten."""
        if self._phase and not self.quiet and self.stream.isatty():
            self.stream.write("\n")


def saying(progress: Progress) -> Callable[[str], None]:
    """Return what writes a line beside the progress; of a function that only counts, what writes nothing."""
    return progress.say if isinstance(progress, Reporter) else lambda _: None


def _count(done: float) -> str:
    return str(done) if isinstance(done, int) else f"{done:.2f}"


def minutes(seconds: float) -> str:
    """Return seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
