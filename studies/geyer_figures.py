"""Figures 1 and 2 of Geyer et al.: accuracy, between-client variance and update scale over the rounds of geyer_table_1's cells.

    python studies/geyer_figures.py [--runs FOLDER] [--data-dir FOLDER] [--page]

Reads the rounds of the cells that `leakbench reproduce geyer_table_1 --runs FOLDER` measured, at the scale of each row of
geyer_table_1.csv, and writes geyer_figures.csv, geyer_figures.md and geyer_figures.png into its own folder; with `--page`, it
reads the CSV instead.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from shared.options import checked, parser
from shared.rows import store_of

from leakbench.box import box_of
from leakbench.core.progress import Reporter
from leakbench.core.scripts import markdown_table, one_line
from leakbench.reproduce.measure import cells_of
from leakbench.reproduce.table import Table, read_table
from leakbench.reproduce.table_figures import COLOURS
from leakbench.study.study import executed

RESULTS = Path(__file__).parents[1] / "results" / "papers"

TABLE = "geyer_table_1"

CURVES = ("non-dp 100 clients", "dp 100 clients", "dp 1000 clients", "dp 10000 clients")
COLOUR_OF = dict(zip(CURVES, COLOURS, strict=False))

BENCHMARK = "non-dp 100 clients"
"""The row in figure 2."""

PANELS = (
    ("accuracy", "accuracy"),
    ("between_client_variance", "between-client variance $V_c$"),
    ("update_scale", "update scale $U_s$"),
)

TEXT = (
    "`python studies/geyer_figures.py` draws the rounds of [geyer_table_1.md](geyer_table_1.md), which describes the training."
    " Curves are means over seeds, with a band from the smallest to the largest value. V_c: the mean over coordinates of the"
    " variance between the updates of a round's clients. U_s: the mean square of their mean (section 4 of the paper)."
)

HEADS = ("row", "seeds", "rounds", "accuracy", "V_c, first round", "V_c, last", "U_s, first round", "U_s, last")


def rounds_of(table: Table, rows: pd.DataFrame, runs: Path, data_dir: Path | None) -> pd.DataFrame:
    """Return what each round of each measured cell recorded, with its row of the table, its seed and its scale."""
    scales = rows.set_index("cell")["scale"].to_dict()
    found = []
    for line in table.lines:
        for cell in cells_of(line, scales[line.name], {}, data_dir) if line.name in scales else ():
            with executed(cell, runs, f"leakbench reproduce {TABLE}", Reporter(quiet=True)) as (_, run):
                said = {"row": line.name, "scale": scales[line.name], "seed": cell.settings.seed}
                found.append(run.read_rows("rounds.parquet").assign(**said))
    return pd.concat(found, ignore_index=True)


def drawn(rounds: pd.DataFrame) -> Figure:
    """Return the figure: accuracy of all rows, a dot where a private training ends, then the benchmark's three panels."""
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    first, *others = figure.subplots(2, 2).flat
    for row, colour in COLOUR_OF.items():
        if row in set(rounds["row"]):
            _curve(first, rounds[rounds["row"] == row], "accuracy", colour, row)
    first.set(title="Figure 1: accuracy until the budget ends", ylabel="accuracy", xlabel="round", ylim=(0, 1))
    first.legend(fontsize=8)
    benchmark = rounds[rounds["row"] == BENCHMARK]
    for axes, (measure, label) in zip(others, PANELS, strict=True):
        _curve(axes, benchmark, measure, COLOUR_OF[BENCHMARK])
        axes.set(title=f"Figure 2: {BENCHMARK}", ylabel=label, xlabel="round")
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _curve(axes: Axes, rounds: pd.DataFrame, measure: str, colour: str, label: str = "") -> None:
    by_round = rounds.groupby("round")[measure]
    mean, at = by_round.mean(), by_round.mean().index + 1
    axes.plot(at, mean, color=colour, label=label)
    axes.fill_between(at, by_round.min(), by_round.max(), color=colour, alpha=0.15, linewidth=0)
    if label.startswith("dp"):
        axes.plot(at[-1:], mean[-1:], color=colour, marker="o")


def page_of(table: Table, rounds: pd.DataFrame) -> str:
    """Return the page."""
    lines = []
    for row, of in rounds.groupby("row", sort=False):
        mean = of.groupby("round")[[name for name, _ in PANELS]].mean()
        first, last = mean.iloc[0], mean.iloc[-1]
        pairs = [f"{end[name]:.2e}" for name, _ in PANELS[1:] for end in (first, last)]
        lines.append((row, of["seed"].nunique(), len(mean), f"{last['accuracy']:.3f}", *pairs))
    lacking = [line.name for line in table.lines if line.name not in set(rounds["row"])]
    less = sorted(set(rounds.loc[rounds["scale"] == "quick", "row"]))
    return "\n".join(
        [
            "# Figures 1 and 2 of Geyer et al.: accuracy, between-client variance and update scale over rounds",
            "",
            *_box(table, rounds, lacking, less),
            TEXT,
            "",
            "![](geyer_figures.png)",
            "",
            markdown_table(HEADS, lines),
            "",
            *([f"Fewer rounds than the paper's (scale quick): {'; '.join(less)}."] if less else []),
            *([f"Not measured yet: {'; '.join(lacking)}."] if lacking else []),
            "",
        ]
    )


def _box(table: Table, rounds: pd.DataFrame, lacking: list[str], less: list[str]) -> list[str]:
    measures = dict(zip(("V_c", "U_s"), (name for name, _ in PANELS[1:]), strict=True))
    each, falling = [], dict.fromkeys(measures, 0)
    for row, own in rounds.groupby("row", sort=False):
        mean = own.groupby("round")[[*measures.values()]].mean()
        ends = {short: (mean[name].iloc[0], mean[name].iloc[-1]) for short, name in measures.items()}
        for short, (first, last) in ends.items():
            falling[short] += bool(last < first)
        each.append(f"{row!s}: {', '.join(f'{short} from {a:.2e} to {b:.2e}' for short, (a, b) in ends.items())}")
    falls = "; ".join(f"{short} falls in {number} of {len(each)} measured rows" for short, number in falling.items())
    seeds = {row: own["seed"].nunique() for row, own in rounds.groupby("row", sort=False)}
    return box_of(
        "Between-client variance rises and update scale falls during training (the paper's Figure 2).",
        f"{falls}; no test, because the paper shows curves without numbers. First to last round: {'; '.join(each)}.",
        f"{len(seeds)} of {len(table.lines)} rows; seeds: {', '.join(f'{row!s} {many}' for row, many in seeds.items())}.",
        " ".join(
            [
                *([f"Fewer rounds than the paper's: {'; '.join(less)}."] if less else []),
                *([f"Not measured: {'; '.join(lacking)}."] if lacking else []),
            ]
        ),
        "python studies/geyer_figures.py",
    )


def main() -> None:
    """Read the rounds, or with `--page` the CSV, and write page and figure."""
    asked = checked(parser(__doc__, "--runs", "--data-dir", "--page").parse_args())
    table, store = read_table(TABLE), store_of(RESULTS / "geyer_figures.csv")
    if not asked.page:
        rows = store_of(RESULTS / f"{TABLE}.csv").existing.read()
        store.write(rounds_of(table, rows, asked.runs, asked.data_dir))
    rounds = store.existing.read()
    (RESULTS / "geyer_figures.md").write_text(page_of(table, rounds), encoding="utf-8")
    drawn(rounds).savefig(RESULTS / "geyer_figures.png", dpi=90, metadata={"Software": None})


if __name__ == "__main__":
    one_line(main)
