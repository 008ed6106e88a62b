"""The figure of correlated_noise.csv: accuracy at equal valid epsilons, and how many victims a client's update shows.

    python studies/correlated_noise.py

Writes correlated_noise.png to results/defenses; `leakbench reproduce correlated_noise` and `leakbench reproduce
correlated_noise_leak` measure the rows.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from shared.options import parser

from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import one_line
from leakbench.reproduce.table_figures import COLOURS
from leakbench.study.rows import RowStore, of_table

RESULTS = Path(__file__).parents[1] / "results" / "defenses"

DPI = 110

UNDEFENDED = "none"


def drawn(accuracies: pd.DataFrame, leaks: pd.DataFrame) -> Figure:
    """Return the figure: accuracy, and the share of identified victims at type-1, each against the valid epsilon.

    Args:
        accuracies: Rows of correlated_noise.csv.
        leaks: Rows of correlated_noise_leak.csv.
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    some, seen = (_by_defense(rows) for rows in (accuracies, leaks[leaks["point"] == "type-1"]))
    names = [name for name in dict.fromkeys(some["name"]) if name != UNDEFENDED]
    # Points at one epsilon lie side by side, so that intervals do not hide each other.
    for number, name in enumerate(names):
        own, aside = some[some["name"] == name].sort_values("epsilon"), 1.03 ** (number - len(names) / 2)
        ends = [
            own["trained_accuracy"] - own["trained_accuracy_low"],
            own["trained_accuracy_high"] - own["trained_accuracy"],
        ]
        style = {"color": COLOURS[number % len(COLOURS)], "marker": "os^vDP"[number % 6], "ms": 4, "label": name}
        left.errorbar(own["epsilon"] * aside, own["trained_accuracy"], ends, **style)
        leak = seen[seen["name"] == name].sort_values("epsilon")
        ends = [leak["identified"] - leak["identified_low"], leak["identified_high"] - leak["identified"]]
        right.errorbar(leak["epsilon"] * aside, leak["identified"], ends, **style)
    bare = some.loc[some["name"] == UNDEFENDED, "trained_accuracy"]
    if len(bare):
        left.axhline(float(bare.iloc[0]), color="black", ls="--", label="no defense")
    ticks = sorted(some["epsilon"].dropna().unique())
    for axes, what in ((left, "accuracy"), (right, f"identified at the {point_name('type-1')}")):
        axes.set(xscale="log", xlabel="valid epsilon, released models", ylabel=what, ylim=(-0.02, 1.04))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def _by_defense(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the defense and the epsilon of their names, NaN without a defense."""
    parts = rows["cell"].str.extract(r"^(?P<name>.*?)(?:, epsilon (?P<epsilon>\d+))?$")
    return rows.assign(name=parts["name"], epsilon=parts["epsilon"].astype(float))


def read(name: str) -> pd.DataFrame:
    """Return the published rows of a table of this figure."""
    columns = "leaks" if name.endswith("leak") else "accuracy"
    return RowStore(RESULTS / f"{name}.csv", of_table(columns)).existing.read()


def main() -> None:
    """Draw the figure of the rows that are there."""
    parser(__doc__).parse_args()
    figure = drawn(read("correlated_noise"), read("correlated_noise_leak"))
    figure.savefig(RESULTS / "correlated_noise.png", dpi=DPI, metadata={"Software": None})


if __name__ == "__main__":
    one_line(main)
