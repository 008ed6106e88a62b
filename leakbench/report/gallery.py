"""Originals next to their reconstructions, for the first victims of each leakage point, as many as fit on a page.

Pictures are PNGs, records are strips of cells, and texts are tokens, coloured by whether the original has them.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from leakbench.core.leakage_points import LeakagePoint, after_rounds, listed, point_name
from leakbench.data.words import Words, words_in
from leakbench.measure.measures import EDIT_DISTANCE, RMSE, deciding
from leakbench.report.words import number
from leakbench.storage.rows_file import rows_at

__all__ = [
    "BUDGET",
    "Arrays",
    "Gallery",
    "Scores",
    "Series",
    "coloured",
    "fitting",
    "galleries",
    "gallery_of",
    "picture",
    "picture_bytes",
    "pointed",
    "shown_size",
    "shown_together",
    "shrinks",
    "tiles",
    "titled",
]

SIDE = 96
"""Pixels; a larger picture is reduced by a whole factor, each pixel the mean of a block. On the page a tile is never smaller."""

STRIP = (208, 24)
"""Width and height of the tile of a record in CSS pixels."""


def picture(example: NDArray[np.floating]) -> str:
    """Return one example as a PNG: a picture for the shape (1 or 3, H, W), else a strip of features; 0 is dark."""
    values = np.clip(example.astype(np.float64), 0, 1)
    plane = values.ndim == 3 and values.shape[0] in (1, 3)
    pixels = _shrunk(values).transpose(1, 2, 0) if plane else values.reshape(1, -1, 1)
    levels = np.ascontiguousarray((255 * pixels).round().astype(np.uint8))
    buffer = BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def picture_bytes(shape: tuple[int, ...]) -> int:
    """Return an upper estimate of the characters that the picture of one example takes; noise does not compress."""
    factor = shrinks(shape)
    return 200 + int(np.prod(shape) / factor**2 * 4 / 3)


def shrinks(shape: tuple[int, ...]) -> int:
    """Return the whole factor of reduction of pictures of a shape (C, H, W); 1 for strips."""
    return -(-max(shape[1:]) // SIDE) if len(shape) == 3 and shape[0] in (1, 3) else 1


def shown_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the width and height in CSS pixels of the tile of an example; pixels of a picture are enlarged by a whole factor.

    Args:
        shape: Shape of one example: (1 or 3, H, W) for a picture; any other is a record.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        return STRIP
    high, wide = (max(1, side // shrinks(shape)) for side in shape[1:])
    enlarged = -(-SIDE // wide)
    return enlarged * wide, enlarged * high


def _shrunk(values: NDArray[np.float64]) -> NDArray[np.float64]:
    factor = shrinks(values.shape)
    high, wide = (side // factor * factor for side in values.shape[1:])
    blocks = values[:, :high, :wide].reshape(values.shape[0], high // factor, factor, wide // factor, factor)
    means: NDArray[np.float64] = blocks.mean((2, 4))
    return means


Arrays: TypeAlias = Mapping[str, NDArray[np.floating]]
Scores: TypeAlias = Mapping[tuple[int, int], tuple[float, bool]]
"""{(index of the victim, member): (RMSE or edit distance, whether it counts as a success)}."""

VICTIMS = 24
MEMBERS = 4
ROUNDS = 8
BUDGET = 2_000_000
"""Characters of pictures on one page; a page stays below 5 MB."""

ORIGINAL = "original"
RECONSTRUCTION = "reconstruction"


SHOWN = {"right": "at its place", "moved": "elsewhere in the original", "wrong": "not in the original"}
"""{class of a reconstructed token: what it means}."""


@dataclass(frozen=True)
class GalleryTile:
    """One picture, record or sentence.

    Args:
        source: Data URI; empty where the attack gave no answer.
        alt: Description for a screen reader.
        caption: Score, or the reason for the missing picture.
        success: Whether the reconstruction counts as a success.
        tokens: (token, a key of `SHOWN` or empty) of a sentence, in order; empty for other data.
    """

    source: str
    alt: str
    caption: str
    success: bool = False
    tokens: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Series:
    """Examples of one kind: the originals, or the reconstructions at one leakage point.

    Args:
        heading: Name of the leakage point, or `ORIGINAL`.
        examples: Examples (V, M, *s).
        scores: Scores of reconstructions; None for originals.
        label: Text under each tile; the heading where it is empty.
        words: The tokens of sentences; None for other data.
        originals: The originals of reconstructed sentences (V, M, T).
    """

    heading: str
    examples: NDArray[np.floating]
    scores: Scores | None = None
    label: str = ""
    words: Words | None = None
    originals: NDArray[np.floating] | None = None


@dataclass(frozen=True)
class Gallery:
    """Examples and their reconstructions, victim by victim.

    Args:
        title: Leakage points, and the round where there are several.
        labels: Text under the tiles, one for each series.
        rows: Tiles by series, victim, member of the batch and level; a gallery without levels has one tile at the last.
        pictures: Whether examples are pictures; records are strips, one cell for each feature.
        victims: Number of victims under attack.
        shown: Number of victims on the page.
        more: Members of each batch that are not on the page.
        smaller: Factor of reduction of pictures.
        width: Width of a tile in CSS pixels.
        height: Height of a tile in CSS pixels.
        scored: Whether the reconstructions have scores.
        texts: Whether examples are sentences.
        coloured: Whether the tokens of reconstructed sentences are compared with the originals.
    """

    title: str
    labels: list[str]
    rows: list[list[list[list[GalleryTile]]]]
    pictures: bool
    victims: int
    shown: int
    more: int
    smaller: int
    width: int
    height: int
    scored: bool = True
    texts: bool = False
    coloured: bool = False


def galleries(arrays: Arrays, rows: pd.DataFrame) -> list[Gallery]:
    """Return a gallery for each attacked round and each set of leakage points with the same examples.

    Args:
        arrays: `<tap>.round<r>.reconstruction` and `.truth`, (V, M, *s), both in the order of the truth.
        rows: Scores, one row for each example at each leakage point.

    Returns:
        The galleries in the order of rounds; with more than `ROUNDS` rounds, evenly spaced ones.
    """
    found = list(pointed(arrays, rows))
    leaks = sorted({leak for leak, _ in found})
    kept = set(np.asarray(leaks)[np.linspace(0, len(leaks) - 1, min(ROUNDS, len(leaks))).round().astype(int)].tolist())
    found = [(leak, series) for leak, series in found if leak in kept]
    victims, members = fitting([one.examples.shape for _, series in found for one in series])
    several = len(leaks) > 1
    return [
        shown_together(titled(series, leak if several else None), series, victims, members) for leak, series in found
    ]


def titled(series: Sequence[Series], leak: int | None) -> str:
    """Return the title of a gallery: its leakage points, and the round if it is given."""
    names = listed(list(dict.fromkeys(one.heading for one in series if one.scores is not None)))
    return f"{names[0].upper()}{names[1:]}{'' if leak is None else after_rounds(leak)}"


def pointed(arrays: Arrays, rows: pd.DataFrame) -> Iterator[tuple[int, list[Series]]]:
    """Yield (round, [the originals, then the reconstructions at each leakage point with these examples])."""
    points: dict[int, list[LeakagePoint]] = {}
    words = words_in(arrays)
    for name in sorted(arrays, reverse=True):  # type-2 before type-1 before type-0, as in the table
        if name.endswith(".reconstruction"):
            point = LeakagePoint.of(name)
            points.setdefault(point.rounds[-1], []).append(point)
    for leak in sorted(points):
        group: list[Series] = []
        for point in points[leak]:
            truth, answer = (arrays[f"{point.file}.{kind}"] for kind in ("truth", "reconstruction"))
            if group and not np.array_equal(group[0].examples, truth):
                yield leak, group
                group = []
            scores = _scores_of(rows_at(rows, point))
            answers = Series(point_name(point.tap), answer, scores, words=words, originals=truth)
            group += [answers] if group else [Series(ORIGINAL, truth, words=words), answers]
        yield leak, group


def fitting(shapes: Sequence[tuple[int, ...]], budget: int = BUDGET) -> tuple[int, int]:
    """Return how many victims, and how many members of each batch, fit on a page; at least one each.

    Args:
        shapes: Shapes (V, M, *s) of all series on the page.
        budget: Characters that their pictures may take.
    """
    most = max((shape[0] for shape in shapes), default=1)
    victims = members = 1
    for members in range(min(MEMBERS, max((shape[1] for shape in shapes), default=1)), 0, -1):
        cost = sum(min(members, shape[1]) * picture_bytes(shape[2:]) for shape in shapes)
        victims = min(VICTIMS, most, budget // max(1, cost))
        if victims >= min(4, most):
            break
    return max(1, victims), members


def shown_together(title: str, series: Sequence[Series], victims: int, members: int) -> Gallery:
    """Return the gallery of the first victims and members of series of the same examples (V, M, *s)."""
    single = [[[[tile] for tile in batch] for batch in tiles(one, victims, members)] for one in series]
    scored = any(one.scores for one in series)
    return replace(gallery_of(title, series, single, members), scored=scored)


def gallery_of(
    title: str, series: Sequence[Series], rows: list[list[list[list[GalleryTile]]]], members: int
) -> Gallery:
    """Return a gallery of tiles of series of the same examples (V, M, *s) that shows `members` of the M examples of each victim."""
    shape = series[0].examples.shape
    width, height = shown_size(shape[2:])
    shown, more = len(rows[0]), max(0, shape[1] - members)
    texts = series[0].words is not None
    return Gallery(
        title,
        labels_of(series),
        rows,
        len(shape) == 5,
        shape[0],
        shown,
        more,
        shrinks(shape[2:]),
        width,
        height,
        texts=texts,
        coloured=texts and any(one.originals is not None for one in series),
    )


def labels_of(series: Sequence[Series]) -> list[str]:
    """Return the text under the tiles of each series; the only reconstruction needs no leakage point."""
    lone = sum(one.scores is not None for one in series) == 1
    return [one.label or (RECONSTRUCTION if lone and one.scores is not None else one.heading) for one in series]


def _scores_of(rows: pd.DataFrame) -> Scores:
    """Return the scores of one leakage point's rows."""
    # The victim's index in the arrays is its rank among the victims of the rows.
    place = rows["victim"].rank(method="dense").astype("int64") - 1
    scored = zip(place, rows["member"], rows[deciding(rows).name], rows["success"], strict=True)
    return {(int(v), int(m)): (float(e), bool(s)) for v, m, e, s in scored}


