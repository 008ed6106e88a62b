"""A cache of data that are slow to decode: in the user's cache folder, never in the data folder, and never as a pickle."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from leakbench.storage.atomic import write_atomically

__all__ = ["NO_CACHE", "Arrays", "Cache", "Warn", "to_stderr", "user_cache"]

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Warn = Callable[[str], None]

CHUNK = 1 << 20


def to_stderr(line: str) -> None:
    """Print one line on stderr."""
    print(line, file=sys.stderr)


def user_cache() -> Path | None:
    """Return leakbench's folder in the platform's cache folder of the user; None if the home folder is unknown."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen) / "leakbench"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) / "leakbench" / "cache" if local else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    inside = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return home / inside / "leakbench" if home.is_absolute() else None


@dataclass(frozen=True)
class Cache:
    """A folder of .npz files. The name of each is a key for everything that its content depends on; its end is its sha256.

    Args:
        folder: None stores nothing.
        warn: Called with one line if the folder cannot be written, and the arrays are then not stored; formats also call it.
    """

    folder: Path | None
    warn: Warn = to_stderr

    def __call__(self, key: str, make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays stored under `key`; if they are missing or damaged, compute them with `make` and store them."""
        if self.folder is None:
            return make()
        path = self.folder / f"{key}.npz"
        try:
            with path.open("rb") as stream:
                _check(stream)
                with np.load(stream, allow_pickle=False) as kept:
                    return {name: kept[name] for name in kept.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            arrays = make()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # The data may be private.
            write_atomically(path, lambda temporary: _save(temporary, arrays))
        except OSError as error:
            self.warn(
                f"{self.folder}: decoded data cannot be kept here ({error.strerror}); they are decoded again each time"
            )
        return arrays


def _save(path: Path, arrays: Arrays) -> None:
    with path.open("w+b") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        length = stream.seek(0, os.SEEK_END)
        stream.write(_digest(stream, length))


def _check(stream: BinaryIO) -> None:
    """Raise ValueError for a file that does not end in the checksum of the rest: zip checks each array but not its name."""
    length = stream.seek(0, os.SEEK_END) - hashlib.sha256().digest_size
    if length < 0 or _digest(stream, length) != stream.read():
        raise ValueError("does not fit its checksum")
    stream.seek(0)


def _digest(stream: BinaryIO, length: int) -> bytes:
    """Return the sha256 of the first `length` bytes, and leave the stream after them."""
    stream.seek(0)
    digest = hashlib.sha256()
    while length and (chunk := stream.read(min(length, CHUNK))):
        digest.update(chunk)
        length -= len(chunk)
    return digest.digest()


NO_CACHE = Cache(None)
