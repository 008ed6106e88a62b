"""One writer at a time: a folder that is held for long, and one while a file in it is read and written again."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakbench.errors import BusyError, InputError

__all__ = ["alone", "locked"]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder, making it where it is not, while a file in it is read and written again; whoever else does so waits.

    The folder itself is locked, so that nothing is left behind.  Not for what takes long, see `locked`.
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
    """Hold a folder for this process alone, making it where it is not; what holds no run at the end is as it was before, as is
    another's in which nothing could be done.
    """
    path = folder / ".lock"
    try:
        str(folder).encode()
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        fresh = not path.exists()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)  # Truths of private data lie in it.
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
            held = os.path.samestat(os.fstat(lock.fileno()), path.stat())  # Else its holder has just removed it.
        except OSError:
            held = False
        if not held:
            raise BusyError(f"out: another leakbench is writing to {str(folder)!r}; wait for it or give another --out")
        done = False
        try:
            yield
            done = True
        finally:
            if fresh and not (done and (folder / "manifest.json").exists()):
                with suppress(OSError):  # Somebody else has begun to use it, or the disk has become read-only.
                    path.unlink()
                    for made in missing:
                        made.rmdir()
