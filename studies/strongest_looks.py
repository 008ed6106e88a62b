"""The figure of strongest_looks.csv: identification and labels against the number of observations, with their bounds.

    python studies/strongest_looks.py

Writes strongest_looks.png to results/attacks; `leakbench reproduce strongest_looks` measures the rows.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from shared.options import parser

from leakbench.core.scripts import one_line
from leakbench.reproduce.table_figures import COLOURS
from leakbench.study.rows import RowStore, of_table

RESULTS = Path(__file__).parents[1] / "results" / "attacks"

DPI = 110

CHANCE = {"identified": 1 / 1000, "label_ranked": 1 / 10}

PANELS = (
    ("mnist", "identified", "MNIST: found among 1,000"),
    ("lfw", "identified", "LFW: found among 1,000"),
    ("mnist", "label_ranked", "MNIST: label told"),
)
"""LFW's classes are people, of whom the public pictures show none, so that its labels are not ranked."""


def drawn(rows: pd.DataFrame) -> Figure:
    """Return the figure: a panel each for who and which class, solid what was measured, dashed what the noise allows."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    sigma = rows["defense"].str.extract(r"sigma_(\d+(?:_\d+)?)")[0].str.replace("_", ".").astype(float)
    for axes, (dataset, measure, title) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        for value, colour in zip(sorted(sigma.unique()), COLOURS, strict=False):
            _curve(axes, rows[(rows["dataset"] == dataset) & (sigma == value)], measure, f"sigma {value:g}", colour)
        axes.axhline(CHANCE[measure], color="grey", lw=0.8, ls=":", label="chance")
        axes.set(title=title, xscale="log", xlabel="looks at one gradient", ylim=(-0.02, 1.04))
    figure.axes[0].set_ylabel("share of victims")
    figure.axes[-1].plot([], [], color="black", ls="--", label="bound")
    figure.legend(*figure.axes[-1].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def _curve(axes: Axes, rows: pd.DataFrame, measure: str, label: str, colour: str) -> None:
    rows = rows.sort_values("observations")
    axes.plot(rows["observations"], rows[measure], color=colour, marker="o", ms=4, label=label)
    axes.plot(rows["observations"], rows[f"{measure}_bound"], color=colour, ls="--")


def main() -> None:
    """Draw the figure of the rows that are there."""
    parser(__doc__).parse_args()
    store = RowStore(RESULTS / "strongest_looks.csv", of_table("strongest"))
    drawn(store.existing.read()).savefig(RESULTS / "strongest_looks.png", dpi=DPI, metadata={"Software": None})


if __name__ == "__main__":
    one_line(main)
