"""The rows of every frontier in a folder, as they are checked for stale ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from leakbench.frontier.frontier import read_rows
from leakbench.frontier.page import command_of
from leakbench.frontier.stale import points_in
from leakbench.reproduce.stale import Published

__all__ = ["published_points"]


def published_points(out: Path, data_dir: Path | None) -> Iterator[Published]:
    """Yield the measured points of every frontier that has a CSV in `out`."""
    for path in sorted(out.glob("frontier_*.csv")):
        rows = read_rows(path)
        if len(rows):
            yield from points_in(path.stem, rows, command_of(rows, json.loads(rows["asked"].iloc[0])), data_dir)