def tiles(series: Series, victims: int, members: int, what: str | None = None) -> list[list[GalleryTile]]:
    """Return the tiles of the first victims and members.

    Args:
        what: Where they leaked, if the heading does not tell.
    """
    return [
        [_tile(example, what or series.heading, v, m, series) for m, example in enumerate(batch[:members])]
        for v, batch in enumerate(series.examples[:victims])
    ]


def _tile(example: NDArray[np.floating], what: str, v: int, m: int, series: Series) -> GalleryTile:
    who, scores, words = f"victim {v}, example {m}", series.scores, series.words
    if not np.isfinite(example).all():
        return GalleryTile("", f"{who}: no answer at {what}", "no answer")
    original = None if series.originals is None else series.originals[v, m]
    tokens = () if words is None else coloured(words, example, original)
    source = picture(example) if words is None else ""
    if series.scores is None and series.originals is None:
        return GalleryTile(source, f"{who}: the original", "", tokens=tokens)
    if scores is None or (v, m) not in scores:
        return GalleryTile(source, f"{who}: reconstruction at {what}", "", tokens=tokens)
    error, success = scores[v, m]
    score = f"{(RMSE if words is None else EDIT_DISTANCE).heading} {number(error, 3)}"
    return GalleryTile(source, f"{who}: reconstruction at {what}, {score}", score, success, tokens)


def coloured(
    words: Words, example: NDArray[np.floating], original: NDArray[np.floating] | None
) -> tuple[tuple[str, str], ...]:
    """Return (token, a key of `SHOWN`) of a sentence (T,) without special tokens; no key without an original."""
    shown = words.content(example)
    if original is None:
        return tuple((words.names[token], "") for token in shown)
    true = words.content(original)
    left = Counter(true) - Counter(a for a, b in zip(shown, true, strict=False) if a == b)
    kinds = []
    for place, token in enumerate(shown):
        if place < len(true) and true[place] == token:
            kinds.append("right")
        elif left[token] > 0:
            left[token] -= 1
            kinds.append("moved")
        else:
            kinds.append("wrong")
    return tuple((words.names[token], kind) for token, kind in zip(shown, kinds, strict=True))
