"""All runs below a folder, with their states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench.core.errors import InputError
from leakbench.storage.manifest_file import check_files, read_manifest

__all__ = ["Listed", "elsewhere", "folders", "listed"]


@dataclass(frozen=True)
class Listed:
    """A run in its folder.

    Args:
        state: `done`, `unfinished` or `damaged`.
        manifest: The manifest; None for a damaged run.
        why: The damage, in one line.
    """

    folder: Path
    state: str
    manifest: dict[str, Any] | None
    why: str = ""


def folders(place: Path) -> Iterator[Path]:
    """Yield the folders of runs at or below a place, in the order of their names."""
    yield from sorted(path.parent for path in place.rglob("manifest.json"))


def elsewhere(place: Path) -> str:
    """Return the end of a message that says where the runs of a sweep's folder are; empty for another folder."""
    if not (place / "cells.jsonl").is_file():
        return ""
    return f", which is a sweep's: its runs are in the folder --runs, its merged rows in {place / 'rows.parquet'}"


def listed(place: Path) -> Iterator[Listed]:
    """Yield the runs at or below a folder from their manifests; the files of finished runs are checked by their checksums.

    The manifests are read one at a time, since thousands of them would take much memory.

    Raises:
        InputError: For a folder that does not exist.
    """
    if not place.is_dir():
        raise InputError(f"runs: no folder {str(place)!r}")
    return map(_listed, folders(place))


def _listed(folder: Path) -> Listed:
    try:
        manifest = read_manifest(folder)
        if manifest.get("complete"):
            check_files(folder, manifest)
    except InputError as error:
        return Listed(folder, "damaged", None, str(error))
    return Listed(folder, "done" if manifest.get("complete") else "unfinished", manifest)
