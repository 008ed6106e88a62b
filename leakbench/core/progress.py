"""Progress of long work on stderr: which phase and step, how far, for how long, and how long it still takes."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = [
    "Progress",
    "Reporter",
    "Tick",
    "begin",
    "cells_line",
    "minutes",
    "noting",
    "planned",
    "saying",
    "ticking",
    "unreported",
    "unticked",
]

Progress: TypeAlias = Callable[[str, float, int | None], None]
"""(phase, done, total): called after each piece of work; within a piece, done is a fraction."""

BAR = 20
"""Width of the bar on a terminal, in characters."""

ROOMY = 100
"""Width of a terminal from which on there is room for the bar."""

SHORTEST = 12
"""Least number of characters of a step's name that is cut short."""

WINDOW = 0.05
"""Least share of the work of a phase over which its speed is measured."""

WINDOWS = 2
"""Number of measurements of the speed after which it is known well enough for an estimate of the time left."""

RECENT = 4
"""Number of the last measurements that count, so that a pause of the machine is forgotten."""


class Tick(Protocol):
    """Called again and again while work goes on that moves no count, such as after each gradient evaluation."""

    def __call__(self, step: str = "", share: float | None = None) -> None:
        """Show that the work goes on.

        Args:
            step: Name of the step in plain words; empty for the same step as before.
            share: Share of the step that is done; None if it is not known.
        """


def unticked(step: str = "", share: float | None = None) -> None:
    """Show nothing."""


