"""Prepare the rows of frontiers for the check for stale rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.cell import Request
from leakbench.data.find import Load
from leakbench.frontier.frontier import store_of
from leakbench.frontier.grid import Point
from leakbench.frontier.measure import LIMITS, SAME, cells_at, command_of
from leakbench.study.stale import Published, Today, today_of, versions_in

__all__ = ["points_in", "published_points"]


def published_points(out: Path, data_dir: Path | None) -> Iterator[Published]:
    """Yield the measured points of every frontier that has a CSV in `out`."""
    for path in sorted(out.glob("frontier_*.csv")):
        yield from points_in(path.stem, store_of(path).read(), data_dir)


def points_in(page: str, rows: pd.DataFrame, data_dir: Path | None = None) -> Iterator[Published]:
    """Yield the measured points among the rows of a frontier.

    Args:
        page: Name of the frontier.
    """
    again = command_of(rows, json.loads(rows["asked"].iloc[0])) if len(rows) else ""
    for row in rows[rows["left_out"].isna()].drop_duplicates("cell").to_dict("records"):
        yield _published(page, row, again, data_dir)


def _published(page: str, row: Mapping[Any, Any], again: str, data_dir: Path | None) -> Published:
    point, request, asked = _asked(row)

    def today(load: Load) -> Today:
        return today_of(cells_at(point, request, asked["seeds"], asked["identify"], data_dir, load))

    return Published(
        page=page,
        row=str(row["cell"]),
        hash=str(row.get("hash", "")),
        dataset=str(asked["dataset"]),
        today=today,
        requests=lambda: [request],
        recorded=versions_in(row),
        again=again,
    )


def _asked(row: Mapping[Any, Any]) -> tuple[Point, Request, dict[str, Any]]:
    """Return a row's point, its request, and the fields that all rows of its frontier share."""
    asked = json.loads(row["asked"])
    point = Point(str(row["defense"]), float(row["factor"]), bool(row["noise"]))
    shared = {name: asked[name] for name in (*SAME, *LIMITS) if name in asked}
    factor = None if point.factor == 1.0 else point.factor
    request = Request(**shared, defense=point.defense, noise_factor=factor, taps=tuple(asked["taps"]), knows="defense")
    return point, request, asked
