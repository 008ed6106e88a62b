"""Runs a command in a separate process and ends it at a chosen moment: in which phase, how it ended, and after how long."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from leakbench.core.process import INTERRUPTED, NOTHING, SAID

__all__ = ["Ended", "Kill", "Pace", "begun", "drawn", "ending", "started"]

AT_ONCE_S = 5.0
"""Largest number of seconds from SIGTERM to the end."""

BEGUN_S = 1.0
"""Seconds within which Python has started and handles signals, on a busy machine."""

HANGS_S = 300.0

LINE = re.compile(r"(.+?): ([0-9.]+) of ([0-9]+)")


@dataclass(frozen=True)
class Kill:
    """When and how to end a command: this many seconds after a phase began (after the start if it is empty).

    group: whether its workers also get the signal, as from a scheduler that ends all processes of a job.
    """

    number: signal.Signals
    seconds: float
    phase: str = ""
    group: bool = False


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    killed: whether a signal was sent; after: seconds.  phase: the phase at that time.  took: seconds from then to the end.
    """

    code: int
    out: str
    err: str
    killed: bool
    phase: str
    after: float
    took: float

    @property
    def unheard(self) -> bool:
        """Say whether the signal itself ended it: before a handler was installed, or after all work and output."""
        return self.code < 0 and ((self.phase == "start" and self.after < BEGUN_S) or bool(self.out))


class Pace:
    """The lines of a command's stderr as they arrive, and the start of each phase, in seconds after the start."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines, self.began, self._start = list[str](), {"start": 0.0}, time.monotonic()
        self._changed = threading.Condition()
        self.over = False
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._changed:
                self.lines.append(line)
                if found := LINE.match(line):
                    phase = f"after {found[1]}" if found[2] == found[3] != "0" else found[1]
                    self.began.setdefault(phase, time.monotonic() - self._start)
                self._changed.notify_all()
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def wait_for(self, phase: str) -> None:
        """Wait until a phase begins, or the output ends."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or phase in self.began, HANGS_S)

    def wait(self) -> None:
        """Wait until the output ends."""
        self._thread.join(HANGS_S)

    @property
    def phase(self) -> str:
        """Return the last phase that began."""
        return list(self.began)[-1]


def begun(
    words: Sequence[str], folder: Path, environment: dict[str, str], before: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start `leakbench` with these words in a folder; before: the command that runs it."""
    # A shell that starts the tests in the background makes its children ignore SIGINT; these must not.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{listening}; from leakbench.__main__ import main; main()"
    with (folder.parent / f"{folder.name}.stdout").open("w", encoding="utf-8") as out:
        return subprocess.Popen(
            [*before, sys.executable, "-c", program, *words],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )


def started(words: Sequence[str], folder: Path, environment: dict[str, str], kill: Kill | None) -> tuple[Ended, Pace]:
    """Run `leakbench` with these words in a folder and end it as `kill` says; return how it ended."""
    began = told = time.monotonic()
    process = begun(words, folder, environment)
    assert process.stderr is not None
    pace, phase, killed = Pace(process.stderr), "", False
    try:
        if kill is not None:
            pace.wait_for(kill.phase or "start")
            try:
                process.wait(kill.seconds)
            except subprocess.TimeoutExpired:
                phase, told, killed = pace.phase, time.monotonic(), True
                (os.killpg if kill.group else os.kill)(process.pid, kill.number)
        code = process.wait(HANGS_S)
    except subprocess.TimeoutExpired:
        code = 124
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    took = time.monotonic() - told
    pace.wait()
    out = (folder.parent / f"{folder.name}.stdout").read_text(encoding="utf-8")
    return Ended(code, out, "".join(pace.lines), killed, phase, told - began, took), pace


def drawn(rng: random.Random, pace: Pace, number: signal.Signals) -> Kill:
    """Draw a moment: half of them uniform over an uninterrupted command's time, half uniform over its phases, also short ones."""
    group = rng.random() < 0.5 and number is not signal.SIGINT
    begun = [*pace.began.items(), ("", max(pace.began.values()) + 1.5)]
    if rng.random() < 0.5:
        return Kill(number, rng.uniform(0.0, begun[-1][1]), "", group)
    place = rng.randrange(len(begun) - 1)
    return Kill(number, rng.uniform(0.0, begun[place + 1][1] - begun[place][1]), begun[place][0], group)


def ending(ended: Ended, kill: Kill) -> str:
    """Return what is wrong with the end of a killed command, in one line; empty if nothing is."""
    if kill.number is signal.SIGKILL:
        return "" if ended.code in (-signal.SIGKILL, 0) else f"exit code {ended.code}"
    if ended.took > AT_ONCE_S:
        return f"ended {ended.took:.1f} s after {kill.number.name}"
    if ended.code == -kill.number and ended.unheard:
        return ""
    if "Traceback" in ended.err:
        return f"traceback: {ended.err.splitlines()[-1]}"
    last = (ended.err.splitlines() or [""])[-1]
    said = last in (
        f"leakbench: {SAID}",
        f"leakbench: {NOTHING}",
        "leakbench: interrupted; `leakbench audit` keeps nothing and starts over",
    )
    if ended.code == 0 or (ended.code == INTERRUPTED and said):
        return ""
    return f"exit code {ended.code} after {kill.number.name}, said {ended.err.splitlines()[-1:]}"
