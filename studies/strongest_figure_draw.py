"""The figure of `strongest_figure.py`: one face in rows of attacks and columns of noise, and the numbers under each column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from strongest_figure_faces import Sheet
from strongest_figure_numbers import CLIP, PICTURES, SIGMAS, UNDER, Number, digits, number, rows_at

from leakbench.reproduce.table_figures import HIDES, INK, LEAKS

__all__ = ["draw"]


TRUTH, LABELS, COLUMN, TILE, ROW, BLOCK, TOP, FOOT = 1.75, 2.1, 1.14, 1.0, 1.27, 1.06, 1.3, 0.72
"""Inches: the widths of the truth's column, the rows' names, a column, a tile; the heights of a row, of numbers, of both ends."""

WIDTH = TRUTH + LABELS + COLUMN * len(SIGMAS) + 0.1
HEIGHT = TOP + ROW * len(PICTURES) + BLOCK * len(UNDER) + FOOT

KNOWN = {
    "dlg": "searches pixels;\nnot told of the defense",
    "cpl": "searches pixels;\nnot told of the defense",
    "inverting_gradients_short": "searches pixels by direction;\nnot told of the defense",
    "whitened": "searches likely pictures;\nknows the defense;\nno data",
    "whitened_public": "searches likely faces;\nknows the defense;\n{public:.0f} public faces",
}
"""{attack: what it does and knows}"""

MEANT = {
    "asr": "by the best of\nthe attacks above,\n{victims} victims",
    "identified": "among {candidates:,.0f} candidates,\nby likelihood,\n{victims} victims",
    "label": "read from the\nlast layer,\n{victims} victims",
}


LINES = {"share of victims": 0.14, "95 % interval": 0.37, "a guess": 0.58, "no attack exceeds": 0.79}
"""{line of a block: inches from the top of the block}"""


class Canvas:
    """A figure on which everything is placed in inches from its upper left corner."""

    def __init__(self) -> None:
        """Begin an empty one."""
        self.figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="white")
        FigureCanvasAgg(self.figure)

    def text(
        self, x: float, y: float, said: str, size: float, color: str = INK, weight: str = "normal", ha: str = "center"
    ) -> None:
        """Write with the top at y: centred on x, or from there where `ha` is `left`, or up to there where it is `right`."""
        place = (x / WIDTH, 1 - y / HEIGHT)
        self.figure.text(*place, said, fontsize=size, color=color, weight=weight, ha=ha, va="top")

    def tile(self, x: float, y: float, picture: NDArray[np.uint8] | None, missing: str, rebuilt: bool = False) -> None:
        """Show an image with its upper left corner at (x, y), framed if `rebuilt`; without an image, the text `missing`."""
        box = (x / WIDTH, 1 - (y + TILE) / HEIGHT, TILE / WIDTH, TILE / HEIGHT)
        axes = self.figure.add_axes(box, xticks=[], yticks=[])
        if picture is None:
            axes.text(0.5, 0.5, missing, ha="center", va="center", fontsize=8, color=HIDES)
        else:
            axes.imshow(picture, interpolation="nearest")
        for side in axes.spines.values():
            side.set(color=LEAKS if rebuilt else "#BBBBBB", linewidth=3.5 if rebuilt else 0.8)

    def line(self, y: float) -> None:
        """Draw a thin line across."""
        place = (0.1 / WIDTH, 1 - y / HEIGHT)
        self.figure.add_artist(Rectangle(place, 1 - 0.2 / WIDTH, 0.01 / HEIGHT, color="#BBBBBB"))


def draw(rows: pd.DataFrame, sheet: Sheet, path: Path) -> None:
    """Draw what was measured; the rest says that it was not."""
    canvas, public = Canvas(), rows["public"].dropna().iloc[0]
    _heads(canvas)
    _truths(canvas, sheet, public)
    for place, (attack, title) in enumerate(PICTURES.items()):
        y = TOP + ROW * place
        canvas.text(TRUTH, y + 0.16, title, 12, ha="left", weight="bold")
        canvas.text(TRUTH, y + 0.41, KNOWN[attack].format(public=public), 9, ha="left", color=HIDES)
        for column, sigma in enumerate(SIGMAS):
            _face(canvas, column, y, rows_at(rows, sigma, attack), sheet.get(attack, sigma))
    for place, (under, title) in enumerate(UNDER.items()):
        y = TOP + ROW * len(PICTURES) + BLOCK * place
        found = [number(rows, under, sigma) for sigma in SIGMAS]
        _block(canvas, y, title, _meant(rows, under, found), found, under)
    _legend(canvas, rows)
    canvas.figure.savefig(path, dpi=100, metadata={"Software": None})


def _middle(column: int) -> float:
    return TRUTH + LABELS + COLUMN * (column + 0.5)


def _heads(canvas: Canvas) -> None:
    title = "One face, rebuilt from one gradient that a client sends, behind more and more noise"
    canvas.text(0.12, 0.12, title, 15, ha="left", weight="bold")
    said = f"clipped to a norm of {CLIP}, then noise of deviation {CLIP} \N{GREEK SMALL LETTER SIGMA} on each of its coordinates"
    canvas.text(_middle(1) - TILE / 2, 0.52, f"{said}  \N{RIGHTWARDS ARROW}", 11, ha="left")
    for column, sigma in enumerate(SIGMAS):
        head = f"\N{GREEK SMALL LETTER SIGMA} = {sigma:g}"
        canvas.text(_middle(column), 0.81, head, 11.5, weight="bold")
        under = f"deviation {CLIP * sigma:g}" if sigma else "no defense"
        canvas.text(_middle(column), 1.04, under, 9, color=HIDES)


def _truths(canvas: Canvas, sheet: Sheet, public: float) -> None:
    canvas.tile(0.3, TOP, sheet.get("truth"), "not\nmeasured")
    canvas.text(0.3 + TILE / 2, TOP + TILE + 0.06, "the victim", 12, weight="bold")
    y = TOP + 1.5 * ROW
    canvas.tile(0.3, y, sheet.get("mean"), "not\nmeasured")
    canvas.text(0.3 + TILE / 2, y + TILE + 0.06, "a guess", 12, weight="bold")
    said = f"no gradient: the mean\nof {public:.0f} public faces"
    canvas.text(0.3 + TILE / 2, y + TILE + 0.3, said + _apart(sheet), 9, color=HIDES)


def _apart(sheet: Sheet) -> str:
    truth, mean = (sheet.get(what) for what in ("truth", "mean"))
    if truth is None or mean is None:
        return ""
    return f"\nRMSE {np.sqrt(np.mean((truth / 255 - mean / 255) ** 2)):.3f}"


def _face(canvas: Canvas, column: int, y: float, row: pd.DataFrame, picture: NDArray[np.uint8] | None) -> None:
    x = _middle(column) - TILE / 2
    if row.empty:
        canvas.tile(x, y, None, "not\nmeasured")
        return
    error, threshold = float(row["face_rmse"].iloc[0]), float(row["eta"].iloc[0])
    canvas.tile(x, y, picture, "no answer", rebuilt=error <= threshold)
    if picture is not None:
        canvas.text(_middle(column), y + TILE + 0.045, f"RMSE {error:.3f}", 8.5, color=HIDES)


def _meant(rows: pd.DataFrame, under: str, found: Sequence[Number | None]) -> str:
    many = sorted({each.victims for each in found if each is not None})
    victims = " or ".join(f"{each:,}" for each in many) or "no"
    return MEANT[under].format(victims=victims, candidates=rows["candidates"].dropna().iloc[0])


def _block(canvas: Canvas, y: float, title: str, meant: str, found: Sequence[Number | None], under: str) -> None:
    canvas.line(y)
    canvas.text(0.2, y + 0.12, title, 12, ha="left", weight="bold")
    canvas.text(0.2, y + 0.36, meant, 9, ha="left", color=HIDES)
    for label, at in LINES.items():
        canvas.text(TRUTH + LABELS - 0.08, y + at, label, 9, ha="right", color=HIDES)
    for column, each in enumerate(found):
        _shares(canvas, _middle(column), y, each, digits(under))


def _shares(canvas: Canvas, x: float, y: float, found: Number | None, many: int) -> None:
    if found is None:
        canvas.text(x, y + 0.37, "not measured", 9, color=HIDES)
        return
    value = f"{found.value:.{many}f}"
    if found.leaks:
        canvas.text(x, y + 0.08, value, 14, color=LEAKS, weight="bold")
    else:
        canvas.text(x, y + 0.08, value, 14, color=HIDES)
    canvas.text(x, y + 0.37, f"{found.low:.{many}f} \N{EN DASH} {found.high:.{many}f}", 9, color=HIDES)
    canvas.text(x, y + 0.58, f"{found.guess:.{many}f}", 9, color=HIDES)
    canvas.text(x, y + 0.79, "no bound" if found.bound is None else f"{found.bound:.{many}f}", 9)


def _legend(canvas: Canvas, rows: pd.DataFrame) -> None:
    y, eta = HEIGHT - FOOT + 0.06, rows["eta"].dropna().iloc[0]
    canvas.line(y - 0.04)
    frame = f"Orange frame: the face came back (RMSE at most {eta:.3f})."
    canvas.text(0.2, y + 0.06, frame, 10, ha="left", color=LEAKS)
    canvas.text(5.0, y + 0.06, "Orange number: more than a guess, it leaks.", 10, ha="left", color=LEAKS, weight="bold")
    canvas.text(9.1, y + 0.06, "Grey number: no more than a guess.", 10, ha="left", color=HIDES)
    said = "No attack exceeds (but by chance, within its interval): what the noise allows any attack. 1.00 forbids nothing."
    canvas.text(0.2, y + 0.3, said, 10, ha="left")
