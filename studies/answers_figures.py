"""Draw the figures of docs/answers.md from the published rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from leakbench.storage.store import write_atomically

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#656d76"

SERVER_KNOWS = "type-0"
"""Prefix of the columns of flower_wrappers.csv at the arrival at the server."""


def at_updates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, for each defense, ASR and verdict of both servers at the client update."""
    parts = rows["cell"].str.rpartition(", ")
    own = rows.assign(name=parts[0], server=parts[2])
    own = own[own["point"] == "type-1"]
    table = own.pivot(index="name", columns="server", values=["asr", "verdict"])
    found = pd.DataFrame({server: table["asr"][server].astype(float) for server in ("honest", "lying")})
    found = found.assign(**{f"{server} verdict": table["verdict"][server] for server in ("honest", "lying")})
    return found.loc[list(dict.fromkeys(own["name"]))]


def bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], colour: str, place: float, height: float, label: str
) -> None:
    """Draw one group of horizontal bars."""
    heights = [i + place for i in range(len(names))]
    axes.barh(heights, values, height=height, color=colour, label=label)
    for y, value in zip(heights, values, strict=True):
        axes.text(value + 0.015, y, f"{value:.2f}", va="center", fontsize=7, color=GREY)


def flower_figure(rows: pd.DataFrame) -> Figure:
    """Return the figure of Flower's wrappers."""
    figure = Figure(figsize=(6.4, 2.9), layout="constrained")
    axes = figure.subplots()
    bars(axes, list(rows["wrapper"]), list(rows[f"{SERVER_KNOWS} asr"]), ORANGE, 0.0, 0.6, "server")
    finish(axes, list(rows["wrapper"]), "share of the clients' images that the server reconstructs")
    return figure


def malicious_figure(rows: pd.DataFrame) -> Figure:
    """Return the figure of both servers at the client update."""
    both = at_updates(rows)
    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.subplots()
    bars(axes, list(both.index), list(both["honest"]), BLUE, -0.2, 0.38, "honest-but-curious server")
    bars(axes, list(both.index), list(both["lying"]), ORANGE, 0.2, 0.38, "malicious server")
    finish(axes, list(both.index), "share of images reconstructed from a client update (type-1)")
    axes.legend(fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return figure


def secure_figure(rows: pd.DataFrame) -> Figure:
    """Return the figure of recovered shares by the number of clients in a sum."""
    figure = Figure(figsize=(6.4, 2.9), layout="constrained")
    axes = figure.subplots()
    looks = {"loki": (ORANGE, "o", "own model for each client (LOKI)"), "shared": (BLUE, "s", "one shared model")}
    for name, (colour, marker, label) in looks.items():
        own = rows[rows["cell"].str.startswith(f"{name}, ")]
        clients = own["cell"].str.rpartition("K = ")[2].astype(int)
        axes.plot(clients, own["asr"], color=colour, marker=marker, label=label)
        axes.plot(clients, own["alone_expected"], color=colour, linestyle=":", linewidth=0.9)
    axes.set_xscale("log")
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("clients in the sum (dotted: expected by the law of collisions)", fontsize=8)
    axes.set_ylabel("recovered images", fontsize=8)
    axes.legend(fontsize=7, frameon=False, loc="lower left")
    plain(axes)
    return figure


def finish(axes: Axes, names: Sequence[str], label: str) -> None:
    """Name the bars and the axis."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1)
    axes.set_xticks([0, 0.5, 1])
    axes.set_xlabel(label, fontsize=8)
    plain(axes)


def plain(axes: Axes) -> None:
    """Remove what is not data."""
    axes.tick_params(labelsize=7.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, the same bytes for the same rows."""
    with matplotlib.rc_context(
        {"svg.hashsalt": "leakbench", "font.family": "DejaVu Sans", "axes.unicode_minus": False}
    ):
        FigureCanvasAgg(figure)
        write_atomically(path, partial(figure.savefig, format="svg", metadata={"Date": None}))
