"""How a command ends when it is told to: SIGTERM, as a scheduler sends it, and the end of a terminal end it as Ctrl-C does.

Nothing here imports more than the standard library: it listens before anything else of leakbench is imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType

__all__ = ["INTERRUPTED", "SAID", "SIGNALS", "Told", "listening", "said"]

INTERRUPTED = 130
"""The exit code of who was interrupted, as a shell gives it."""

SAID = "interrupted; finished work is kept, run the same command again to resume"

KEEPING = ("card", "data", "frontier", "reproduce", "run", "sweep")
"""The commands that resume; all others start over."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SECONDS = 4.0
"""From the signal to the end at the latest. What computes in C hears of no signal until it returns; every file is whole at any
moment, so that an end by force costs no more than the piece that is being worked on."""

UNHEARD = 0.1
"""Seconds after which the first thread, the only one that Python lets hear, is told once more."""


def said() -> str:
    """Return the line of this process's command when it is interrupted."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if not command or command in KEEPING or (command == "attack" and _into_folder(sys.argv[1:])):
        return SAID
    hint = "; with --out FOLDER it can be resumed" if command == "attack" else ""
    return f"interrupted; `leakbench {command}` keeps nothing and starts over{hint}"


def _into_folder(words: list[str]) -> bool:
    """Return whether `leakbench attack` writes a run folder, in which it keeps its searches, and not a single file."""
    given = [word.partition("=")[2] for word in words if word.startswith("--out=")]
    given += [after for word, after in pairwise(words) if word == "--out"]
    return bool(given) and not given[-1].endswith(".safetensors")


@dataclass
class Told:
    """Whether a signal came; whatever is raised from then on comes of it."""

    to_end: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt for the first of the signals; those after it do not disturb the end.

        Within an import the process ends here and now: libraries are not made to be broken off half-way, and PyTorch's aborts.
        """
        self.to_end = True
        for each in SIGNALS:
            signal.signal(each, _deaf)
        if _imports(frame):
            _end()
        raise KeyboardInterrupt


@contextlib.contextmanager
def listening() -> Iterator[Told]:
    """Listen to the signals that end a process; one that is ignored, as SIGHUP by `nohup`, stays so.

    Whoever was told to end is, as far as these signals go, left alone from then on.
    In a thread beside the first nothing is heard, as Python has it.
    """
    told = Told()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    ended = threading.Event()
    threading.Thread(target=_in_time, args=(source, told, ended), daemon=True).start()
    woken = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)  # Written to at once, whatever is being computed.
    for number in heard:
        signal.signal(number, told)
    try:
        yield told
    finally:
        ended.set()
        signal.set_wakeup_fd(woken)
        os.close(sink)
        for number, handler in heard.items():
            # On its way out another signal shall not disturb it, also once Python has put its own handlers away.
            signal.signal(number, signal.SIG_IGN if told.to_end else handler)


def _deaf(number: int, frame: FrameType | None) -> None:
    """Hear of a signal and do nothing; of one that is ignored Python complains where it came just before."""


def _imports(frame: FrameType | None) -> bool:
    """Say whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end() -> None:
    """End the process with its line and without any further ado; every file is whole at any moment."""
    os.write(2, f"leakbench: {said()}\n".encode())
    os._exit(INTERRUPTED)


def _in_time(source: int, told: Told, ended: threading.Event) -> None:
    """End the process where it has not ended so many seconds after it was told to.

    The system may give a signal to any thread, which does not wake the first from what it waits for: one for it alone does.
    """
    first = threading.main_thread().ident
    while number := os.read(source, 1):
        if number[0] not in SIGNALS:
            continue
        if first is not None and not ended.wait(UNHEARD) and not told.to_end:
            signal.pthread_kill(first, number[0])
        if not ended.wait(SECONDS - UNHEARD):
            _end()
    os.close(source)
