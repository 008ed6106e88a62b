"""Fits on disk, one .safetensors file each, named by the hash of their origin.

The header of a file has its origin, the time of the fit, and a checksum. A truncated or changed file, or one with another
origin, is fitted again and replaced. The files are in the user's cache folder, so that other runs use them too; the least
recently used ones are removed if they take too much space.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from leakbench.core.answers import Fit
from leakbench.core.fitted import Fitted, Origin
from leakbench.data.cache import Warn, to_stderr, user_cache
from leakbench.storage.atomic import write_bytes
from leakbench.storage.store import content_hash, tensor_hash

__all__ = ["FitStore", "fit_folder"]

GIGABYTE = 10**9

NAME = re.compile("[0-9a-f]{64}")
"""Form of a fit's name, a hash."""

LEFT = 3600
"""Seconds after which a temporary file counts as left behind; a write takes far less."""


def fit_folder() -> Path | None:
    """Return the folder in LEAKBENCH_FITS, else the one of fits in the user's cache; None without a cache folder."""
    if chosen := os.environ.get("LEAKBENCH_FITS"):
        return Path(chosen).expanduser()
    cache = user_cache()
    return None if cache is None else cache / "fits"


@dataclass(frozen=True)
class FitStore:
    """A `Fits` that uses its last fit, then a folder, and else computes the fit.

    Args:
        folder: Folder of the fits; None stores nothing on disk.
        room: Largest number of bytes of all files; a fit of more than a quarter of it is not stored.
        warn: Called with a message if the folder cannot be written; the fit is then not stored.
    """

    folder: Path | None
    room: int = 8 * GIGABYTE
    warn: Warn = to_stderr
    last: list[Fitted] = field(default_factory=list)

    def __call__(self, origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
        """Return the fit of `origin`; a stored fit is bit-identical to a new one."""
        if not (self.last and self.last[0].origin == dict(origin)):
            found = self._kept(origin)
            if found is None:
                found = fit()
                self._keep(found)
            self.last[:] = [found]
        return self.last[0]

    def _path(self, origin: Origin) -> Path | None:
        return None if self.folder is None else self.folder / f"{content_hash(dict(origin))}.safetensors"

    def _kept(self, origin: Origin) -> Fitted | None:
        path = self._path(origin)
        if path is None:
            return None
        try:
            with safe_open(path, framework="pt") as file:
                head = json.loads((file.metadata() or {})["fit"])
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            found = Fitted(head["origin"], tensors, Fit(float(head["seconds"]), int(head["public"])))
            plausible = found.fit.seconds >= 0 and math.isfinite(found.fit.seconds) and found.fit.public > 0
            if not plausible or found.origin != dict(origin) or head["checksum"] != _checksum(found):
                return None
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            return None
        with suppress(OSError):
            os.utime(path)
        return found

    def _keep(self, found: Fitted) -> None:
        path = self._path(found.origin)
        size = sum(t.numel() * t.element_size() for t in found.tensors.values())
        if path is None or size > self.room // 4:
            return
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in found.tensors.items()}
        head = {
            "origin": dict(found.origin),
            "seconds": found.fit.seconds,
            "public": found.fit.public,
            "checksum": _checksum(found),
        }
        try:
            self._make_room(path, size)
            write_bytes(path, save(tensors, {"fit": json.dumps(head)}))
        except OSError as error:
            self.warn(
                f"{path.parent}: what is fitted cannot be kept here ({error.strerror}); it is fitted again each time"
            )

    def _make_room(self, path: Path, size: int) -> None:
        """Remove temporary files of killed processes, and the least recently used fits until a fit of `size` bytes has space.

        Only files with a fit's name are removed, since the folder may contain others.
        """
        kept = [p for p in path.parent.glob("*.safetensors") if NAME.fullmatch(p.stem) and p != path]
        files = [(p.stat().st_mtime, p.stat().st_size, p) for p in kept]
        for left in path.parent.glob(".*.safetensors.*.tmp"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > LEFT:
                    left.unlink()
        taken = sum(each for _, each, _ in files)
        for _, each, old in sorted(files):
            if taken + size <= self.room:
                break
            old.unlink(missing_ok=True)
            taken -= each


def _checksum(found: Fitted) -> str:
    """Return the hash of the whole content of a fit."""
    return content_hash([dict(found.origin), found.fit.seconds, found.fit.public, tensor_hash(found.tensors)])
