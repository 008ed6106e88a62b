"""Tables of what leaks: the cells of leakage_tables.yaml and aware.yaml, each beside what its paper prints.

    python results/leakage_tables.py PAGE [--data-dir FOLDER] [--runs FOLDER] [--only TEXT] [--page] [--set NAME=VALUE ...]

Runs the cells of one page, each in a folder of its own where it goes on if it was cut short, and writes PAGE.csv and PAGE.md
beside itself; with `--page` only the page, from the CSV that is there. `--set victims=20` changes a number of every cell; the
page says of each row with how many victims and iterations it was measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from leakbench.cell import Request, identity
from leakbench.cell.budget import prepare
from leakbench.progress import Reporter
from leakbench.run.experiment import execute
from leakbench.store import open_run

HERE = Path(__file__).parent

FILES = ("leakage_tables.yaml", "aware.yaml")

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
)
"""Copied from the summary of a leakage point."""


HEADS = (
    *(
        "row",
        "ASR claimed",
        "ASR [95 % CI]",
        "null ASR",
        "above null",
        "RMSE claimed",
        "RMSE",
        "null RMSE",
        "PSNR",
        "SSIM",
    ),
    *("iterations claimed", "iterations", "ranking identifies", "victims x batch, limit"),
)


def pages() -> dict[str, Any]:
    """Return {name: page} of all files."""
    return {
        name: page for file in FILES for name, page in yaml.safe_load((HERE / file).read_text(encoding="utf-8")).items()
    }


def cells(page: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (name, fields of a `Request`, what the paper prints) for every row of a page."""
    for row in page["rows"]:
        yield row["name"], {**page["given"], **row["given"]}, row.get("claim", {})


def measure(
    name: str, given: dict[str, Any], claim: dict[str, Any], data_dir: Path | None, runs: Path
) -> dict[str, Any]:
    """Run one cell and return its row."""
    lists = {k: tuple(v) for k, v in given.items() if isinstance(v, list)}
    cell = prepare(Request(**{**given, **lists}), data_dir)
    reporter = Reporter()
    with open_run(runs / cell.name, identity(cell, f"results/leakage_tables.py: {name}")) as run:
        summary = execute(cell, run, reporter)
    reporter.close()
    (point, tap), *_ = summary["taps"].items()
    stop = getattr(cell.attack.method, "stop", None)
    return {
        "row": name,
        "dataset": given["dataset"],
        "attack": given["attack"],
        "point": point,
        "batch": tap["batch"],
        "victims": tap["victims"],
        "limit": getattr(stop, "limit", None),
        **{key: tap[key] for key in MEASURES},
        "minutes": round(tap["seconds"] / 60, 1),
        **{f"claimed_{key}": value for key, value in claim.items()},
        "hash": cell.hash[:12],
    }


def text_of(value: Any, digits: int = 2) -> str:
    """Return a number for the page, `-` for none."""
    return "-" if value is None or pd.isna(value) else f"{value:.{digits}f}"


READING = """RMSE, PSNR and SSIM are medians over all pictures, a failed one counting as the worst, so that they say nothing of
failures fewer than half. `above null` is (ASR - null ASR) / (1 - null ASR), the null being a guess from public data alone.
Iterations are the median until which an answer came within eta to stay; none where fewer than half did. The last column
but one belongs to no attack of the row: it is how often a ranking of 1,000 candidates, told of the defense, finds the
first picture of each victim. A row is measured again by `python results/leakage_tables.py PAGE --only "ROW"`, PAGE being
the name of this file; seed 0 throughout."""


def page_of(page: dict[str, Any], rows: pd.DataFrame) -> str:
    """Return the page in Markdown."""
    lines = [f"# {page['title']}", "", page["text"].strip(), ""]
    lines += [f"| {' | '.join(HEADS)} |", "| --- " * len(HEADS) + "|"]
    for row in rows.to_dict("records"):
        claimed = {key: text_of(row.get(f"claimed_{key}"), 3) for key in ("asr", "rmse")}
        shown = [
            row["row"],
            claimed["asr"],
            f"{text_of(row['asr'])} [{text_of(row['asr_low'])}, {text_of(row['asr_high'])}]",
            text_of(row["null_asr"]),
            text_of((row["asr"] - row["null_asr"]) / (1 - row["null_asr"])),
            claimed["rmse"],
            text_of(row["rmse"], 3),
            text_of(row["null_rmse"], 3),
            text_of(row["psnr"], 1),
            text_of(row["ssim"]),
            text_of(row.get("claimed_iterations"), 1),
            text_of(row["iterations"], 0),
            text_of(row["identified"]),
            f"{row['victims']:.0f} x {row['batch']:.0f}, {text_of(row['limit'], 0)}",
        ]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", READING, "", page.get("found", "").strip()]).rstrip() + "\n"


def main() -> None:
    """Measure, or only write the page."""
    known = pages()
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("name", choices=sorted(known))
    asked.add_argument("--data-dir", type=Path)
    asked.add_argument("--runs", type=Path, default=Path("runs"))
    asked.add_argument("--only", default="", help="rows whose name holds this text")
    asked.add_argument("--page", action="store_true")
    asked.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = asked.parse_args()
    page, table = known[options.name], HERE / f"{options.name}.csv"
    rows = pd.read_csv(table) if table.exists() else pd.DataFrame({"row": []})
    changed = {name: yaml.safe_load(value) for name, value in (word.split("=", 1) for word in options.set)}
    order = {name: place for place, (name, _, _) in enumerate(cells(page))}
    for name, given, claim in cells(page):
        if options.page or options.only not in name:
            continue
        found = measure(name, {**given, **changed}, claim, options.data_dir, options.runs)
        rows = pd.concat([rows[rows["row"] != name], pd.DataFrame([found])], ignore_index=True)
        rows = rows.sort_values("row", key=lambda names: names.map(order)).reset_index(drop=True)
        rows.to_csv(table, index=False)
        print(
            f"{name}: ASR {text_of(found['asr'])}, RMSE {text_of(found['rmse'], 3)}, {found['minutes']} min", flush=True
        )
    (HERE / f"{options.name}.md").write_text(page_of(page, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
