"""Figures of tables: accuracy over rounds, and the true examples next to their reconstructions at each leakage point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.svg import DASHES
from leakbench.measure.measures import RMSE
from leakbench.reproduce.curves import Rounds, rounds_of
from leakbench.reproduce.file import rows_folder
from leakbench.reproduce.measure import cells_of, command_of
from leakbench.reproduce.table import Table, scale_of
from leakbench.storage.rows_file import rows_at
from leakbench.storage.store import write_atomically
from leakbench.study.study import Execution, executed

__all__ = ["COLOURS", "DPI", "HIDES", "INK", "LEAKS", "draw", "draw_curves", "draw_pictures", "saved", "shown_of"]

DPI = 150

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette for colour-blind readers; lines differ in their dashes too."""


def draw_curves(rounds: Rounds, rows: pd.DataFrame, path: Path) -> None:
    """Draw a panel of curves each: the mean over seeds and the range; rows that were not measured are left out."""
    kept = {str(row["cell"]): rounds_of(row) for row in rows.to_dict("records")}
    across = 3 if len(rounds.panels) > 4 else 2
    down = math.ceil(len(rounds.panels) / across)
    figure = Figure(figsize=(3.8 * across, 3.5 * down), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
    for panel, (title, names) in zip(panels, rounds.panels.items(), strict=False):
        styles = zip(names, COLOURS, (*DASHES, *DASHES), strict=False)
        for name, colour, dash in ((n, c, d) for n, c, d in styles if n in kept):
            of, at = kept[name], np.arange(1, kept[name].shape[1] + 1)
            panel.plot(at, of.mean(0), dash, color=colour, label=name)
            panel.fill_between(at, of.min(0), of.max(0), color=colour, alpha=0.15, linewidth=0)
        panel.set_title(title, fontsize=9.5)
        panel.set_xlabel("round", fontsize=9)
        panel.set_ylabel("accuracy", fontsize=9)
        panel.set_ylim(0, 1)
        panel.tick_params(labelsize=8, labelbottom=True, labelleft=True)
        panel.grid(alpha=0.25)
        if panel.lines:
            panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    saved(figure, path)


def saved(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; the same figure gives the same bytes."""
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None}))


LEAKS, HIDES, INK = "#B34700", "#767676", "#222222"
"""Vermilion and grey, distinct for colour-blind readers; the frame of a reconstructed example is wider too."""

TILE, ROW, NAME, LINE, FOOT = 1.0, 1.14, 1.15, 0.155, 0.32
"""Inches: the width of a tile and the height of a row, the names at the left, a line of a heading, the legend beneath."""

NO_METHOD = "rebuilt"
"""What the column of a row is called whose name has no comma."""


@dataclass(frozen=True)
class Tile:
    """A reconstruction: pixels (H, W, 3) in [0, 1], None where there was no answer, its RMSE, and whether that is at most eta."""

    pixels: NDArray[np.floating] | None
    rmse: float
    came_back: bool


@dataclass(frozen=True)
class Shown:
    """Examples of a cell at a leakage point.

    Args:
        group: The parts of its row's name before and after the last comma.
        method: The parts of its row's name before and after the last comma.
        batch: Of how many examples the leak is.
    """

    group: str
    method: str
    point: str
    batch: int
    truth: tuple[NDArray[np.floating], ...]
    tiles: tuple[Tile, ...]


def shown_of(name: str, rows: pd.DataFrame, tensors: Mapping[str, Tensor], many: int) -> list[Shown]:
    """Return the first `many` examples of a cell's run at each of its leakage points, in the order of victim and member.

    Args:
        rows: Rows of the run's folder.
        tensors: Tensors of the run's folder.
        many: Number of examples.

    Raises:
        InputError: The data are not pictures.
    """
    group, comma, method = name.rpartition(", ")
    group, method = (group, method) if comma else (name, NO_METHOD)
    found = []
    for key in [key for key in tensors if key.endswith(".reconstruction")]:
        at = LeakagePoint.of(key)
        answer, truth = (tensors[f"{at.file}.{kind}"] for kind in ("reconstruction", "truth"))
        if truth.dim() != 5:
            raise InputError(
                f"pictures: row {name!r}: {at.tap} leaks examples of shape {tuple(truth.shape[2:])}, no pictures"
            )
        of = rows_at(rows, at).sort_values(["victim", "member"])
        flat = [each.flatten(0, 1)[:many] for each in (answer, truth)]
        tiles = [
            Tile(_pixels(picture), float(row[RMSE.name]), bool(row[RMSE.name] <= row["eta"]))
            for picture, row in zip(flat[0], of.to_dict("records"), strict=False)
        ]
        point = at.tap if at.rounds == (0,) else at.key
        found.append(Shown(group, method, point, truth.shape[1], tuple(map(_drawn, flat[1])), tuple(tiles)))
    return sorted(found, key=lambda each: each.point, reverse=True)


def draw(shown: Sequence[Shown], notes: Mapping[str, str], path: Path) -> None:
    """Draw a line of tiles for each group and leakage point: for each example the truth, then each method's reconstruction.

    Args:
        notes: {method: text under its heading}. Raises InputError where two methods of a line attacked different examples.
    """
    methods = list(dict.fromkeys(each.method for each in shown))
    lines: dict[tuple[str, str], dict[str, Shown]] = {}
    for each in shown:
        lines.setdefault((each.group, each.point), {})[each.method] = each
    many = max(len(each.truth) for each in shown)
    heads = {head: _heading(head, notes) for head in ("truth", *methods)}
    top = 0.1 + LINE * max(heading.count("\n") + 1 for heading in heads.values())
    width = NAME + TILE * many * len(heads) + 0.25 * (many - 1)
    figure = Figure(figsize=(width, top + ROW * len(lines) + FOOT), facecolor="white")
    FigureCanvasAgg(figure)
    canvas = _Canvas(figure)
    for x, head in _heads(methods, many):
        canvas.text(x + 0.46 * TILE, top - 0.04, heads[head], 8.5, weight="bold", va="bottom")
    for place, ((group, point), cells) in enumerate(lines.items()):
        y, batch = top + ROW * place, next(iter(cells.values())).batch
        canvas.text(0.06, y + 0.25 * TILE, group, 9.5, weight="bold", ha="left")
        said = f"{point}\n" + (f"batch of {batch}" if batch > 1 else "one example")
        canvas.text(0.06, y + 0.44 * TILE, said, 8.5, ha="left", color=HIDES)
        _line(canvas, y, cells, methods, many, f"{group}, {point}")
    legend = "Under each picture its RMSE; framed: it came back to an RMSE of at most eta."
    canvas.text(0.06, top + ROW * len(lines) + 0.04, legend, 8.5, ha="left", color=LEAKS)
    saved(figure, path)


class _Canvas:
    """A figure on which everything is placed in inches from its upper left corner."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.width, self.height = figure.get_size_inches()

    def text(self, x: float, y: float, said: str, size: float, **given: Any) -> None:
        style = {"ha": "center", "va": "top", "color": INK, **given}
        self.figure.text(x / self.width, 1 - y / self.height, said, fontsize=size, **style)

    def tile(self, x: float, y: float) -> Axes:
        side = 0.92 * TILE
        box = (x / self.width, 1 - (y + side) / self.height, side / self.width, side / self.height)
        return self.figure.add_axes(box, xticks=[], yticks=[])


def _line(canvas: _Canvas, y: float, cells: Mapping[str, Shown], methods: Sequence[str], many: int, where: str) -> None:
    truths = [each.truth for each in cells.values()]
    for other in truths[1:]:
        if len(other) != len(truths[0]) or not all(map(np.array_equal, truths[0], other)):
            raise InputError(
                f"pictures: {where}: rows attacked other examples; give them the same data, batch and seed"
            )
    places = list(_heads(methods, many))
    for example in range(len(truths[0])):
        for x, head in places[example * (1 + len(methods)) :][: 1 + len(methods)]:
            if head == "truth":
                _picture(canvas.tile(x, y), truths[0][example], came_back=False)
                continue
            tile = cells[head].tiles[example] if head in cells else None
            axes = canvas.tile(x, y)
            _picture(
                axes,
                tile.pixels if tile else None,
                bool(tile and tile.came_back),
                "no answer" if tile else "not\nmeasured",
            )
            said = "" if tile is None or tile.pixels is None else f"{tile.rmse:.3f}"
            canvas.text(x + 0.46 * TILE, y + 0.95 * TILE, said, 7.5, color=LEAKS if tile and tile.came_back else HIDES)


def _heads(methods: Sequence[str], many: int) -> list[tuple[float, str]]:
    """Return (its left in inches, what it is) of each column."""
    across = ["truth", *methods]
    return [
        (NAME + (example * len(across) + place) * TILE + 0.25 * example, head)
        for example in range(many)
        for place, head in enumerate(across)
    ]


def _heading(head: str, notes: Mapping[str, str]) -> str:
    words, lines = head.split(), [""]
    for word in words:  # Wrapped, so that neighbours do not touch.
        lines = [*lines[:-1], f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < 12 else [*lines, word]
    return "\n".join([*(line for line in lines if line), *([notes[head]] if notes.get(head) else [])])


def _picture(axes: Axes, pixels: NDArray[np.floating] | None, came_back: bool, lacking: str = "no answer") -> None:
    if pixels is None:
        axes.text(0.5, 0.5, lacking, ha="center", va="center", fontsize=8, color=HIDES)
    else:
        axes.imshow(pixels, interpolation="nearest")
    for side in axes.spines.values():
        side.set(color=LEAKS if came_back else "#BBBBBB", linewidth=2.5 if came_back else 0.6)


def _pixels(picture: Tensor) -> NDArray[np.floating] | None:
    """Return a reconstruction (C, H, W) as a tile has it; None if it has a value that is not finite."""
    return _drawn(picture) if bool(torch.isfinite(picture).all()) else None


def _drawn(picture: Tensor) -> NDArray[np.floating]:
    """Return (H, W, 3), clamped to [0, 1]."""
    pixels: NDArray[np.floating] = picture.clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).double().cpu().numpy()
    return pixels


def draw_pictures(table: Table, rows: pd.DataFrame, out: Path, execution: Execution) -> Path:
    """Draw the cells that have rows, as their rows were measured, into `out`/NAME.png, and return its path.

    Under a method's heading stands the accuracy of the network that was trained with it, where one was.
    """
    shown, notes = list[Shown](), dict[str, str]()
    known = {row["cell"]: row for row in rows.to_dict("records")}
    for line in table.lines:
        if line.name not in known:
            continue
        scale, changed = scale_of(known[line.name])
        cell = cells_of(line, scale, changed, execution.data_dir, execution.reporter)[0]
        with executed(cell, execution.runs, command_of(table, line, scale), execution.reporter) as (summary, run):
            tensors = run.read_tensors("reconstructions.safetensors")
            found = shown_of(line.name, run.read_rows("rows.parquet"), tensors, table.pictures)
        shown += found
        if summary.accuracy is not None:
            notes[found[0].method] = f"accuracy\n{summary.accuracy:.3f}"
    path = rows_folder(out, table.name) / f"{table.name}.png"
    draw(shown, notes, path)
    return path
