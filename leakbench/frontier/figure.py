"""The figure of a frontier: accuracy against valid epsilon and against identification, a line for each defense through its noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from leakbench.frontier.answer import setting_of
from leakbench.frontier.choose import Choice
from leakbench.frontier.labels import spread
from leakbench.frontier.look import GRID, INK, MUTED, PAPER, Look, looks_of, with_dark
from leakbench.reproduce.columns import text_of
from leakbench.store import write_atomically

__all__ = ["draw", "figure_of"]

WIDTH, HEIGHT = 5.5, 6.0
"""Inches; 5.5 are 396 points, so that a letter of 8 points has 8 pixels where the figure is as wide as a phone."""

LEFT, RIGHT, LABELS = (0.105, 0.295), (0.445, 0.245), 0.735
"""Shares of the width: where each panel begins and how wide it is; where the labels begin."""

BOTTOM, TALL = 0.175, 0.645
"""Shares of the height: where the panels begin, and how tall they are."""

SMALL, USUAL, LARGE = 7.5, 8.5, 10.5

STAR = 210


def draw(rows: pd.DataFrame, choice: Choice, path: Path) -> None:
    """Write the figure of one leakage point's rows to `path` with .svg and .png behind it, the same bytes for the same rows."""
    with matplotlib.rc_context({"svg.hashsalt": "leakbench", "font.family": "DejaVu Sans", "axes.unicode_minus": False}):
        figure = figure_of(rows, choice)
        FigureCanvasAgg(figure)
        png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
        write_atomically(png, partial(figure.savefig, format="png", dpi=200, metadata={"Software": None}))
        write_atomically(svg, partial(figure.savefig, format="svg", metadata={"Date": None}))
    text = with_dark(svg.read_text(encoding="utf-8"))
    write_atomically(svg, lambda file: file.write_text(text, encoding="utf-8"))


def figure_of(rows: pd.DataFrame, choice: Choice) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=PAPER)
    left, right = (figure.add_axes((start, BOTTOM, wide, TALL)) for start, wide in (LEFT, RIGHT))
    looks = looks_of(list(dict.fromkeys(rows["defense"])))
    low, high = _span(rows)
    lane = _epsilons(left, rows)
    _identified(right, rows)
    for axes in (left, right):
        axes.set_ylim(low, high)
        _plain(axes)
    right.tick_params(labelleft=False)
    left.set_ylabel("accuracy of the trained model", fontsize=USUAL, color=INK)
    for defense, look in looks.items():
        own = rows[rows["defense"] == defense].sort_values("factor")
        _line(left, own, _x_left(own, lane, look.place, len(looks)), look, own["epsilon_valid"].notna())
        _line(right, own, own["identified"].to_numpy(float), look, own["identified"].notna(), "identified")
    if choice.best is not None:
        _star(left, right, choice.best, rows, lane, looks)
    _names(figure, right, rows, looks, choice)
    _words(figure, rows, choice)
    return figure


def _span(rows: pd.DataFrame) -> tuple[float, float]:
    """Return between which accuracies the panels lie."""
    low, high = rows["trained_accuracy_low"].min(), rows["trained_accuracy_high"].max()
    return max(0.0, low - 0.03), min(1.02, high + 0.03)


def _epsilons(axes: Axes, rows: pd.DataFrame) -> tuple[float, float]:
    """Draw the scale of epsilon, and right of it the lane of those without one; return between which x the lane lies."""
    found = rows["epsilon_valid"].dropna()
    low, high = (np.log10(found.min()), np.log10(found.max())) if len(found) else (0.0, 1.0)
    low, high = np.floor(low - 0.2), np.ceil(high + 0.2)
    wide = 0.5 * (high - low)
    axes.set_xlim(low, high + wide)
    axes.axvspan(high, high + wide, color=GRID, alpha=0.55, linewidth=0)
    axes.text(high + wide / 2, 1.01, "no\nguarantee", **_above(axes))
    step = 1 if high - low <= 4 else 2
    ticks = np.arange(low, high + 0.5, step)
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"$10^{{{x:.0f}}}$" if not -2 <= x <= 2 else f"{10.0**x:g}"))
    axes.set_xlabel("valid $\\epsilon$ of the released\nmodels: less promises more", fontsize=USUAL, color=INK)
    return float(high), float(high + wide)


