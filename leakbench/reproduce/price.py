"""The price of an accuracy: valid epsilons and measured leaks at the noises of a sweep that reach its aim, and their figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import in_table, markdown_table, untagged
from leakbench.core.verdict_words import IDENTIFIES, NO_LEAK, RECONSTRUCTS, VERDICTS
from leakbench.core.words import epsilon_text
from leakbench.measure.rates import ASR, IDENTIFIED
from leakbench.reproduce.columns import epsilon_cell, identified, interval, text_of
from leakbench.reproduce.file import results_folder
from leakbench.reproduce.published import store_of
from leakbench.reproduce.reached import NONE_DOES, Reached, reached
from leakbench.reproduce.table import Table, read_table
from leakbench.reproduce.table_figures import DPI, saved
from leakbench.study.rows import Row
from leakbench.summary.verdict import above_chance, whole_victims

__all__ = ["Priced", "draw_price", "leaks_of", "price_figure", "price_lines", "priced", "reached_of"]

POINTS = ("type-1", "type-2")
"""The leakage points at which the adaptive attacker reads, in the order of the figure's panels and the page's columns."""

MOST, MEAN, POSSIBLE, LEAST = "most noise", "mean at the aim", "not excluded", "least noise"
"""What a cell of a sweep is."""

SHOWN = (MOST, MEAN, POSSIBLE, LEAST)

HEADS = (
    *("cell", "what it is", "accuracy [95 % CI]", "epsilon valid: released models"),
    *(
        f"{column}{point}"
        for point in POINTS
        for column in ("epsilon valid: ", "verdict at ", "ASR [95 % CI] (baseline) at ", "identified [95 % CI] at ")
    ),
)


def reached_of(table: Table, rows: pd.DataFrame) -> list[Reached]:
    """Return which cells of each sweep of a table are the first to reach its aim, see `reached`."""
    return reached(rows, {line.name: line.samples["accuracy"] for line in table.lines if "accuracy" in line.samples})


def leaks_of(table: Table, out: Path | None) -> pd.DataFrame:
    """Return the rows of the attacks on a table's cells, one for each cell and leakage point; none where none was measured.

    Args:
        out: Folder of the rows; None for the published ones.
    """
    return store_of(read_table(table.leaks), out or results_folder()).read()


@dataclass(frozen=True)
class Priced:
    """A measured cell of a sweep.

    Args:
        sweep: Name of the sweep.
        cell: Name of the cell in both tables.
        roles: What the cell is in its sweep, some of `SHOWN`.
        row: Its row of the sweep.
        leaks: {leakage point: the row of the attack there}; empty where none was measured.
    """

    sweep: str
    cell: str
    roles: tuple[str, ...]
    row: Row
    leaks: Mapping[str, Row]

    @property
    def noise(self) -> str:
        """The last part of the cell's name, such as `sigma = 6`."""
        return self.cell.rpartition(", ")[2]

    def epsilon(self, point: str) -> float:
        """Return the valid epsilon against an observer of the released models (``), or of a leakage point; NaN without one."""
        found = self.leaks.get(point, {}).get("epsilon_tap") if point else self.row.get("epsilon_valid")
        return math.nan if found is None else float(found)


def priced(sweeps: Sequence[Reached], rows: pd.DataFrame, leaks: pd.DataFrame) -> list[Priced]:
    """Return every measured cell of the sweeps, in the order of the rows, with its roles and its leaks."""
    attacked: dict[str, dict[str, Row]] = {}
    for leak in leaks.to_dict("records"):
        attacked.setdefault(leak["cell"], {})[leak["point"]] = leak
    found = []
    for sweep in sweeps:
        cells = rows[rows["cell"].str.rpartition(", ")[0] == sweep.sweep].to_dict("records")
        of = {MEAN: sweep.mean.cell, POSSIBLE: sweep.possible.cell}
        for place, row in enumerate(cells):
            noise = row["cell"].rpartition(", ")[2]
            ends = {MOST: place == 0, LEAST: place == len(cells) - 1}
            roles = tuple(role for role in SHOWN if ends.get(role) or of.get(role) == noise)
            found.append(Priced(sweep.sweep, row["cell"], roles, row, attacked.get(row["cell"], {})))
    return found


