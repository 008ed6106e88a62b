"""Locks of folders: one for a long time, and one while a file in the folder is read and written again."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakbench.core.errors import BusyError, InputError

__all__ = ["alone", "locked"]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder, and create it if it is missing, while a file in it is read and written again; other processes wait.

    The lock is on the folder itself and leaves no file. Use `locked` for long work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, and create it if it is missing.

    Without a run in the folder at the end, or after a failure, created folders and the lock file are removed.

    Raises:
        BusyError: If another process has locked the folder.
        InputError: If the folder cannot be written.
    """
    path = folder / ".lock"
    try:
        str(folder).encode()
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        fresh = not path.exists()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)  # The folder contains private examples.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.fdopen(os.open(path, flags, 0o600), "a")
    except ValueError as error:
        raise InputError(f"out: {str(folder)!r} is not a name for a folder: {error}; give another --out") from None
    except OSError as error:
        raise InputError(
            f"out: cannot write to {str(folder)!r}: {error.strerror}; choose another folder (of a run: --out)"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(lock.fileno()), path.stat())  # False if its owner has just removed it.
        except OSError:
            held = False
        if not held:
            raise BusyError(
                f"out: another leakbench is writing to {str(folder)!r}; wait for it or choose another folder (of a run: --out)"
            )
        done = False
        try:
            yield
            done = True
        finally:
            if fresh and not (done and (folder / "manifest.json").exists()):
                with suppress(OSError):  # Another process uses the folder, or the disk has become read-only.
                    path.unlink()
                    for made in missing:
                        made.rmdir()
