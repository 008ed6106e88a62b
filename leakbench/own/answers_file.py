"""The file that answers are written to: a new one, in a folder that takes it, which is tried before anything is attacked."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from leakbench.errors import InputError

__all__ = ["check_answers_file"]


def check_answers_file(path: Path, inputs: Sequence[Path]) -> None:
    """Raise InputError unless a file can be written at `path` where there is none yet; leave nothing behind.

    Args:
        inputs: Files and folders that are read, into whose folders no answers go: they would be read as another victim's.
    """
    if os.path.lexists(path):
        raise InputError(
            f"out: {str(path)!r} is there already and is not overwritten; move it away or give another --out"
        )
    if any(folder.is_dir() and folder.resolve() == path.parent.resolve() for folder in inputs):
        raise InputError(f"out: {str(path)!r} is one of the files that are read from its folder; give another --out")
    missing = [p for p in path.parents if not p.exists()]
    try:
        if path.parent.exists() and not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        # Under such a name as it is later written by, so that one that is too long shows.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        Path(name).unlink()
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise InputError(f"out: cannot write to {str(path)!r}: {said}; give another --out") from None
    finally:
        with suppress(OSError):  # Somebody else has begun to use it, or it was never made.
            for made in missing:
                made.rmdir()