def price_lines(table: Table, rows: pd.DataFrame, leaks: pd.DataFrame) -> list[str]:
    """Return the section of the page: the figure, what it shows, and the table of the cells that have a role."""
    sweeps = reached_of(table, rows)
    cells = priced(sweeps, rows, leaks)
    shown = [cell for cell in cells if cell.roles]
    if not shown:
        return []
    lacking = [cell.cell for cell in shown if not cell.leaks]
    missing = [f"Not attacked yet: {untagged('; '.join(lacking))}.", ""] if lacking else []
    return [
        *("## The price of the accuracy", "", f"![The price of the accuracy]({table.name}.png)", ""),
        *(*(f"- {untagged(said)}" for said in _summary(sweeps, shown)), "", LIMITS.format(leaks=table.leaks), ""),
        *(markdown_table(HEADS, map(_line, shown)), "", *missing, *_by_chance(table, shown)),
    ]


LIMITS = (
    "Limits: `autoleak` knows the defense and reads one example's gradient, or a client update of one example, from sigmoid "
    "networks at random weights ([all attacked noises, with bounds on any attack]({leaks}.md)). A verdict other than "
    "`reconstructs` and `identifies` is about this attack only: it does not show that the noise protects. Only a small "
    "valid epsilon limits every attack. A dash in place of an epsilon means that no guarantee follows against that "
    "observer, or that the cell was not attacked. Epsilons are upper bounds, and very large ones may be loose. Most noise "
    "and least noise are the first and the last measured cell of a sweep; the other words are those of the table above. Where "
    "the figure has no guarantee, the points of a sweep are in the order of the noise, the most at the left, at equal distances."
)


def _identified(leak: Row) -> bool:
    """Return whether significantly more victims are identified than by chance."""
    right = whole_victims(leak["victims"] * leak[IDENTIFIED.name])
    return above_chance(right, int(leak["victims"]), 1 / leak["candidates"])


def _by_chance(table: Table, shown: Sequence[Priced]) -> list[str]:
    """Return the sentence on reconstructions that neither the ASR nor the identification shows; empty without one."""
    found = [
        f"{cell.cell}, {point}"
        for cell in shown
        for point, leak in cell.leaks.items()
        if leak["verdict"] == RECONSTRUCTS and leak[ASR.name] <= leak[ASR.baseline] and not _identified(leak)
    ]
    if not found:
        return []
    return [
        f"`{RECONSTRUCTS}` at an ASR not above the baseline guess's and without a significant identification rests on another "
        f"measure and may be chance ([all attacked noises]({table.leaks}.md)): {untagged('; '.join(found))}.",
        "",
    ]


def _summary(sweeps: Sequence[Reached], shown: Sequence[Priced]) -> Iterator[str]:
    """Yield the sentences about what was measured and what it excludes."""
    aims = {sweep.sweep: sweep.aim for sweep in sweeps}
    means = [cell for cell in shown if MEAN in cell.roles]
    yield f"The mean accuracy reaches the printed one in {len(means)} of {len(sweeps)} measured sweeps" + (
        f": {'; '.join(_reaching(cell, aims[cell.sweep]) for cell in means)}." if means else "."
    )
    if none := [cell for cell in shown if LEAST in cell.roles and cell.sweep not in {mean.sweep for mean in means}]:
        yield f"In the others no measured noise does, down to the least: {'; '.join(map(_at, none))}."
    wide = [cell for cell in shown if POSSIBLE in cell.roles and cell.row["trained_accuracy"] < aims[cell.sweep]]
    if wide:
        yield (
            f"One more training may still reach it at {'; '.join(map(_at, wide))}. Each of these means is below the"
            " printed accuracy: this is not evidence that the noise reaches it."
        )
    if few := [sweep.sweep for sweep in sweeps if sweep.possible.cell == "-"]:
        yield f"Too few trainings to exclude anything: {'; '.join(few)}."
    at = {"the noises that reach the printed accuracy or are not excluded": {MEAN, POSSIBLE}, "the most noise": {MOST}}
    for said, roles in at.items():
        found = [leak["verdict"] for cell in shown if roles & {*cell.roles} for leak in cell.leaks.values()]
        if found:
            each = ", ".join(f"{word} {found.count(word)}" for word in VERDICTS if word in found)
            yield f"Verdicts of `autoleak` at {said}, of {len(found)} attacks (cells and leakage points): {each}."


