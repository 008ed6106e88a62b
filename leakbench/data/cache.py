"""What was slow to decode is kept in the user's cache folder, never in the data folder, and never as a pickle."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["NO_CACHE", "Cache", "Warn", "to_stderr", "user_cache"]

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Warn = Callable[[str], None]


def to_stderr(line: str) -> None:
    """Print one line on stderr."""
    print(line, file=sys.stderr)


def user_cache() -> Path | None:
    """Return leakbench's folder in the user's cache as the platform has it; None where no home folder is known."""
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
    """A folder of .npz files, each named by a key that says all its content depends on.

    folder: None keeps nothing.  warn: told once where the folder cannot be written; the work goes on without it.
    """

    folder: Path | None
    warn: Warn = to_stderr

    def __call__(self, key: str, make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays kept under `key`; if there are none, or they are damaged, make and keep them."""
        if self.folder is None:
            return make()
        path = self.folder / f"{key}.npz"
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
                return {name: kept[name] for name in kept.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            arrays = make()
        try:
            _write(path, arrays)
        except OSError as error:
            self.warn(
                f"{self.folder}: decoded data cannot be kept here ({error.strerror}); they are decoded anew each time"
            )
        return arrays


def _write(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


NO_CACHE = Cache(None)
