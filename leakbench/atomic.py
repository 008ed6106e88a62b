"""Files that are whole or not there, whenever their writer is killed, and on the disk once they are said to be."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["TEMPORARY", "write_atomically"]

TEMPORARY = re.compile(r"\..+\.[a-z]+\.[a-z0-9_]{8}\.tmp")
"""The names of temporary files: a point, the file's own name, eight random letters."""


def write_atomically(path: Path, write: Callable[[Path], object], private: bool = False) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place: after a crash the old file or the new one is there.

    Args:
        private: Nobody else may read it. What earlier writers of the same file left behind when they were killed goes. An OSError
            names `path`, whatever was being written when it came.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, temporary = _begun(path)
    except OSError as error:  # Names a file that nobody has asked for.
        error.filename = str(path)
        raise
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o600 if private else 0o644)
        temporary.replace(path)
        _keep_name(path.parent)
    except OSError as error:
        if (
            error.filename in (None, str(temporary)) and error.filename2 is None
        ):  # A disk that is full does not say for which file.
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # A disk that has just become read-only is what is to be told.
            temporary.unlink(missing_ok=True)
        os.close(handle)
    _sweep(path)


def _begun(path: Path) -> tuple[int, Path]:
    """Return a new temporary file, held for as long as its handle is open."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # Somebody took it for left behind before it was held.


def _keep_name(folder: Path) -> None:
    """Bring the folder itself to the disk: else a power cut may take the new name of a file away again."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(path: Path) -> None:
    """Remove temporary files of `path` that nobody holds: their writers were killed."""
    for left in glob.iglob(f".{glob.escape(path.name)}.*.tmp", root_dir=path.parent):
        with contextlib.suppress(OSError):
            handle = os.open(path.parent / left, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (path.parent / left).unlink()
            finally:
                os.close(handle)
