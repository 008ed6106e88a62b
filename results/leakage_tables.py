"""Tables of what leaks: the cells of leakage_tables.yaml, each beside what its paper prints, and of the other pages.

    python results/leakage_tables.py PAGE [--data-dir FOLDER] [--runs FOLDER] [--only TEXT] [--page]
                                     [--set NAME=VALUE ... --out FOLDER]

Runs the cells of one page, each in a folder of its own where it goes on if it was cut short, and writes PAGE.csv and PAGE.md
beside itself; with `--page` only the page, from the CSV that is there. `--set victims=20` changes a number of every cell; such a
trial goes into a folder of its own (`--out`), so that the rows that stand here are those of the YAML.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from leakage_page import page_of, text_of
from shared.any_row import in_any_row
from shared.grid import spelled_out
from shared.options import checked, chosen, parser
from shared.rows import Row, executed, held, limit_of, measured, minutes_of, there
from torch import Tensor

from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.errors import InputError, nearest
from leakbench.scripts import one_line

HERE = Path(__file__).parent

MEASURES = (
    "asr",
    "asr_low",
    "asr_high",
    "null_asr",
    "rmse",
    "null_rmse",
    "psnr",
    "ssim",
    "label_accuracy",
    "identified",
    "iterations",
    "asr_bound",
    "rmse_floor",
    "identified_low",
    "identified_high",
    "identified_bound",
    "label_ranked",
    "label_ranked_bound",
    "observations",
    "candidates",
)
"""Copied from the summary of a leakage point."""

RECIPES = ("defense", "attack")

FILES = ("leakage_tables.yaml", "strongest_attacker.yaml", "aware.yaml", "autoleak.yaml", "servers.yaml")

OF_SERVERS = (
    *("precision", "verbatim", "verbatim_low", "verbatim_high", "alone_expected"),
    *("asr_ideal", "rmse_ideal", "verdict"),
)
"""Copied on pages about servers, beside `within_tenth` and `in_any_row`."""

TENTH = 0.1
"""An RMSE by which a picture is still known."""

OTHERS = 500
"""Among how many examples an answer picks its own, on pages about servers."""


def cells(page: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (name, fields of a `Request`, what the paper prints) for every row of a page."""
    for row in page["rows"]:
        given = {**page["given"], **row["given"]}
        own = {slot: str(HERE / given[slot]) for slot in RECIPES if str(given.get(slot, "")).endswith(".yaml")}
        yield row["name"], given | own, row.get("claim", {})


def measure(
    name: str, given: dict[str, Any], claim: dict[str, Any], data_dir: Path | None, runs: Path, columns: str = ""
) -> list[Row]:
    """Run one cell and return its row, or one a round where it leaks after several.

    columns: of the page, of which those about servers have more measures.
    """
    lists = {k: tuple(map(str, v)) for k, v in given.items() if isinstance(v, list)}
    cell = prepare(Request(**{**given, **lists}), data_dir)
    with executed(cell, runs, f"results/leakage_tables.py: {name}") as (summary, run):
        rows, tensors = run.read_rows("rows.parquet"), run.read_tensors("reconstructions.safetensors")
        trained = (
            run.read_rows("rounds.parquet")["accuracy"] if cell.settings.protocol == "live" else pd.Series(dtype=float)
        )
    same = {
        "dataset": given["dataset"],
        "attack": cell.names["attack"],
        "defense": cell.names["defense"],
        "limit": limit_of(cell),
        **{f"claimed_{key}": value for key, value in claim.items()},
        "hash": cell.hash[:12],
    }
    several = len(summary["taps"]) > 1
    return [
        same
        | _measured(tap)
        | (_of_servers(cell, tap, point.split("@")[0], rows, tensors) if columns == "servers" else {})
        | {"above": sum(broken["tap"] == point for broken in summary["violations"])}
        | {"accuracy": trained.get(tap["round"] - 1)}
        | {"row": f"{name}, {point}" if several else name, "cell": name, "point": point}
        for point, tap in summary["taps"].items()
    ]


def _of_servers(cell: Cell, tap: dict[str, Any], name: str, rows: pd.DataFrame, tensors: dict[str, Tensor]) -> Row:
    """Return what a row of a page about servers takes beside."""
    rows = rows[(rows["round"] == tap["round"]) & (rows["tap"] == name)]
    answers, truth = (tensors[f"{name}.round{tap['round']}.{what}"] for what in ("reconstruction", "truth"))
    free = cell.data.victims[~torch.isin(cell.data.victims, torch.tensor(rows["example"].to_numpy()))]
    others = cell.data.train_inputs[free[: OTHERS - 1]]
    return {
        **{key: tap[key] for key in OF_SERVERS},
        "within_tenth": float((rows["rmse"] <= TENTH).mean()),
        "in_any_row": in_any_row(cell, name),
        "picked": picked(
            *(each.flatten(end_dim=-len(cell.data.shape) - 1).flatten(1) for each in (answers, truth, others))
        ),
    }


def picked(answers: Tensor, truth: Tensor, others: Tensor) -> float:
    """Return how often an answer (n, d) is nearer to its truth (n, d) than to any of the others (k, d); none is nowhere near."""
    own = (answers - truth).square().sum(1)
    nearest = torch.cdist(answers.nan_to_num(nan=0.0), others).square().amin(1)
    return float((own < nearest).double().mean())


def _measured(tap: dict[str, Any]) -> Row:
    """Return what a row takes from the summary of one leakage point."""
    return {
        "batch": tap["batch"],
        "victims": tap["victims"],
        **{key: tap[key] for key in MEASURES},
        "minutes": minutes_of(tap),
    }


def pages() -> dict[str, Any]:
    """Return every page, each row spelled out."""
    found: dict[str, Any] = {}
    for name in FILES:
        found |= yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
    return {name: {**page, "rows": list(spelled_out(page["rows"]))} for name, page in found.items()}


def options() -> argparse.Namespace:
    """Return what was asked for, of a page that there is."""
    known = pages()
    asked = parser(__doc__, "--data-dir", "--runs", "--only", "--page", "--set", "--out")
    asked.add_argument("name", metavar="PAGE", help=", ".join(sorted(known)))
    given = asked.parse_args()
    if given.name not in known:
        raise InputError(f"PAGE: unknown name {given.name!r}{nearest(given.name, list(known))}")
    given.content = known[given.name]
    return checked(given)


def main() -> None:
    """Measure, or only write the page."""
    asked = options()
    page, folder = asked.content, asked.out or HERE
    if asked.changed:  # What was found was found of other numbers.
        page = {**page, "found": f"A trial with `--set {' '.join(asked.set)}`; the published page is another."}
    table, listed = folder / f"{asked.name}.csv", {name: (given, claim) for name, given, claim in cells(page)}
    names = chosen(listed, asked.only)

    def of(name: str) -> list[Row]:
        given, claim = listed[name]
        columns = page.get("columns", "")
        return measure(name, {**given, **asked.changed}, claim, asked.data_dir, asked.runs, columns)

    def said(row: Row) -> str:
        return f"ASR {text_of(row['asr'])}, RMSE {text_of(row['rmse'], 3)}, {row['minutes']} min"

    if asked.page:
        rows = pd.read_csv(there(table))
    else:
        rows = measured(held(table, ("row", "cell")), names, list(listed), of, said, table, "cell")
    (folder / f"{asked.name}.md").write_text(page_of(page, rows), encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
