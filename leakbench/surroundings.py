"""What a command finds around it when it is started: streams that are closed or full, variables that libraries stumble over.

Nothing here imports more than the standard library: it is looked at before anything else of leakbench is imported.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["full", "put_right"]

STREAMS = ("stdin", "stdout", "stderr")


def put_right() -> None:
    """Put the null device where a stream is closed, let the others show `?` for what they have no sign for, drop bad variables."""
    _open_the_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    _drop_what_is_not_ours()


def full() -> str:
    """Return the name of the stream that takes nothing more, empty where both do; what it holds back is then let go.

    Without that Python writes it once more on its way out, and ends with an exit code of its own.
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
    """Open the null device at every closed stream: the next file opened, a run's perhaps, would be taken for the stream."""
    for number, name in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(os.devnull, os.O_RDWR)  # The lowest number that is free, as the system has it: this one.
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, "w" if number else "r", encoding="utf-8", closefd=False))


def _drop_what_is_not_ours() -> None:
    """Drop what Matplotlib, NumPy and their like read on import and end with a traceback for; nothing here goes by it.

    Figures are drawn without a backend that shows them, and their files hold no date.
    """
    os.environ.pop("MPLBACKEND", None)
    if not os.environ.get("SOURCE_DATE_EPOCH", "0").isdecimal():
        os.environ.pop("SOURCE_DATE_EPOCH")
    if not os.path.isabs(os.environ.get("XDG_CACHE_HOME", "/")):  # Which is to be ignored, as its specification says.
        os.environ.pop("XDG_CACHE_HOME")
