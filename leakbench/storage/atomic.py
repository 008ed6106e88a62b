"""Atomic writes: a file is complete or absent even if its writer is killed, and on the disk when the write returns."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["TEMPORARY", "write_atomically", "write_bytes", "write_text"]

TEMPORARY = re.compile(r"\..+\.[a-z]+\.[a-z0-9_]{8}\.tmp")
"""The names of temporary files: a point, the file's own name, eight random letters."""


def write_atomically(path: Path, write: Callable[[Path], object], private: bool = False) -> None:
    """Write a temporary file next to `path`, then rename it: after a crash, either the old or the new file exists.

    Temporary files of killed writers of the same file are removed.

    Args:
        path: The file.
        write: Writes the content to a path.
        private: Whether only the user may read the file.

    Raises:
        OSError: With the name of `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, temporary = _begun(path)
    except OSError as error:  # The error has the name of the temporary file.
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
        if error.filename in (None, str(temporary)) and error.filename2 is None:  # A full disk gives no name.
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # On a disk that has become read-only, the first error is the one to report.
            temporary.unlink(missing_ok=True)
        os.close(handle)
    _sweep(path)


def write_text(path: Path, text: str, private: bool = False) -> None:
    """Write a text in UTF-8, as `write_atomically` does."""
    write_bytes(path, text.encode(), private)


def write_bytes(path: Path, content: bytes, private: bool = False) -> None:
    """Write the content of a file, as `write_atomically` does."""
    write_atomically(path, lambda file: file.write_bytes(content), private)


def _begun(path: Path) -> tuple[int, Path]:
    """Return a new temporary file, locked as long as its handle is open."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # Another process removed it as left behind before it was locked.


def _keep_name(folder: Path) -> None:
    """Write the folder itself to the disk, since otherwise a power cut may undo the rename."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(path: Path) -> None:
    """Remove unlocked temporary files of `path`, whose writers were killed."""
    for left in glob.iglob(f".{glob.escape(path.name)}.*.tmp", root_dir=path.parent):
        with contextlib.suppress(OSError):
            handle = os.open(path.parent / left, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (path.parent / left).unlink()
            finally:
                os.close(handle)
