"""Truth beside reconstruction, for the first victims of every leakage point, as many as a page can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leakbench.report.pictures import picture, picture_bytes, shrinks
from leakbench.report.words import number

__all__ = [
    "BUDGET",
    "Arrays",
    "Gallery",
    "Scores",
    "Series",
    "Tile",
    "fitting",
    "galleries",
    "pointed",
    "scores_of",
    "shown_together",
    "tiles",
]

Arrays: TypeAlias = Mapping[str, NDArray[np.floating]]
Scores: TypeAlias = Mapping[tuple[int, int], tuple[float, bool]]
"""{(place among the victims, member): (RMSE, whether it counts as rebuilt)}."""

VICTIMS = 24
MEMBERS = 4
ROUNDS = 8
BUDGET = 2_000_000
"""Characters of pictures on one page; a page stays below 5 MB."""


@dataclass(frozen=True)
class Tile:
    """One picture: its data URI (empty where there was no answer), what it shows in words, its score, whether it is a success."""

    source: str
    alt: str
    caption: str
    success: bool = False


@dataclass(frozen=True)
class Series:
    """What stands in one row of a gallery: its heading, examples (V, M, *s), and of answers their scores."""

    heading: str
    examples: NDArray[np.floating]
    scores: Scores | None = None


@dataclass(frozen=True)
class Gallery:
    """Examples and their reconstructions: a heading a row, and in it for each victim a list of tiles.

    `pictures` is false for tabular data, whose tiles are strips. victims: how many there are, of whom `shown` are shown.
    more: members of a batch that are not shown. smaller: by what factor a picture is shown smaller than it is.
    """

    round: int
    headings: list[str]
    rows: list[list[list[Tile]]]
    pictures: bool
    victims: int
    shown: int
    more: int
    smaller: int


def galleries(arrays: Arrays, rows: pd.DataFrame) -> list[Gallery]:
    """Return a gallery for each round that was attacked and each set of leakage points with the same examples.

    arrays: `<tap>.round<r>.reconstruction` and `.truth`, (V, M, *s), both in the order of the truth.
    """
    found = list(pointed(arrays, rows))
    leaks = sorted({leak for leak, _ in found})
    kept = set(np.asarray(leaks)[np.linspace(0, len(leaks) - 1, min(ROUNDS, len(leaks))).round().astype(int)].tolist())
    found = [(leak, series) for leak, series in found if leak in kept]
    victims, members = fitting([one.examples.shape for _, series in found for one in series])
    return [shown_together(leak, series, victims, members) for leak, series in found]


def pointed(arrays: Arrays, rows: pd.DataFrame) -> Iterator[tuple[int, list[Series]]]:
    """Yield (round, [the truth, then the answers of each tap that leaked these very examples])."""
    points: dict[int, list[str]] = {}
    for name in sorted(arrays, reverse=True):  # type-2 before type-1 before type-0, as in the table
        if name.endswith(".reconstruction"):
            tap, _, counted = name.removesuffix(".reconstruction").rpartition(".round")
            points.setdefault(int(counted), []).append(tap)
    for leak in sorted(points):
        group: list[Series] = []
        for tap in points[leak]:
            truth, answer = (arrays[f"{tap}.round{leak}.{kind}"] for kind in ("truth", "reconstruction"))
            if group and not np.array_equal(group[0].examples, truth):
                yield leak, group
                group = []
            answers = Series(tap, answer, scores_of(rows[(rows["tap"] == tap) & (rows["round"] == leak)]))
            group += [answers] if group else [Series("truth", truth), answers]
        yield leak, group


def fitting(shapes: Sequence[tuple[int, ...]], budget: int = BUDGET) -> tuple[int, int]:
    """Return how many victims, and of each how many members of a batch, of examples (V, M, *s) fit on a page; at least one each."""
    most = max((shape[0] for shape in shapes), default=1)
    victims = members = 1
    for members in range(min(MEMBERS, max((shape[1] for shape in shapes), default=1)), 0, -1):
        cost = sum(min(members, shape[1]) * picture_bytes(shape[2:]) for shape in shapes)
        victims = min(VICTIMS, most, budget // max(1, cost))
        if victims >= min(4, most):
            break
    return max(1, victims), members


def shown_together(leak: int, series: Sequence[Series], victims: int, members: int) -> Gallery:
    """Return the gallery of the first victims and members of series of the same examples (V, M, *s)."""
    shape = series[0].examples.shape
    return Gallery(
        leak,
        [one.heading for one in series],
        [tiles(one, victims, members) for one in series],
        len(shape) == 5,
        shape[0],
        min(victims, shape[0]),
        max(0, shape[1] - members),
        shrinks(shape[2:]),
    )


def scores_of(rows: pd.DataFrame) -> Scores:
    """Return the scores of one leakage point's rows."""
    # The victim's place in the arrays is its rank among the victims of the rows.
    place = rows["victim"].rank(method="dense").astype("int64") - 1
    scored = zip(place, rows["member"], rows["rmse"], rows["success"], strict=True)
    return {(int(v), int(m)): (float(e), bool(s)) for v, m, e, s in scored}


def tiles(series: Series, victims: int, members: int, what: str | None = None) -> list[list[Tile]]:
    """Return the tiles of the first victims and members; what: where they were read, in words, if not the heading says it."""
    return [
        [_tile(example, what or series.heading, v, m, series.scores) for m, example in enumerate(batch[:members])]
        for v, batch in enumerate(series.examples[:victims])
    ]


def _tile(example: NDArray[np.floating], what: str, v: int, m: int, scores: Scores | None) -> Tile:
    who = f"victim {v}, example {m}"
    if not np.isfinite(example).all():
        return Tile("", f"{who}: no answer at {what}", "no answer")
    if scores is None:
        return Tile(picture(example), f"{who}: the truth", "")
    error, success = scores.get((v, m), (None, False))
    score = number(error, 3)
    return Tile(picture(example), f"{who}: reconstruction at {what}, RMSE {score}", score, success)
