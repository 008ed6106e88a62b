"""Measure how often and how closely whitened searches reconstruct faces under noise, and the bounds.

    python studies/noise_bounds.py [--data-dir FOLDER] [--runs FOLDER] [--only TEXT] [--page]
                                    [--set NAME=VALUE ... --out FOLDER]

Measures a row for each attack and deviation, each in its own folder where an interrupted run is resumed, then the floors, and
writes noise_bounds.csv, noise_bounds.md and noise_bounds.png into its own folder; with `--page` only the page and figure, from
the existing CSV. `--only` measures the rows whose name contains the text; `--set victims=16` changes a number of every cell;
`--out` names the folder of such a trial.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from noise_bounds_floors import floors
from noise_bounds_page import draw, page_of
from scipy import stats
from shared.options import checked, parser
from shared.rows import store_of

from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.core.scripts import one_line
from leakbench.reproduce.choose import chosen
from leakbench.study.rows import Row
from leakbench.study.study import executed, limit_of, minutes_of

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "attacks"

STDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
ATTACKS = ("whitened", "whitened_public")
GIVEN: dict[str, Any] = {"dataset": "lfw", "taps": ("type-2",), "victims": 40, "train_rounds": 0, "candidates": 1000}

FLOOR_VICTIMS = 4
"""Number of victims for the floors, the first ones; each takes minutes."""

COPIED = ("victims", "asr", "asr_low", "asr_high", "asr_exact_low", "null_asr", "asr_bound", "rmse", "null_rmse")
"""Fields that are copied from the summary of a leakage point."""


def cells() -> dict[str, tuple[str, float]]:
    """Return {name of a row: (attack, standard deviation of the noise)}."""
    return {f"{attack}, noise {std:g}": (attack, std) for attack in ATTACKS for std in STDS}


def cell_of(attack: str, std: float, changed: dict[str, Any], data_dir: Path | None) -> Cell:
    """Return the cell of one row."""
    recipe = HERE / "recipes" / f"clip_4_noise_{f'{std:g}'.replace('.', '_')}.yaml"
    return prepare(Request(**{**GIVEN, **changed, "attack": attack, "defense": str(recipe)}), data_dir)


def error_of(errors: Iterable[float]) -> tuple[float, float, float]:
    """Return the root mean squared error over victims, with the limits of the mean square's t interval.

    A victim without a reconstruction has no finite error, and a single victim has no limits.
    """
    squares = np.square(np.asarray(list(errors), dtype=float))
    if np.isnan(squares).any():
        return np.inf, np.inf, np.inf
    mean, many = float(squares.mean()), len(squares)
    within = float(stats.t.ppf(0.975, many - 1) * squares.std(ddof=1) / many**0.5) if many > 1 else np.inf
    return mean**0.5, max(0.0, mean - within) ** 0.5, (mean + within) ** 0.5


def measure(name: str, cell: Cell, runs: Path) -> Row:
    """Run one cell, or read it if it is complete, and return its row without the floors."""
    with executed(cell, runs, f"studies/noise_bounds.py: {name}") as (summary, run):
        rms, low, high = error_of(run.read_rows("rows.parquet")["rmse"])
    (tap,) = summary.taps.values()
    return {
        "row": name,
        "attack": cells()[name][0],
        "std": cells()[name][1],
        "limit": limit_of(cell),
        **{key: tap.value(key) for key in COPIED},
        "rms": rms,
        "rms_low": low,
        "rms_high": high,
        "floor_deviation": tap.rmse_floor,
        "minutes": minutes_of(tap),
        "hash": cell.hash[:12],
    }


def with_floors(rows: pd.DataFrame, changed: dict[str, Any], data_dir: Path | None, runs: Path) -> pd.DataFrame:
    """Return the rows with the floors of both covariances."""
    cell = cell_of("whitened_public", STDS[0], changed, data_dir)
    found = floors(cell, runs, min(FLOOR_VICTIMS, cell.settings.victims), STDS)
    return rows.assign(**{name: rows["std"].map(dict(zip(STDS, at, strict=True))) for name, at in found.items()})


def main() -> None:
    """Measure, compare and draw; or only compare and draw."""
    asked = checked(parser(__doc__, "--data-dir", "--runs", "--only", "--page", "--set", "--out").parse_args())
    torch.set_num_threads(1)
    folder = asked.out or RESULTS
    table, names = folder / "noise_bounds.csv", chosen(cells(), asked.only)

    store = store_of(table, list(cells()))
    if asked.page:
        rows = store.existing.read()
    else:
        rows = store.read()
        for name in names:
            row = measure(name, cell_of(*cells()[name], asked.changed, asked.data_dir), asked.runs)
            rows = store.order(store.replaced(rows, name, [row]))
            print(f"{row['row']}: ASR {row['asr']:.2f}, root mean square {row['rms']:.3f}", flush=True)
        rows = with_floors(rows, asked.changed, asked.data_dir, asked.runs)
        store.write(rows)  # Rows are complete only with their floors.
    (folder / "noise_bounds.md").write_text(page_of(rows), encoding="utf-8")
    draw(rows, folder / "noise_bounds.png")


if __name__ == "__main__":
    one_line(main)
