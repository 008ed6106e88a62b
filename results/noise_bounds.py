"""How often and how closely the whitened searches rebuild faces under noise, beside what bounds them.

    python results/noise_bounds.py [--data-dir FOLDER] [--runs FOLDER] [--only TEXT] [--page]
                                    [--set NAME=VALUE ... --out FOLDER]

Measures a row for each attack and deviation, each in a folder of its own where it goes on if it was cut short, then the floors,
and writes noise_bounds.csv, noise_bounds.md and noise_bounds.png beside itself; with `--page` only the page and figure, from the
CSV that is there. `--only` measures the rows whose name holds the text; `--set victims=16` changes a number of every cell; such a
trial goes into a folder of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from noise_bounds_floors import floors
from noise_bounds_page import draw, page_of
from scipy import stats

from leakbench.cell import Cell, Request, identity
from leakbench.cell.budget import prepare
from leakbench.errors import InputError
from leakbench.progress import Reporter
from leakbench.run.experiment import execute
from leakbench.scripts import chosen, existing, numbers, one_line
from leakbench.store import open_run

HERE = Path(__file__).parent

STDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
ATTACKS = ("whitened", "whitened_public")
GIVEN: dict[str, Any] = {"dataset": "lfw", "taps": ("type-2",), "victims": 40, "train_rounds": 0, "candidates": 1000}

FLOOR_VICTIMS = 4
"""The first of those who are attacked; each takes minutes."""

COPIED = ("victims", "asr", "asr_low", "asr_high", "asr_exact_low", "null_asr", "asr_bound", "rmse", "null_rmse")
"""Of the summary of a leakage point."""


def cells() -> dict[str, tuple[str, float]]:
    """Return {name of a row: (attack, standard deviation of the noise)}."""
    return {f"{attack}, noise {std:g}": (attack, std) for attack in ATTACKS for std in STDS}


def cell_of(attack: str, std: float, changed: dict[str, Any], data_dir: Path | None) -> Cell:
    """Return the cell of one row."""
    recipe = HERE / "recipes" / f"clip_4_noise_{f'{std:g}'.replace('.', '_')}.yaml"
    return prepare(Request(**{**GIVEN, **changed, "attack": attack, "defense": str(recipe)}), data_dir)


def error_of(errors: Iterable[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return the root of the mean squared error over victims with the limits of the mean square's t interval; who answers
    nothing has no finite error, and no limit is known of a single victim.
    """
    squares = np.square(np.asarray(list(errors), dtype=float))
    if np.isnan(squares).any():
        return np.inf, np.inf, np.inf
    mean, many = float(squares.mean()), len(squares)
    within = float(stats.t.ppf((1 + level) / 2, many - 1) * squares.std(ddof=1) / many**0.5) if many > 1 else np.inf
    return mean**0.5, max(0.0, mean - within) ** 0.5, (mean + within) ** 0.5


def measure(name: str, cell: Cell, runs: Path) -> dict[str, Any]:
    """Run one cell, or read it where it is whole, and return its row but for the floors."""
    reporter = Reporter()
    with open_run(runs / cell.name, identity(cell, f"results/noise_bounds.py: {name}")) as run:
        summary = execute(cell, run, reporter)
        rms, low, high = error_of(run.read_rows("rows.parquet")["rmse"])
    reporter.close()
    (tap,) = summary["taps"].values()
    return {
        "row": name,
        "attack": cells()[name][0],
        "std": cells()[name][1],
        "limit": getattr(getattr(cell.attack.method, "stop", None), "limit", None),
        **{key: tap[key] for key in COPIED},
        "rms": rms,
        "rms_low": low,
        "rms_high": high,
        "floor_deviation": tap["rmse_floor"],
        "minutes": round(tap["seconds"] / 60, 1),
        "hash": cell.hash[:12],
    }


def with_floors(rows: pd.DataFrame, changed: dict[str, Any], data_dir: Path | None, runs: Path) -> pd.DataFrame:
    """Return the rows with the floors of both covariances."""
    cell = cell_of("whitened_public", STDS[0], changed, data_dir)
    at = pd.DataFrame(floors(cell, runs, min(FLOOR_VICTIMS, cell.settings.victims), STDS), index=pd.Index(STDS))
    return rows.assign(**{name: rows["std"].map(values) for name, values in at.items()})


def options() -> argparse.Namespace:
    """Return what was asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--data-dir", type=Path)
    asked.add_argument("--runs", type=Path, default=Path("runs"))
    asked.add_argument("--only", default="", help="rows whose name holds this text")
    asked.add_argument("--page", action="store_true")
    asked.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE")
    asked.add_argument(
        "--out", type=Path, help="where the CSV, the page and the figure are; beside this script by default"
    )
    return asked.parse_args()


def main() -> None:
    """Measure, judge, draw; or only judge and draw."""
    asked = options()
    torch.set_num_threads(1)
    data_dir, changed = existing("--data-dir", asked.data_dir), numbers(asked.set)
    if changed and asked.out is None:
        raise InputError("--set: measures a trial, which would take the place of published rows; give --out FOLDER")
    folder = existing("--out", asked.out) or HERE
    table = folder / "noise_bounds.csv"
    names = chosen(cells(), asked.only)
    if asked.page and not table.exists():
        raise InputError("--page: there is no noise_bounds.csv to write it from; measure first")
    rows = pd.read_csv(table) if table.exists() else pd.DataFrame({"row": []})
    for name in [] if asked.page else names:
        found = measure(name, cell_of(*cells()[name], changed, data_dir), asked.runs)
        rows = pd.concat([rows[rows["row"] != name], pd.DataFrame([found])], ignore_index=True)
        print(f"{name}: ASR {found['asr']:.2f}, root mean square {found['rms']:.3f}", flush=True)
    if not asked.page:
        order = list(cells())
        rows = rows.sort_values("row", key=lambda listed: listed.map(order.index)).reset_index(drop=True)
        rows = with_floors(rows, changed, data_dir, asked.runs)
        rows.to_csv(table, index=False)
    (folder / "noise_bounds.md").write_text(page_of(rows), encoding="utf-8")
    draw(rows, folder / "noise_bounds.png")


if __name__ == "__main__":
    one_line(main)
