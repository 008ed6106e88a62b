"""The figure of a frontier: accuracy against valid epsilon and identification, a line for each defense through its noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from leakbench.core import svg
from leakbench.core.leakage_points import point_name
from leakbench.frontier.answer import epsilon_or_reason, required, setting_of
from leakbench.frontier.choose import RELEASED, Choice
from leakbench.measure.rates import ASR, IDENTIFIED
from leakbench.reproduce.columns import text_of
from leakbench.storage.atomic import write_text
from leakbench.storage.store import write_atomically

__all__ = ["draw", "figure_of", "looks_of", "spread"]

PAPER, INK, MUTED, GRID = "#ffffff", "#1c2128", "#656d76", "#e3e6ea"

WIDTH, HEIGHT = 5.5, 6.0
"""Inches; 5.5 are 396 points, so that a letter of 8 points has 8 pixels where the figure is as wide as a phone."""

LEFT, RIGHT, LABELS = (0.105, 0.295), (0.445, 0.245), 0.735
"""Shares of the width: where each panel begins and how wide it is; where the labels begin."""

BOTTOM, TALL = 0.175, 0.645
"""Shares of the height: where the panels begin, and how tall they are."""

SMALL, USUAL, LARGE = 7.5, 8.5, 10.5

COLOURS = (*svg.COLOURS, "#c1272d")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d", "8", "H")

DARK = {PAPER: "#0d1117", INK: "#e6edf3", MUTED: "#9198a1", GRID: "#2a313c"} | dict(
    zip(COLOURS, ("#4aa8e0", "#ff8c42", "#2fc79a", "#e07fbd", "#d2ab2a", "#8f93ff", "#ff6b70"), strict=True)
)
"""{a colour on a light page: what it becomes on a dark one}."""


@dataclass(frozen=True)
class Look:
    """Colour, marker and dashes of a line.

    Args:
        place: Which one it is, from 0 on.
    """

    colour: str
    marker: str
    dashes: str
    place: int


def looks_of(defenses: Sequence[str]) -> dict[str, Look]:
    """Return colour, marker and dashes of each defense; up to 98 defenses differ by colour and marker alone."""
    sizes = len(COLOURS), len(MARKERS), len(svg.DASHES)
    return {
        name: Look(
            COLOURS[i % sizes[0]], MARKERS[(i + i // sizes[1]) % sizes[1]], svg.DASHES[i // sizes[0] % sizes[2]], i
        )
        for i, name in enumerate(defenses)
    }


def with_dark(svg: str) -> str:
    """Return an SVG of matplotlib's that follows the reader's dark pages; one that knows no such rules shows it as it was."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    head, tag, rest = svg.partition("<defs>")
    return f"{head}{style}\n {tag}{rest}" if tag else svg


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Return a height for each label, near the wanted one, at least `apart` from its neighbours, between `low` and `high`.

    The labels keep their order. Where they do not all fit, they share the room evenly.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    apart = min(apart, (high - low) / max(1, len(wanted) - 1)) if len(wanted) > 1 else apart
    placed: list[float] = []
    for i in order:
        least = placed[-1] + apart if placed else low
        placed.append(max(wanted[i], least))
    # What was pushed over the upper end goes back, and pushes those below it.
    most = high
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], most)
        most = placed[place] - apart
    found = [0.0] * len(wanted)
    for place, i in enumerate(order):
        found[i] = placed[place]
    return found


APART = 0.05
"""Distance between two labels, as a share of the panels' height."""

LOWEST = 0.2
"""Lowest place of a label, in the same unit; the key is below it."""

KEY = {"reconstructs": True, "does not": False}


def _names(axes: Axes, rows: pd.DataFrame, looks: dict[str, Look], choice: Choice) -> None:
    """Write each defense's name to the right of the panels, with its marker, and a thin line to its rightmost point."""
    ends = {
        str(defense): own.sort_values([IDENTIFIED.name, "trained_accuracy"]).iloc[-1]
        for defense, own in rows.dropna(subset=[IDENTIFIED.name]).groupby("defense", sort=False)
    }
    names = list(ends)
    # Heights are shares of the panel's height: labels keep their distance on every scale.
    to_share = axes.transData + axes.transAxes.inverted()
    wanted = [to_share.transform((0.0, float(ends[n]["trained_accuracy"])))[1] for n in names]
    places = to_share.inverted().transform([(0.0, y) for y in spread(wanted, APART, LOWEST, 1.0)])[:, 1]
    left, edge = axes.get_xlim()
    at = left + (LABELS - RIGHT[0]) / RIGHT[1] * (edge - left)
    for name, y in zip(names, places, strict=True):
        look, end = looks[name], ends[name]
        axes.plot(
            [float(end[IDENTIFIED.name]), edge, at - 0.02],
            [float(end["trained_accuracy"]), y, y],
            color=look.colour,
            linewidth=0.5,
            alpha=0.6,
            clip_on=False,
            zorder=1,
        )
        axes.scatter(
            [at + 0.05],
            [y],
            s=26,
            marker=look.marker,
            facecolor=look.colour,
            edgecolor=look.colour,
            clip_on=False,
            zorder=3,
        )
        bold = choice.best is not None and choice.best["defense"] == name
        axes.text(
            at + 0.14, y, Path(name).stem, fontsize=SMALL, color=INK, va="center", weight="bold" if bold else "normal"
        )

    for place, (said, full) in enumerate(KEY.items()):
        y = to_share.inverted().transform((0.0, 0.07 - 0.05 * place))[1]
        face = MUTED if full else PAPER
        axes.scatter([at + 0.05], [y], s=26, marker="o", facecolor=face, edgecolor=MUTED, clip_on=False, zorder=3)
        axes.text(at + 0.14, y, said, fontsize=SMALL, color=MUTED, va="center")


