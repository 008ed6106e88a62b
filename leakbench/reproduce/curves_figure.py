"""The figure of a table of curves: accuracy over rounds, a panel for each figure of the paper."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from leakbench.report.svg import DASHES
from leakbench.reproduce.curves import Rounds, rounds_of
from leakbench.store import write_atomically

__all__ = ["draw_curves"]

DPI = 150

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which stay apart for the colour-blind; lines differ in their dashes too."""


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
    write_atomically(path, partial(_save, figure))


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})
