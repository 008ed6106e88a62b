"""Progress of long work on stderr: which phase, how far, for how long, and how long it still takes at most."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = ["Progress", "Reporter", "cells_line", "minutes", "noting", "planned", "saying", "unreported"]

Progress: TypeAlias = Callable[[str, float, int | None], None]
"""(phase, done, total): called after each piece of work; within a piece, done is a fraction."""

BAR = 20
"""Width of the bar on a terminal, in characters."""


@dataclass
class Reporter:
    """Shows the progress of a command: one line that a terminal redraws, or a short line now and then in a file.

    Call it with (phase, done, total) after each piece of work. Close it when the work ends.

    Args:
        quiet: Show no progress. `say` still writes.
        stream: Where lines are written.
        every: Least number of seconds between two lines where `stream` is not a terminal.
        after: Seconds of work before the first line where `stream` is not a terminal; shorter work shows nothing.
        heading: Text at the start of each line, such as "cell 3 of 12".
        tail: Text at the end of each line, such as the number of failures.
    """

    quiet: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    every: float = 10.0
    after: float = 0.0
    heading: str = ""
    tail: str = ""
    _phases: tuple[str, ...] = ()
    _phase: str = ""
    _done: float = 0
    _total: int = 0
    _began: float | None = None
    _started: float = 0.0
    _first: float = 0
    _written: float = float("-inf")
    _end: float | None = None
    _live: Live | None = field(default=None, repr=False)

    def plan(self, phases: Sequence[str]) -> None:
        """Name the phases to come, in order, so that each line says "phase n of m"."""
        self._phases = tuple(phases)

    def bound(self, seconds: float) -> None:
        """Set an upper bound of the seconds that are left; a later call can lower the end of the work but not raise it."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        end = now + seconds
        self._end = end if self._end is None else min(self._end, end)

    def __call__(self, phase: str, done: float, total: int | None) -> None:
        """Show how far the work is."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        if phase != self._phase:
            self.close()
            # Work that an earlier process did says nothing about the rate of this one.
            self._phase, self._started, self._first, self._written = phase, now, done, float("-inf")
        # A server may not say how much is to come.
        self._done, self._total = done, int(done) if total is None else total
        if self.quiet or self._total == 0:
            return
        if self.stream.isatty():
            self._draw(now)
        elif now - self._began >= self.after and (done == self._total or now - self._written >= self.every):
            self._written = now
            self._write(f"{self._line(now)}\n")

    def say(self, line: str) -> None:
        """Write a separate line, also where progress is quiet."""
        self._stop(erase=True)
        self._write(f"{line}\n")

    def note(self, line: str) -> None:
        """Write a separate line, such as an estimate, unless progress is quiet."""
        if not self.quiet:
            self.say(line)

    def close(self) -> None:
        """End the line that a terminal redraws; the line stays as it is."""
        self._stop(erase=False)

    def _line(self, now: float) -> str:
        """Return "phase (n of m): done of total, elapsed, what is left"."""
        return f"{self._name}: {_count(self._done, self._total)}{self._times(now)}{self.tail}"

    @property
    def _name(self) -> str:
        start = f"{self.heading}, " if self.heading else ""
        if self._phase not in self._phases:
            return f"{start}{self._phase}"
        return f"{start}{self._phase} (phase {self._phases.index(self._phase) + 1} of {len(self._phases)})"

    def _times(self, now: float) -> str:
        elapsed = 0.0 if self._began is None else now - self._began
        said = f", {minutes(elapsed)} elapsed" if elapsed > 0 else ""
        fresh, seconds = self._done - self._first, now - self._started
        if self._end is not None:
            left = self._end - now
            return f"{said}, {f'at most {minutes(left)} left' if left >= 0 else 'slower than estimated'}"
        if fresh <= 0 or self._done >= self._total:
            return said
        return f"{said}, about {minutes(seconds / fresh * (self._total - self._done))} left"

    def _draw(self, now: float) -> None:
        """Show the line on a terminal; a thread redraws it, so that the elapsed time runs also within a piece of work."""
        from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

        if self._live is None:
            self._live = Live(
                console=_console(self.stream),
                get_renderable=self._drawn,
                refresh_per_second=4,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        if self._done == self._total:
            self._stop(erase=False)

    def _drawn(self) -> RenderableType:
        from rich.progress_bar import ProgressBar  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(self._total, min(self._done, self._total), BAR)
        line = Text(self._line(time.monotonic()), no_wrap=True, overflow="ellipsis")
        row.add_row(bar, line)
        return row

    def _stop(self, erase: bool) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.transient = erase
            live.stop()

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _console(stream: TextIO) -> Console:
    """Return a console that leaves the cursor visible: a process that is killed could not show it again."""
    from rich.console import Console  # noqa: PLC0415

    class Visible(Console):
        def show_cursor(self, show: bool = True) -> bool:
            return False

    return Visible(file=stream, force_terminal=True, highlight=False)


def saying(progress: Progress) -> Callable[[str], None]:
    """Return a function that writes a line next to the progress; for a plain callback, one that writes nothing."""
    return progress.say if isinstance(progress, Reporter) else lambda _: None


def noting(progress: Progress) -> Callable[[str], None]:
    """Return a function that writes a line unless progress is quiet; for a plain callback, one that writes nothing."""
    return progress.note if isinstance(progress, Reporter) else lambda _: None


def unreported(phase: str, done: float, total: int | None) -> None:
    """Report no progress."""


def planned(progress: Progress, phases: Sequence[str]) -> None:
    """Tell a `Reporter` the phases to come; a plain callback does not need them."""
    if isinstance(progress, Reporter):
        progress.plan(phases)


def cells_line(cells: int, measured: Sequence[float]) -> str:
    """Return the line that a command prints before it measures cells.

    Args:
        cells: Number of cells that have to be measured.
        measured: Seconds that each of some comparable cells took before; may be empty.
    """
    many = "1 cell" if cells == 1 else f"{cells} cells"
    if not measured:
        return f"{many} to measure; the time is not known before the first one is measured"
    seconds = cells * sum(measured) / len(measured)
    return f"{many} to measure, about {minutes(seconds)} by the {len(measured)} that were measured before"


def _count(done: float, total: int) -> str:
    if total == 1:
        return f"{done:.0%}"
    return f"{done} of {total}" if isinstance(done, int) else f"{done:.2f} of {total}"


def minutes(seconds: float) -> str:
    """Return seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
