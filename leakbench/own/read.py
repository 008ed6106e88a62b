"""Finished runs as one table of pandas."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from leakbench.errors import InputError
from leakbench.store import read_manifest, written

__all__ = ["read"]

NAMED = ("dataset", "defense", "attack")


def read(folder: str | Path) -> pd.DataFrame:
    """Return the rows of a finished run, or of all finished runs below a folder: one row for each example under attack.

    The first columns say of which run a row is: run (its folder), hash, dataset, defense, attack. Of a sweep's folder the same;
    folders of `leakbench attack` count where a truth was given. Runs that are not finished are left out.

    Raises InputError for a folder that is not there, without a finished run, or with a file that is not as it was written.
    """
    place = Path(folder)
    if not place.is_dir():
        raise InputError(f"read: no folder {str(folder)!r}")
    found = [frame for path in sorted(place.rglob("manifest.json")) if (frame := _rows(path.parent)) is not None]
    if not found:
        raise InputError(f"read: no finished run in {str(folder)!r}")
    return pd.concat(found, ignore_index=True)


def _rows(folder: Path) -> pd.DataFrame | None:
    manifest = read_manifest(folder)
    if not manifest.get("complete") or "rows.parquet" not in manifest.get("files", {}):
        return None
    written(folder, manifest, "rows.parquet")
    rows = pd.read_parquet(folder / "rows.parquet")
    first = {"run": folder.name, "hash": manifest["hash"], **{name: manifest["cell"][name] for name in NAMED}}
    for place, (name, value) in enumerate(first.items()):
        rows.insert(place, name, value)
    return rows