def _words(figure: Figure, rows: pd.DataFrame, choice: Choice) -> None:
    """Write the question, the answer and how to read the figure."""
    asked, first = json.loads(rows["asked"].iloc[0]), rows.iloc[0]
    figure.text(
        0.02,
        0.975,
        f"Which defense for {asked['dataset']}, and how much noise?",
        fontsize=LARGE,
        color=INK,
        va="top",
        weight="bold",
    )
    figure.text(0.02, 0.936, _answer(choice), fontsize=USUAL, color=INK, va="top", linespacing=1.35)
    foot = (
        "A line is one defense, from its most noise to its least; thin lines are 95 % intervals.\n"
        f"Attacked: the {point_name(first['point'])} of {_examples(asked)}, by an adaptive attacker.\n"
        f"Identified: {first['identify_victims']:,.0f} victims, each among {first['candidates']:,.0f} candidates. "
        "Up and left is better."
    )
    figure.text(0.02, 0.075, foot, fontsize=SMALL, color=MUTED, va="top", linespacing=1.35)


def _examples(asked: dict[str, Any]) -> str:
    return "one example" if asked["leak_batch"] == 1 else f"{asked['leak_batch']} examples"


def _answer(choice: Choice) -> str:
    """Return the answer in one or two lines."""
    if choice.best is None:
        if choice.wanted.max_epsilon is None:
            return "No usable setting qualifies:\neach one leaks or learns too little."
        return f"No usable setting qualifies with a\n{required(choice.wanted)}."
    best, column = choice.best, choice.wanted.column
    epsilon = "no valid epsilon" if pd.isna(best[column]) else f"valid $\\epsilon$ {epsilon_or_reason(best[column])}"
    return (
        f"$\\bigstar$ {setting_of(best).replace('`', '')}: accuracy {text_of(best['trained_accuracy'])},\n"
        f"    identified {text_of(best[IDENTIFIED.name], 3)} (chance: up to {text_of(best['null_identified_high'], 3)}), {epsilon}"
    )


STAR = 330

TICKS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)


def draw(rows: pd.DataFrame, choice: Choice, path: Path) -> None:
    """Write the figure of one leakage point's rows as `path`.svg and `path`.png; the same rows give the same bytes."""
    with matplotlib.rc_context(
        {"svg.hashsalt": "leakbench", "font.family": "DejaVu Sans", "axes.unicode_minus": False}
    ):
        figure = figure_of(rows, choice)
        FigureCanvasAgg(figure)
        png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
        write_atomically(png, partial(figure.savefig, format="png", dpi=200, metadata={"Software": None}))
        write_atomically(svg, partial(figure.savefig, format="svg", metadata={"Date": None}))
    text = with_dark(svg.read_text(encoding="utf-8"))
    write_text(svg, text)


def figure_of(rows: pd.DataFrame, choice: Choice) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=PAPER)
    left, right = (figure.add_axes((start, BOTTOM, wide, TALL)) for start, wide in (LEFT, RIGHT))
    looks = looks_of(list(dict.fromkeys(rows["defense"])))
    column = choice.wanted.column
    lane = _epsilons(left, rows, choice)
    _identified(right, rows)
    for axes, title in ((left, "guarantee"), (right, "measured leak")):
        _accuracies(axes, rows)
        _plain(axes)
        if choice.usable is not None:
            axes.axhline(choice.usable, color=MUTED, linewidth=0.8, linestyle=":")
        axes.set_title(title, fontsize=USUAL, color=INK, weight="bold", pad=5)
    right.tick_params(labelleft=False)
    if choice.usable is not None:
        above = left.get_yaxis_transform()
        left.text(0.02, choice.usable, "usable above", transform=above, va="bottom", fontsize=SMALL, color=MUTED)
    left.set_ylabel("accuracy of the trained model", fontsize=USUAL, color=INK)
    for defense, look in looks.items():
        own = rows[rows["defense"] == defense].sort_values("factor")
        _line(left, own, _x_left(own, lane, look.place, len(looks), column), look)
        _line(right, own, own[IDENTIFIED.name].to_numpy(float), look, IDENTIFIED.heading)
    if choice.best is not None:
        _star(left, right, choice.best, lane, looks, column)
    _names(right, rows, looks, choice)
    _words(figure, rows, choice)
    return figure


