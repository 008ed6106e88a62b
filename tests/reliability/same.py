"""The content of a folder without what depends only on a clock: equal for two commands that measured the same."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from leakbench.storage.manifest_file import read_manifest, written
from leakbench.study.journal import outcome_in
from leakbench.study.sweep import CLOCK

__all__ = ["differences", "results"]

OF_CSV = ("wall_minutes", "minutes", "checksum")
"""Columns of a table's CSV that are wall times, or depend on them."""


def results(place: Path) -> dict[str, Any]:
    """Return {path: content} of all files at or below a path; raises InputError for a run with a damaged file."""
    found = {}
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder) / name
            found[str(path.relative_to(place))] = _content(path)
    return found


def differences(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return the differences in one line, or an empty text."""
    more, less = sorted(found.keys() - expected.keys()), sorted(expected.keys() - found.keys())
    other = [name for name in found.keys() & expected.keys() if found[name] != expected[name]]
    words = {"more": more, "missing": less, "changed": sorted(other)}
    return "; ".join(f"{word}: {', '.join(names[:4])}" for word, names in words.items() if names)


def _content(path: Path) -> Any:
    return (BY_NAME.get(path.name) or BY_ENDING.get(path.suffix) or _bytes)(path)


def _bytes(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _journal(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the journal's entry of each cell: the last complete line about it."""
    lines = [outcome_in(line) for line in path.read_bytes().splitlines()]
    return {found.key: (found.kind, found.hash, found.run, found.error) for found in lines if found is not None}


def _rows(path: Path) -> str:
    table = pq.read_table(path)
    return repr(table.drop_columns([name for name in CLOCK if name in table.column_names]).to_pydict())


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: v for k, v in row.items() if k not in OF_CSV} for row in csv.DictReader(file)]


def _page(path: Path) -> list[str]:
    """Return the lines of a table's page without the last column, which contains minutes."""
    return [line.rsplit("|", 2)[0] for line in path.read_text(encoding="utf-8").splitlines()]


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the content of a manifest, and which of its files exist."""
    manifest = read_manifest(folder)
    for name in manifest["files"]:
        written(folder, manifest, name)
    for tap in manifest.get("summary", {}).get("taps", {}).values():
        for name in CLOCK:
            tap.pop(name, None)
    if "summary" in manifest:
        manifest["summary"]["folder"] = folder.name
    said = {name: value for name, value in manifest.items() if name not in ("phases", "checksum")}
    return {**said, "files": sorted(manifest["files"]), "phases": sorted(manifest["phases"])}


BY_NAME: dict[str, Callable[[Path], Any]] = {
    "manifest.json": lambda path: _manifest(path.parent),
    "report.html": lambda path: path.stat().st_size > 0,  # It contains durations; its checksum is in the manifest.
    "cells.jsonl": _journal,
    "times.parquet": lambda path: pq.read_table(path)["cell"].to_pylist(),
}

BY_ENDING: dict[str, Callable[[Path], Any]] = {".parquet": _rows, ".csv": _csv, ".md": _page}
