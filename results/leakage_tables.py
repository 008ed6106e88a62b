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
import yaml
from leakage_page import page_of, text_of

from leakbench.cell import Request, identity
from leakbench.cell.budget import prepare
from leakbench.errors import InputError, nearest
from leakbench.progress import Reporter
from leakbench.run.experiment import execute
from leakbench.scripts import chosen, existing, numbers, one_line
from leakbench.store import open_run

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

FILES = ("leakage_tables.yaml", "strongest_attacker.yaml", "aware.yaml")


def cells(page: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (name, fields of a `Request`, what the paper prints) for every row of a page."""
    for row in page["rows"]:
        given = {**page["given"], **row["given"]}
        own = {slot: str(HERE / given[slot]) for slot in RECIPES if str(given.get(slot, "")).endswith(".yaml")}
        yield row["name"], given | own, row.get("claim", {})


def measure(
    name: str, given: dict[str, Any], claim: dict[str, Any], data_dir: Path | None, runs: Path
) -> list[dict[str, Any]]:
    """Run one cell and return its row, or one a round where it leaks after several."""
    lists = {k: tuple(map(str, v)) for k, v in given.items() if isinstance(v, list)}
    cell = prepare(Request(**{**given, **lists}), data_dir)
    reporter = Reporter()
    with open_run(runs / cell.name, identity(cell, f"results/leakage_tables.py: {name}")) as run:
        summary = execute(cell, run, reporter)
        trained = (
            run.read_rows("rounds.parquet")["accuracy"] if cell.settings.protocol == "live" else pd.Series(dtype=float)
        )
    reporter.close()
    stop = getattr(cell.attack.method, "stop", None)
    same = {
        "dataset": given["dataset"],
        "attack": cell.names["attack"],
        "defense": cell.names["defense"],
        "limit": getattr(stop, "limit", None),
        **{f"claimed_{key}": value for key, value in claim.items()},
        "hash": cell.hash[:12],
    }
    several = len(summary["taps"]) > 1
    return [
        same
        | _measured(tap)
        | {"accuracy": trained.get(tap["round"] - 1)}
        | {"row": f"{name}, {point}" if several else name, "cell": name, "point": point}
        for point, tap in summary["taps"].items()
    ]


def _measured(tap: dict[str, Any]) -> dict[str, Any]:
    """Return what a row takes from the summary of one leakage point."""
    return {
        "batch": tap["batch"],
        "victims": tap["victims"],
        **{key: tap[key] for key in MEASURES},
        "minutes": round(tap["seconds"] / 60, 1),
    }


def pages() -> dict[str, Any]:
    """Return every page."""
    found: dict[str, Any] = {}
    for name in FILES:
        found |= yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
    return found


def options() -> argparse.Namespace:
    """Return what was asked for, of a page that there is."""
    known = pages()
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("name", metavar="PAGE", help=", ".join(sorted(known)))
    asked.add_argument("--data-dir", type=Path)
    asked.add_argument("--runs", type=Path, default=Path("runs"))
    asked.add_argument("--only", default="", help="rows whose name holds this text")
    asked.add_argument("--page", action="store_true")
    asked.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE")
    asked.add_argument(
        "--out", type=Path, help="where PAGE.csv and PAGE.md are; beside this script where it is not given"
    )
    given = asked.parse_args()
    if given.name not in known:
        raise InputError(f"PAGE: unknown name {given.name!r}{nearest(given.name, list(known))}")
    given.content = known[given.name]
    return given


def main() -> None:
    """Measure, or only write the page."""
    asked = options()
    page, folder = asked.content, existing("--out", asked.out) or HERE
    table = folder / f"{asked.name}.csv"
    data_dir, changed = existing("--data-dir", asked.data_dir), numbers(asked.set)
    if changed and asked.out is None:
        raise InputError("--set: measures a trial, which would take the place of published rows; give --out FOLDER")
    named = chosen((name for name, _, _ in cells(page)), asked.only)
    names = [] if asked.page else named
    rows = pd.read_csv(table) if asked.page or table.exists() else pd.DataFrame({"row": [], "cell": []})
    order = {name: place for place, (name, _, _) in enumerate(cells(page))}
    for name, given, claim in cells(page):
        if name not in names:
            continue
        found = measure(name, {**given, **changed}, claim, data_dir, asked.runs)
        rows = pd.concat([rows[rows["cell"] != name], pd.DataFrame(found)], ignore_index=True)
        rows = rows.sort_values("cell", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)
        rows.to_csv(table, index=False)
        for row in found:
            of = f"ASR {text_of(row['asr'])}, RMSE {text_of(row['rmse'], 3)}, {row['minutes']} min"
            print(f"{row['row']}: {of}", flush=True)
    (folder / f"{asked.name}.md").write_text(page_of(page, rows), encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
