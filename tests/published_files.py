"""Where published rows and pages are: `results/GROUP/NAME`, or `results/NAME`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
STUDIES = ROOT / "studies"


def published_file(name: str) -> Path:
    """Return the path of a published file by its name; most are in a group."""
    (path,) = RESULTS.rglob(name)
    return path
