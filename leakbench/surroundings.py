"""The environment of a command at its start: closed or full streams, and variables that break libraries.

This module imports only the standard library, since it runs before other modules of leakbench are imported.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["full", "put_right"]

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