@dataclass
class Reporter:
    """Shows the progress of a command: one line that a terminal redraws, or a short line now and then in a file.

    Call it with (phase, done, total) after each piece of work, and `tick` within long pieces; several threads may call it. Close it
    when the work ends.

    The estimate of the time left of a phase assumes the slowest of the last speeds measured. It is printed after `WINDOWS`
    measurements. If the phase turns out to be slower than a printed estimate, the line says so, with a new one by the mean of the
    last speeds, as long as the new end is later than the first. Until then, estimates only fall.

    Args:
        quiet: Show no progress. `say` still writes.
        stream: Where lines are written.
        every: Least number of seconds between two lines where `stream` is not a terminal.
        after: Seconds of work before the first line; shorter work shows nothing.
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
    _last: float = float("-inf")
    _end: float | None = None
    _end_printed: bool = False
    _marks: tuple[tuple[float, float], ...] = ()
    _left: float | None = None
    _left_printed: bool = False
    _missed: float | None = None
    _step: str = ""
    _stepped: float = 0.0
    _resumed: str = ""
    _live: Live | None = field(default=None, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def plan(self, phases: Sequence[str]) -> None:
        """Name the phases to come, in order, so that each line says "phase n of m"."""
        self._phases = tuple(phases)

    def bound(self, seconds: float) -> None:
        """Set an upper bound of the seconds that are left; a later call can lower a printed end of the work but not raise it."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        end = now + seconds
        self._end = end if self._end is None else min(self._end, end)

    def begin(self, phase: str, done: float, total: int, place: str) -> None:
        """Show the start of a phase, which an earlier process may have done in part.

        Args:
            phase: Name of the phase.
            done: How far the phase is.
            total: Number of all items of the phase.
            place: Where a phase that was interrupted resumes, such as "victim 3".
        """
        with self._lock:
            if phase != self._phase and 0 < done < total:
                self._start(phase, done, time.monotonic())
                self._resumed = f", resumed at {place}"
            self(phase, done, total)

    def __call__(self, phase: str, done: float, total: int | None) -> None:
        """Show how far the work is."""
        now = time.monotonic()
        with self._lock:
            # The next cell may begin with the phase that ended the last one.
            if phase != self._phase or done < self._done == self._total:
                self._start(phase, done, now)
            # A server may not say how much is to come.
            self._done, self._total, self._step = done, int(done) if total is None else total, ""
            if self._total:
                self._estimate(now)
                self._show(now, done == self._total, self._written)

    def tick(self, step: str = "", done: float | None = None) -> None:
        """Show that the work goes on.

        Args:
            step: Name of the step in plain words, shown with its own time until the next count; empty for the same step.
            done: How far the phase is; None for as far as before.
        """
        now = time.monotonic()
        with self._lock:
            self._began = now if self._began is None else self._began
            if step and step != self._step:
                self._step, self._stepped = step, now
            if done is not None:
                self._done = done
            if self._total:
                self._estimate(now)
            if self._step or self._done < self._total:
                # A step that ends at once needs no line.
                self._show(now, False, max(self._last, self._began))

    def _start(self, phase: str, done: float, now: float) -> None:
        self.close()
        self._began = now if self._began is None else self._began
        # Work that an earlier process did says nothing about the rate of this one.
        self._phase, self._started, self._first, self._written = phase, now, done, float("-inf")
        self._marks = ((now, done),)
        self._left, self._left_printed, self._missed, self._resumed = None, False, None, ""

    def _show(self, now: float, at_once: bool, last: float) -> None:
        """Draw the line on a terminal; write it to a file, at once or if the `last` one is some time ago."""
        if self.quiet or now - (self._began or 0.0) < self.after:
            return
        if self.stream.isatty():
            self._draw()
        elif at_once or now - last >= self.every:
            self._write(f"{self._line(now)}\n")
            self._written, self._last, self._resumed = now, now, ""

    def _estimate(self, now: float) -> None:
        """Lower the estimate of when the phase ends, or make a new one if the phase is slower than a printed one."""
        fresh, rest = self._done - self._first, self._total - self._done
        if fresh <= 0:  # A later step counts from the start again, so nothing is known about its rate.
            return
        since, before = self._marks[-1]
        if self._done - before >= WINDOW * (self._total - self._first) > 0 and now - since >= self.every:
            self._marks = (*self._marks, (now, self._done))[-RECENT - 1 :]
        since, before = self._marks[0]
        if len(self._marks) <= WINDOWS or rest <= 0 or self._done <= before:
            return
        end = now + rest * max((to - start) / (more - some) for (start, some), (to, more) in pairwise(self._marks))
        if self._left is None or not self._left_printed:  # An estimate that was never printed may grow.
            self._left = end
            return
        self._left = min(self._left, end)
        by_mean = now + rest * (now - since) / (self._done - before)
        # Some seconds more are not worth a line.
        if by_mean > self._left + self.every:
            self._missed = self._left if self._missed is None else self._missed
            self._left = by_mean

    def say(self, line: str) -> None:
        """Write a separate line, also where progress is quiet."""
        with self._lock:
            self._stop(erase=True)
            self._write(f"{line}\n")

    def note(self, line: str) -> None:
        """Write a separate line, such as an estimate, unless progress is quiet."""
        if not self.quiet:
            self.say(line)

    def close(self) -> None:
        """End the line that a terminal redraws; the line stays as it is, but not that of a step between two phases."""
        with self._lock:
            self._stop(erase=bool(self._step) and self._done >= self._total)

    def _line(self, now: float, width: int | None = None) -> str:
        """Return "phase (n of m): done of total, step, elapsed, what is left".

        Where that is more than `width`, the step is cut short, then left out, and then the elapsed time is left out.
        """
        step = f"{self._step} for {minutes(now - self._stepped)}" if self._step else ""
        elapsed, left = self._times(now)
        if self._done >= self._total and step:  # A step between two phases.
            return f"{self._heading}{step}{elapsed}{left}{self.tail}"
        count = f"{self._name}: {_count(self._done, self._total)}{self._resumed}"
        end = f"{left}{self.tail}"
        room = math.inf if width is None else width - len(f"{count}{elapsed}{end}, ")
        if step and len(step) > room:
            step = f"{step[: int(room) - 1]}…" if room >= SHORTEST else ""
        line = f"{count}{f', {step}' if step else ''}{elapsed}{end}"
        return line if width is None or len(line) <= width else f"{count}{end}"

    @property
    def _heading(self) -> str:
        return f"{self.heading}, " if self.heading else ""

    @property
    def _name(self) -> str:
        if self._phase not in self._phases:
            return f"{self._heading}{self._phase}"
        return f"{self._heading}{self._phase} (phase {self._phases.index(self._phase) + 1} of {len(self._phases)})"

    def _times(self, now: float) -> tuple[str, str]:
        """Return the elapsed time, and what is left, each with a comma before it."""
        elapsed = 0.0 if self._began is None else now - self._began
        words = f", {minutes(elapsed)} elapsed" if elapsed > 0 else ""
        if not self._total or (
            self._step and self._done >= self._total
        ):  # No estimate is of a step between two phases.
            return words, ""
        if self._end is not None and now > self._end and not self._end_printed:
            self._end = None  # A bound that was never printed: a later one may be higher.
        if self._end is not None:
            self._end_printed = True
            left = self._end - now
            if left < 0 and self._done >= self._total:  # At the end of the last search, nothing is left.
                return words, ""
            return words, f", {f'at most {minutes(left)} left' if left >= 0 else 'slower than estimated'}"
        if self._left is None or self._done >= self._total:
            return words, ""
        left, slower = self._left - now, ", slower than estimated"
        if left < -self.every:
            return words, slower if self._left_printed else ""
        self._left_printed = True
        where = " in this phase" if self.heading or self._phase in self._phases[:-1] else ""
        late = self._missed is not None and self._left > self._missed
        return words, f"{slower if late else ''}, about {minutes(max(0.0, left))} left{where}"

    def _draw(self) -> None:
        """Show the line on a terminal; a thread redraws it, so that the elapsed time runs also within a piece of work."""
        from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

        if self._live is None:
            console = _console(self.stream)
            self._live = Live(
                console=console,
                get_renderable=lambda: self._drawn(console.width),
                refresh_per_second=4,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        if self._done == self._total and not self._step:
            self._stop(erase=False)

    def _drawn(self, width: int) -> RenderableType:
        from rich.progress_bar import ProgressBar  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        narrow = width < ROOMY
        line = self._line(time.monotonic(), width - 1 if narrow else width - BAR - 2)
        text = Text(line, no_wrap=True, overflow="ellipsis")
        if narrow:
            return text
        row = Table.grid(padding=(0, 1))
        row.add_row(ProgressBar(max(1, self._total), min(self._done, self._total), BAR), text)
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


def ticking(progress: Progress) -> Callable[[str, float | None], None]:
    """Return a function of (step, done) as `Reporter.tick`; for a plain callback, one that shows nothing."""
    return progress.tick if isinstance(progress, Reporter) else unticked


def begin(progress: Progress, phase: str, done: float, total: int, place: str) -> None:
    """Show the start of a phase, which an earlier process may have done in part; see `Reporter.begin`."""
    if isinstance(progress, Reporter):
        progress.begin(phase, done, total, place)
    else:
        progress(phase, done, total)


def unreported(phase: str, done: float, total: int | None) -> None:
    """Report no progress."""


def planned(progress: Progress, phases: Sequence[str]) -> None:
    """Tell a `Reporter` the phases to come; a plain callback does not need them."""
    if isinstance(progress, Reporter):
        progress.plan(phases)


def cells_line(cells: int, measured: Sequence[float], settings: int = 0, more: bool = False) -> str:
    """Return the line that a command prints before it measures cells.

    Args:
        cells: Number of cells that have to be measured.
        measured: Seconds that each of some comparable cells, or settings, took before; may be empty.
        settings: Number of settings that these cells belong to, where a setting may have several; 0 to name cells only.
        more: Whether further cells may follow from the results of these.
    """
    many = f"{'at least ' if more else ''}{'1 cell' if cells == 1 else f'{cells} cells'}"
    if settings:
        many = f"{'1 setting' if settings == 1 else f'{settings} settings'}, {many}"
    if not measured:
        return f"{many} to measure; the time is not known before the first one is measured"
    seconds = (settings or cells) * sum(measured) / len(measured)
    return f"{many} to measure, about {minutes(seconds)} by the {len(measured)} that were measured before"


def _count(done: float, total: int) -> str:
    if total == 1:
        return f"{done:.0%}"
    return f"{int(done)} of {total}"


def minutes(seconds: float) -> str:
    """Return seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
