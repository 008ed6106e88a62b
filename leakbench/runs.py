"""All runs below a folder: which there are, and how each stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench.errors import InputError
from leakbench.store import read_manifest

__all__ = ["Listed", "folders", "listed"]


@dataclass(frozen=True)
class Listed:
    """A run in its folder.

    state: `done`, `unfinished` or `damaged`.  manifest: None of one that is damaged.  why: what is wrong with it, in a line.
    """

    folder: Path
    state: str
    manifest: dict[str, Any] | None
    why: str = ""


def folders(place: Path) -> Iterator[Path]:
    """Yield the folders of runs at or below a place, in the order of their names."""
    yield from sorted(path.parent for path in place.rglob("manifest.json"))


def listed(place: Path) -> list[Listed]:
    """Return the runs at or below a folder; what their manifests say is taken as it stands, no other file is read.

    Raises InputError for a folder that is not there.
    """
    if not place.is_dir():
        raise InputError(f"runs: no folder {str(place)!r}")
    return [_listed(folder) for folder in folders(place)]


def _listed(folder: Path) -> Listed:
    try:
        manifest = read_manifest(folder)
    except InputError as error:
        return Listed(folder, "damaged", None, str(error))
    return Listed(folder, "done" if manifest.get("complete") else "unfinished", manifest)