def _reaching(cell: Priced, aim: float) -> str:
    """Return a cell whose mean is at the aim, with its trainings and, where its interval begins below, with this."""
    seeds, low = cell.row.get("seeds", math.nan), cell.row.get("trained_accuracy_low", math.nan)
    trainings = "1 training" if seeds == 1 else f"{seeds:.0f} trainings"
    return f"{_at(cell)}, {trainings}{', but the interval of the mean begins below the printed accuracy' if low < aim else ''}"


def _at(cell: Priced) -> str:
    epsilon = cell.epsilon("")
    return f"{cell.cell} ({'no valid epsilon' if math.isnan(epsilon) else f'valid epsilon {epsilon_text(epsilon)}'})"


def _line(cell: Priced) -> tuple[str, ...]:
    """Return a line of the table."""
    found = [
        cell.cell,
        ", ".join(cell.roles),
        interval("trained_accuracy", 3)(cell.row),
        epsilon_cell(cell.epsilon("")),
    ]
    for point in POINTS:
        leak = cell.leaks.get(point)
        found.append(epsilon_cell(cell.epsilon(point)))
        found += ["-"] * 3 if leak is None else [str(leak["verdict"]), _asr(leak), identified(leak)]
    return tuple(map(in_table, found))


def _asr(leak: Row) -> str:
    return f"{interval(ASR.name)(leak)} ({text_of(leak[ASR.baseline])})"


INK, QUIET, GRID = "#222222", "#767676", "#DDDDDD"

LOOKS = {
    RECONSTRUCTS: ("o", "#B34700", "#B34700"),
    IDENTIFIES: ("D", "#E69F00", "#E69F00"),
    NO_LEAK: ("s", "white", "#0072B2"),
}
"""{verdict: marker, face and edge}, distinct for colour-blind readers and in grey."""

UNDECIDED = ("o", "white", QUIET)
"""The marker of a verdict that decides nothing."""

UNATTACKED = ("|", QUIET, QUIET)
"""The marker of a noise at which nothing was attacked."""

LANE = 0.22
"""Width of the lane of cells without a guarantee, as a share of the panel's width for epsilons."""


def draw_price(table: Table, rows: pd.DataFrame, leaks: pd.DataFrame, path: Path) -> None:
    """Draw the figure of `price_figure`; nothing without a measured sweep."""
    if sweeps := reached_of(table, rows):
        saved(price_figure(sweeps, rows, leaks), path)


