"""Truth beside reconstruction, for the first victims of every leakage point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leakbench.report.figures import picture
from leakbench.report.words import number

__all__ = ["Gallery", "Tile", "galleries"]

Arrays: TypeAlias = Mapping[str, NDArray[np.floating]]

VICTIMS = 8
MEMBERS = 4


@dataclass(frozen=True)
class Tile:
    """One picture: its data URI (empty where there was no answer), what it shows in words, and its score."""

    source: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Gallery:
    """The leak of one round: a heading a column, and for each victim a list of tiles a column.

    `pictures` is false for tabular data, whose tiles are strips. more: members of a batch that are not shown.
    """

    round: int
    headings: list[str]
    rows: list[list[list[Tile]]]
    pictures: bool
    more: int


def galleries(arrays: Arrays, rows: pd.DataFrame) -> list[Gallery]:
    """Return one gallery a round that was attacked.

    arrays: `<tap>.round<r>.reconstruction` and `.truth`, (V, M, *s), both in the order of the truth.
    """
    points: dict[int, list[str]] = {}
    for name in sorted(arrays, reverse=True):  # type-2 before type-1 before type-0, as in the table
        if name.endswith(".reconstruction"):
            tap, _, leak = name.removesuffix(".reconstruction").rpartition(".round")
            points.setdefault(int(leak), []).append(tap)
    return [_gallery(leak, points[leak], arrays, rows) for leak in sorted(points)]


def _gallery(leak: int, taps: list[str], arrays: Arrays, rows: pd.DataFrame) -> Gallery:
    headings: list[str] = []
    columns: list[list[list[Tile]]] = []
    shown: NDArray[np.floating] | None = None
    for tap in taps:
        truth, answer = (arrays[f"{tap}.round{leak}.{kind}"] for kind in ("truth", "reconstruction"))
        # Points that leak the same examples share one column of truth.
        if shown is None or not np.array_equal(shown, truth):
            headings.append("truth" if shown is None else f"truth of {tap}")
            columns.append(_tiles(truth, "truth", None))
            shown = truth
        scores = rows[(rows["tap"] == tap) & (rows["round"] == leak)]
        headings.append(tap)
        columns.append(_tiles(answer, tap, {(v, m): float(e) for v, m, e in _scores(scores)}))
    members = max(arrays[f"{tap}.round{leak}.truth"].shape[1] for tap in taps)
    victims = min(VICTIMS, max(len(column) for column in columns))
    grid = [[column[v] if v < len(column) else [] for column in columns] for v in range(victims)]
    pictures = all(arrays[f"{tap}.round{leak}.truth"].ndim == 5 for tap in taps)
    return Gallery(leak, headings, grid, pictures, max(0, members - MEMBERS))


def _scores(rows: pd.DataFrame) -> zip[tuple[int, int, float]]:
    # The victim's place in the arrays is its rank among the victims of the rows.
    place = rows["victim"].rank(method="dense").astype("int64") - 1
    return zip(place, rows["member"], rows["rmse"], strict=True)


def _tiles(
    examples: NDArray[np.floating], what: str, scores: Mapping[tuple[int, int], float] | None
) -> list[list[Tile]]:
    return [
        [_tile(example, what, v, m, scores) for m, example in enumerate(batch[:MEMBERS])]
        for v, batch in enumerate(examples[:VICTIMS])
    ]


def _tile(
    example: NDArray[np.floating], what: str, v: int, m: int, scores: Mapping[tuple[int, int], float] | None
) -> Tile:
    who = f"victim {v}, example {m}"
    if not np.isfinite(example).all():
        return Tile("", f"{who}: no answer at {what}", "no answer")
    if scores is None:
        return Tile(picture(example), f"{who}: the truth", "")
    score = number(scores.get((v, m)), 3)
    return Tile(picture(example), f"{who}: reconstruction at {what}, RMSE {score}", score)
