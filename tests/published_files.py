"""Where published rows and pages are, `results/GROUP/NAME` or `results/NAME`, and the rows as texts."""

from __future__ import annotations

import csv
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
STUDIES = ROOT / "studies"


def published_file(name: str) -> Path:
    """Return the path of a published file by its name; most are in a group."""
    (path,) = RESULTS.rglob(name)
    return path


def without(lines: list[list[str]], column: str) -> list[list[str]]:
    """Return the lines of a CSV without a column."""
    at = lines[0].index(column)
    return [line[:at] + line[at + 1 :] for line in lines]


def written_by_hand(name: str) -> list[list[str]]:
    """Return the lines of a published CSV without checksums, so that a changed field is found by its value."""
    with published_file(name).open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    return without(lines, "checksum") if "checksum" in lines[0] else lines