def _accuracies(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the scale of accuracy, wider towards 1, where the settings are close together."""
    axes.set_yscale("function", functions=(lambda y: -np.log10(1.03 - np.minimum(y, 1.0)), lambda z: 1.03 - 10.0**-z))
    low, high = rows["trained_accuracy"].min() - 0.06, rows["trained_accuracy"].max()
    axes.set_ylim(max(0.0, low), min(1.0, high + 0.35 * (1.03 - high)))
    shown = [tick for tick in TICKS if axes.get_ylim()[0] <= tick <= axes.get_ylim()[1]]
    axes.yaxis.set_major_locator(FixedLocator(shown))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


def _epsilons(axes: Axes, rows: pd.DataFrame, choice: Choice) -> tuple[float, float]:
    """Draw the scale of epsilon and, to its right, the lane of settings without one; return the left and right end of the lane."""
    found = rows[choice.wanted.column].astype(float).dropna()
    low, high = (np.log10(found.min()), np.log10(found.max())) if len(found) else (0.0, 1.0)
    low, high = np.floor(low - 0.2), np.ceil(high + 0.2)
    wide = 0.5 * (high - low)
    axes.set_xlim(low, high + wide)
    axes.axvspan(high, high + wide, color=GRID, alpha=0.55, linewidth=0)
    axes.text(high + wide / 2, 0.01, "no\nguarantee", **_inside(axes))
    step = 1 if high - low <= 4 else 2
    ticks = np.arange(low, high + 0.5, step)
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"$10^{{{x:.0f}}}$" if not -2 <= x <= 2 else f"{10.0**x:g}")
    )
    against = "released models" if choice.wanted.observer == RELEASED else point_name(choice.wanted.observer)
    axes.set_xlabel(f"valid $\\epsilon$, {against}\n(smaller guarantees more)", fontsize=USUAL, color=INK)
    if choice.wanted.max_epsilon is not None and low <= np.log10(choice.wanted.max_epsilon) <= high:
        axes.axvline(np.log10(choice.wanted.max_epsilon), color=MUTED, linewidth=0.8, linestyle=":")
    return float(high), float(high + wide)


def _inside(axes: Axes) -> dict[str, Any]:
    return {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": SMALL, "color": MUTED}


def _identified(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the scale of identification and the band of chance."""
    high = rows["null_identified_high"].max()
    half = 0.5 / rows["identify_victims"].max()
    axes.set_xlim(-0.09, 1.06)
    axes.axvspan(-0.09, high + half, color=GRID, linewidth=0)
    axes.axvline(1 / rows["candidates"].max(), color=MUTED, linewidth=0.8, linestyle=":")
    said = "$\\blacktriangleleft$ chance"
    axes.text(high + half + 0.03, 0.01, said, **{**_inside(axes), "ha": "left"})
    axes.xaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlabel("victims identified by the\nadaptive attacker", fontsize=USUAL, color=INK)


def _plain(axes: Axes) -> None:
    axes.set_facecolor("none")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=SMALL + 0.5, colors=INK, length=2.5)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(MUTED)


def _x_left(own: pd.DataFrame, lane: tuple[float, float], place: int, many: int, column: str) -> np.ndarray:
    """Return x of a defense's points in the left panel: the logarithm of epsilon, or the defense's own track in the lane."""
    track = lane[0] + (lane[1] - lane[0]) * (place + 1) / (many + 1)
    return np.where(own[column].notna(), np.log10(own[column].astype(float).fillna(1.0)), track)


def _line(axes: Axes, own: pd.DataFrame, x: np.ndarray, look: Look, across: str = "") -> None:
    """Draw one defense: thin intervals, a line through its noise, and markers, filled where examples are reconstructed."""
    y = own["trained_accuracy"].to_numpy(float)
    style: dict[str, Any] = {"color": look.colour, "linewidth": 0.8, "alpha": 0.45, "zorder": 1.5}
    low, high = (own[f"trained_accuracy_{end}"].to_numpy(float) for end in ("low", "high"))
    axes.vlines(x, low, high, **style)
    if across:
        low, high = (own[f"{across}_{end}"].to_numpy(float) for end in ("low", "high"))
        axes.hlines(y, low, high, **style)
    axes.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=1.2, zorder=2, alpha=0.9)
    full = (own[ASR.low] > own[ASR.baseline]).to_numpy(bool)
    for which, face in ((full, look.colour), (~full, PAPER)):
        axes.scatter(
            x[which],
            y[which],
            s=30,
            marker=look.marker,
            label="settings",
            facecolor=face,
            edgecolor=look.colour,
            linewidth=1.1,
            zorder=3,
        )


def _star(
    left: Axes, right: Axes, best: pd.Series, lane: tuple[float, float], looks: dict[str, Look], column: str
) -> None:
    own = best.to_frame().T
    own[column] = own[column].astype(float)
    x = _x_left(own, lane, looks[str(best["defense"])].place, len(looks), column)
    for axes, at in ((left, float(x[0])), (right, float(best[IDENTIFIED.name]))):
        axes.scatter(
            [at],
            [best["trained_accuracy"]],
            label="chosen",
            s=STAR,
            marker="*",
            facecolor="#F2B701",
            edgecolor=INK,
            linewidth=0.9,
            zorder=2.5,
        )
