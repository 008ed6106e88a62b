"""The process of a command: streams and variables at its start, and the signals that end it as Ctrl-C does.

This module imports only the standard library, since it works before other modules of leakbench are imported.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType

__all__ = ["INTERRUPTED", "NOTHING", "SAID", "SIGNALS", "Told", "full", "listening", "put_right", "said"]

INTERRUPTED = 130
"""The exit code of an interrupted command, as in a shell."""

SAID = "interrupted; finished work is kept, run the same command again to resume"

NOTHING = "interrupted; nothing was finished yet"

KEEPING = ("card", "data", "frontier", "reproduce", "run", "sweep")
"""The commands that resume; all others start over."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SECONDS = 4.0
"""Longest time from the signal to the end. Code in C handles no signal until it returns. Every file is complete at any moment, so a
forced end loses only the current piece of work."""

UNHEARD = 0.1
"""Seconds after which the signal is sent again to the main thread, the only one in which Python handles signals."""


def said() -> str:
    """Return the message of this process's command when it is interrupted."""
    if Path(sys.argv[0]).parent.name == "benchmarks":
        return "interrupted; `python -m benchmarks` keeps nothing and starts over"
    command, out = next((word for word in sys.argv[1:] if not word.startswith("-")), ""), _out(sys.argv[1:])
    into = command == "attack" and bool(out) and not out.endswith(".safetensors")
    if command == "run" or into:
        return SAID if _unfinished(out) else NOTHING
    if not command or command in KEEPING:
        return SAID
    hint = "; with --out FOLDER it can be resumed" if command == "attack" else ""
    return f"interrupted; `leakbench {command}` keeps nothing and starts over{hint}"


def _out(words: list[str]) -> str:
    """Return the value of the option --out; empty without it."""
    given = [word.partition("=")[2] for word in words if word.startswith("--out=")]
    given += [after for word, after in pairwise(words) if word == "--out"]
    return given[-1] if given else ""


def _unfinished(out: str) -> bool:
    """Return whether a command can resume from its run folder.

    The name of the default folder is not known before the recipes are read, so that any unfinished run below `runs` counts.
    """
    try:
        folders = [Path(out)] if out else [*Path("runs").glob("*/")]
        return any(
            any((folder / "parts").glob("[!.]*"))
            or ((folder / "rows.parquet").exists() and (bool(out) or not (folder / "report.html").exists()))
            for folder in folders
        )
    except OSError:  # A folder that cannot be read, or a name that is too long.
        return False


@dataclass
class Told:
    """A signal handler that records whether a signal came; later errors result from it."""

    to_end: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt for the first signal, and ignore later ones.

        During an import the process ends at once: an interrupted import leaves libraries unusable, and PyTorch's aborts.
        """
        self.to_end = True
        for each in SIGNALS:
            signal.signal(each, _deaf)
        if _imports(frame):
            _end()
        raise KeyboardInterrupt


@contextlib.contextmanager
def listening() -> Iterator[Told]:
    """Handle the signals that end a process; a signal that is ignored, as SIGHUP by `nohup`, stays ignored.

    After the first signal, later ones are ignored. In other threads than the main one nothing is handled, as Python requires.
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
    woken = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)  # Written at once, even while C code runs.
    for number in heard:
        signal.signal(number, told)
    try:
        yield told
    finally:
        ended.set()
        signal.set_wakeup_fd(woken)
        os.close(sink)
        for number, handler in heard.items():
            # Another signal must not disturb the end, even after Python has removed its own handlers.
            signal.signal(number, signal.SIG_IGN if told.to_end else handler)


def _deaf(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing; with SIG_IGN, Python complains about a signal that came just before."""


def _imports(frame: FrameType | None) -> bool:
    """Return whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end() -> None:
    """End the process at once with its message; every file is complete at any moment."""
    os.write(2, f"leakbench: {said()}\n".encode())
    os._exit(INTERRUPTED)


def _in_time(source: int, told: Told, ended: threading.Event) -> None:
    """End the process if it has not ended `SECONDS` after the signal.

    The system may deliver a signal to any thread, which does not wake the main thread; a signal to that thread does.
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


STREAMS = ("stdin", "stdout", "stderr")


def put_right() -> None:
    """Open the null device for closed streams, print `?` for characters that a stream cannot encode, and drop bad variables."""
    _open_the_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    _drop_what_is_not_ours()


def full() -> str:
    """Return the name of an output stream that cannot be written, empty if both can; its buffer is then discarded.

    Otherwise Python would write the buffer again at its end, and exit with another code.
    """
    for name in STREAMS[1:]:
        stream = getattr(sys, name)
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            return name
    return ""


def _open_the_closed() -> None:
    """Open the null device for every closed stream: otherwise the next opened file, such as a run's, becomes the stream."""
    for number, name in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(
                os.devnull, os.O_RDWR
            )  # The system returns the lowest free number, which is this stream's.
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, "w" if number else "r", encoding="utf-8", closefd=False))


def _drop_what_is_not_ours() -> None:
    """Remove variables whose wrong values make Matplotlib, NumPy and other libraries fail on import; leakbench does not use them.

    Figures need no interactive backend, and their files have no date.
    """
    os.environ.pop("MPLBACKEND", None)
    if not os.environ.get("SOURCE_DATE_EPOCH", "0").isdecimal():
        os.environ.pop("SOURCE_DATE_EPOCH")
    if not os.path.isabs(os.environ.get("XDG_CACHE_HOME", "/")):  # The specification says to ignore a relative path.
        os.environ.pop("XDG_CACHE_HOME")