def _above(axes: Axes) -> dict[str, object]:
    return {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": SMALL, "color": MUTED}


def _identified(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the scale of identification and the band in which chance lies."""
    high = rows["null_identified_high"].max()
    half = 0.5 / rows["victims"].max()
    axes.set_xlim(-0.09, 1.06)
    axes.axvspan(-0.09, high + half, color=GRID, linewidth=0)
    axes.axvline(1 / rows["candidates"].max(), color=MUTED, linewidth=0.8, linestyle=":")
    axes.text(0.0, 1.01, "chance", **{**_above(axes), "ha": "center"})  # type: ignore[arg-type]
    axes.xaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlabel("victims identified by who\nknows the defense", fontsize=USUAL, color=INK)


def _plain(axes: Axes) -> None:
    axes.set_facecolor("none")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=SMALL + 0.5, colors=INK, length=2.5)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(MUTED)


def _x_left(own: pd.DataFrame, lane: tuple[float, float], place: int, many: int) -> np.ndarray:
    """Return where a defense's points lie on the left: at the logarithm of epsilon, or in a track of its own in the lane."""
    track = lane[0] + (lane[1] - lane[0]) * (place + 0.8) / (many + 0.6)
    return np.where(own["epsilon_valid"].notna(), np.log10(own["epsilon_valid"].astype(float).fillna(1.0)), track)


def _line(
    axes: Axes, own: pd.DataFrame, x: np.ndarray, look: Look, solid: pd.Series, across: str = ""
) -> None:
    """Draw one defense: thin intervals, a line through its noise, and markers that are full where examples come back."""
    y = own["trained_accuracy"].to_numpy(float)
    ends = [own[f"trained_accuracy_{end}"].to_numpy(float) for end in ("low", "high")]
    style = {"color": look.colour, "linewidth": 0.8, "alpha": 0.45, "zorder": 1.5}
    axes.vlines(x, *ends, **style)
    if across:
        axes.hlines(y, *(own[f"{across}_{end}"].to_numpy(float) for end in ("low", "high")), **style)
    axes.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=1.2, zorder=2, alpha=0.9)
    full = (own["asr_low"] > own["null_asr"]).to_numpy(bool)
    for which, face in ((full, look.colour), (~full, PAPER)):
        axes.scatter(
            x[which], y[which], s=30, marker=look.marker, facecolor=face, edgecolor=look.colour, linewidth=1.1, zorder=3
        )


def _star(
    left: Axes, right: Axes, best: pd.Series, rows: pd.DataFrame, lane: tuple[float, float], looks: dict[str, Look]
) -> None:
    own = best.to_frame().T
    own["epsilon_valid"] = own["epsilon_valid"].astype(float)
    x = _x_left(own, lane, looks[str(best["defense"])].place, len(looks))
    for axes, at in ((left, float(x[0])), (right, float(best["identified"]))):
        axes.scatter(
            [at], [best["trained_accuracy"]], s=STAR, marker="*", facecolor="#F2B701", edgecolor=INK, linewidth=0.9, zorder=5
        )


def _names(figure: Figure, axes: Axes, rows: pd.DataFrame, looks: dict[str, Look], choice: Choice) -> None:
    """Write each defense's name right of the panels, with its marker, and a thin line to the rightmost of its points."""
    low, high = axes.get_ylim()
    ends = {
        defense: own.sort_values(["identified", "trained_accuracy"]).iloc[-1]
        for defense, own in rows.dropna(subset=["identified"]).groupby("defense", sort=False)
    }
    names = list(ends)
    apart = 0.042 * (high - low) * 6.0 / HEIGHT
    places = spread([float(ends[n]["trained_accuracy"]) for n in names], apart, low, high)
    edge = 1.06
    reach = (LABELS - RIGHT[0]) / RIGHT[1]
    for name, y in zip(names, places, strict=True):
        look, end = looks[name], ends[name]
        # In shares of the panel's width.
        at = -0.09 + reach * (1.06 + 0.09)
        axes.plot(
            [float(end["identified"]), edge, at - 0.02],
            [float(end["trained_accuracy"]), y, y],
            color=look.colour,
            linewidth=0.5,
            alpha=0.6,
            clip_on=False,
            zorder=1,
        )
        axes.scatter(
            [at + 0.05], [y], s=26, marker=look.marker, facecolor=look.colour, edgecolor=look.colour, clip_on=False, zorder=3
        )
        bold = choice.best is not None and choice.best["defense"] == name
        axes.text(
            at + 0.14, y, Path(name).stem, fontsize=SMALL, color=INK, va="center", weight="bold" if bold else "normal"
        )


def _words(figure: Figure, rows: pd.DataFrame, choice: Choice) -> None:
    asked, first = json.loads(rows["asked"].iloc[0]), rows.iloc[0]
    figure.text(0.02, 0.975, f"Which defense for {asked['dataset']}, and how much noise?", **_said(LARGE, weight="bold"))
    figure.text(0.02, 0.936, _answer(choice), **_said(USUAL))
    foot = (
        f"A line is one defense, from its most noise to its least. Read: one update of {_examples(asked)} at {first['point']}.\n"
        f"Full marker: examples come back (above a guess). Hollow: they do not. Thin lines: 95 % intervals;\n"
        f"{first['victims']:.0f} victims, each among {first['candidates']:,.0f} candidates. Grey band: what chance identifies."
    )
    figure.text(0.02, 0.012, foot, **{**_said(SMALL), "va": "bottom", "color": MUTED})  # type: ignore[arg-type]


def _examples(asked: dict[str, object]) -> str:
    return "one example" if asked["leak_batch"] == 1 else f"{asked['leak_batch']} examples"


def _said(size: float, weight: str = "normal") -> dict[str, object]:
    return {"fontsize": size, "color": INK, "va": "top", "ha": "left", "weight": weight}


def _answer(choice: Choice) -> str:
    """Return the answer in one line, or two."""
    if choice.best is None:
        return "No setting qualifies: every one trains nothing, or shows who the victim is."
    best = choice.best
    epsilon = "no valid epsilon" if pd.isna(best["epsilon_valid"]) else f"valid $\\epsilon$ {_short(best['epsilon_valid'])}"
    return (
        f"$\\bigstar$ {setting_of(best).replace('`', '')}: accuracy {text_of(best['trained_accuracy'])},\n"
        f"    identified {text_of(best['identified'])} (chance: to {text_of(best['null_identified_high'])}), {epsilon}"
    )


def _short(epsilon: float) -> str:
    return f"{epsilon:.3g}" if epsilon < 1000 else f"{epsilon:,.0f}"