def price_figure(sweeps: Sequence[Reached], rows: pd.DataFrame, leaks: pd.DataFrame) -> Figure:
    """Return a panel of valid epsilons for each observer, a line for each sweep, and at each noise the attack's verdict."""
    cells = priced(sweeps, rows, leaks)
    figure = Figure(figsize=(11, 1.9 + 0.52 * len(sweeps)), layout="constrained", facecolor="white", dpi=DPI)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 1 + len(POINTS), sharey=True)
    for axes, point in zip(panels, ("", *POINTS), strict=True):
        found = np.log10([e for cell in cells if (e := cell.epsilon(point)) > 0] or [1.0])
        low, high = math.floor(found.min() - 0.3), math.ceil(found.max() + 0.3)
        wide = LANE * (high - low)
        axes.axvspan(high, high + wide, color=GRID, linewidth=0)
        axes.text(high + wide / 2, -0.72, "no\nguarantee", ha="center", va="top", fontsize=6.5, color=QUIET)
        for place, sweep in enumerate(sweeps):
            own = [cell for cell in cells if cell.sweep == sweep.sweep and (not point or point in cell.leaks)]
            lane = [high + wide * (n + 1) / (len(own) + 1) for n in range(len(own))]
            x = [math.log10(e) if (e := cell.epsilon(point)) > 0 else at for cell, at in zip(own, lane, strict=True)]
            _draw_sweep(axes, place, own, x, point)
        step = max(1, math.ceil((high - low) / 6))
        axes.set_xticks(range(low, high, step), [f"$10^{{{n}}}$" for n in range(low, high, step)], fontsize=8)
        axes.set_xlim(low, high + wide)
        observer = point_name(point) if point else "released models"
        axes.set_title(f"observer: {observer}", fontsize=9, color=INK)
        axes.set_xlabel("valid epsilon (smaller guarantees more)", fontsize=8)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(length=2)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    names = [f"{s.sweep}: printed {s.aim:.3f}\n{_said(s)}" for s in sweeps]
    panels[0].set_yticks(range(len(sweeps)), names, fontsize=7.5)
    panels[0].set_ylim(len(sweeps) - 0.5, -0.8)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4, fontsize=7.5, frameon=False)
    return figure


def _said(sweep: Reached) -> str:
    """Return what reaches the aim, for the name of a line."""
    if sweep.mean.cell != NONE_DOES:
        return f"mean reaches this at {sweep.mean.cell}"
    return "mean reaches this at no measured noise"


def _draw_sweep(axes: Axes, place: int, own: Sequence[Priced], x: Sequence[float], point: str) -> None:
    axes.plot(x, [place] * len(x), color=QUIET, linewidth=0.7, zorder=1)
    for cell, at in zip(own, x, strict=True):
        leak = cell.leaks.get(point)
        marker, face, edge = UNATTACKED if leak is None else LOOKS.get(str(leak["verdict"]), UNDECIDED)
        colours: dict[str, Any] = {"color": edge} if leak is None else {"facecolor": face, "edgecolor": edge}
        axes.scatter([at], [place], s=26, marker=marker, linewidth=1.0, zorder=3, **colours)
        if MEAN in cell.roles:
            axes.scatter([at], [place], s=190, **STAR)
        elif POSSIBLE in cell.roles:
            axes.scatter([at], [place], s=110, **RING)
        if not point and {MEAN, POSSIBLE} & {*cell.roles}:
            up, va = (7, "bottom") if MEAN in cell.roles else (-7, "top")
            said: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": va, "fontsize": 6.5}
            axes.annotate(cell.noise, (at, place), (0, up), color=INK, **said)


STAR: dict[str, Any] = {"marker": "*", "facecolor": "none", "edgecolor": INK, "linewidth": 1.0, "zorder": 4}
RING: dict[str, Any] = {
    "marker": "o",
    "facecolor": "none",
    "edgecolor": INK,
    "linewidth": 0.8,
    "zorder": 4,
}


def _legend() -> list[Line2D]:
    def entry(label: str, marker: str, face: str, edge: str, size: float = 5.5) -> Line2D:
        style: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": edge, "markersize": size}
        return Line2D([], [], linestyle="none", marker=marker, label=label, **style)

    return [
        entry("largest noise with a mean at the printed accuracy", "*", "none", INK, 12),
        entry("largest noise at which one more training may reach it", "o", "none", INK, 10),
        entry("a noise of the sweep", *UNATTACKED),
        *(entry(f"autoleak: {word}", *look) for word, look in LOOKS.items()),
        entry("autoleak: not decided, or failed", *UNDECIDED),
    ]
