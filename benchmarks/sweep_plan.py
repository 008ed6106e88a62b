"""What a large sweep takes: time, storage and retries, from the cells that were measured here.

    python benchmarks/sweep_plan.py [--cells 50000] [--workers 256] [--loss 0.01] [--runs FOLDER ...] [--seed 0]

Minutes a cell are those of results/*/*.csv (`wall_minutes` by its seeds); bytes are of the run folders in --runs. The cells of
the sweep are drawn from the measured ones and handed to the workers one after another as they become free, each lost with
probability --loss at a moment that is as likely as any other and begun again, up to three times; what a lost worker had done counts
as lost in full, though a run goes on from its last piece.
"""

from __future__ import annotations

import argparse
import heapq
from pathlib import Path

import numpy as np
import pandas as pd

from leakbench.core.errors import InputError
from leakbench.core.scripts import markdown_table, one_line
from leakbench.study.rows import on_cpu
from leakbench.study.workers import RETRIES

HOME = Path(__file__).parent.parent


def measured() -> pd.Series:
    """Return the minutes of each measured cell, one seed's, of all pages whose rows are cells."""
    found = []
    for path in sorted((HOME / "results").glob("*/*.csv"), key=lambda path: path.name):
        rows = on_cpu(pd.read_csv(path))
        if not {"wall_minutes", "seeds", "cell"} <= set(rows.columns) or "cost_ratio" in rows:
            continue
        each = rows[rows["wall_minutes"].notna()].groupby("cell")[["wall_minutes", "seeds"]].first()
        found.append(each["wall_minutes"] / each["seeds"].clip(lower=1))
    return pd.concat(found, ignore_index=True)


def sizes(folders: list[Path]) -> np.ndarray:
    """Return the bytes of each finished run's folder."""
    runs = [path.parent for folder in folders for path in folder.glob("*/manifest.json")]
    return np.array([sum(file.stat().st_size for file in run.rglob("*") if file.is_file()) for run in runs])


def simulated(minutes: np.ndarray, workers: int, loss: float, rng: np.random.Generator) -> tuple[float, float, int]:
    """Return (minutes until the last cell ends, minutes that were lost, cells that were given up)."""
    free, wasted, lost = [0.0] * workers, 0.0, 0
    end = 0.0
    for cell in minutes:
        at = heapq.heappop(free)
        for _ in range(1 + RETRIES):
            if rng.random() >= loss:
                at += cell
                break
            part = cell * rng.random()
            at, wasted = at + part, wasted + part
        else:
            lost += 1
        heapq.heappush(free, at)
        end = max(end, at)
    return end, wasted, lost


def main() -> None:
    """Print the plan."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("cells", 50_000), ("workers", 256), ("seed", 0)):
        asked.add_argument(f"--{name}", type=int, default=default)
    asked.add_argument("--loss", type=float, nargs="+", default=[0.0, 0.01, 0.1])
    asked.add_argument("--runs", type=Path, nargs="*", default=[])
    given = asked.parse_args()
    for name in ("cells", "workers"):
        if getattr(given, name) < 1:
            raise InputError(f"{name}: got {getattr(given, name)}, expected at least 1")
    if not all(0 <= loss < 1 for loss in given.loss):
        raise InputError(f"loss: got {given.loss}, expected probabilities in [0, 1)")
    each, rng = measured(), np.random.default_rng(given.seed)
    spread = ", ".join(f"{share} % within {each.quantile(share / 100):.1f}" for share in (50, 90, 99))
    print(f"{len(each)} measured cells: {each.mean():.2f} minutes on average, {spread}, {each.max():.0f} at most")
    drawn = rng.choice(each.to_numpy(), given.cells)
    rows = []
    for loss in given.loss:
        end, wasted, lost = simulated(drawn, given.workers, loss, rng)
        hours = drawn.sum() / 60
        rows.append((f"{loss:g}", f"{hours:.0f}", f"{end / 60:.1f}", f"{100 * wasted / 60 / hours:.1f} %", lost))
    heads = ("loss a try", "worker hours", f"hours on {given.workers} workers", "lost to retries", "cells given up")
    print(markdown_table(heads, rows))
    if given.runs:
        bytes_ = sizes(given.runs)
        if not len(bytes_):
            raise InputError(f"runs: no run in {', '.join(map(str, given.runs))}")
        print(
            f"{len(bytes_)} run folders: {bytes_.mean() / 1e6:.2f} MB on average, {np.median(bytes_) / 1e6:.2f} in the median,"
            f" {bytes_.max() / 1e6:.0f} at most; {given.cells} of them: {given.cells * bytes_.mean() / 1e9:.0f} GB"
        )


if __name__ == "__main__":
    one_line(main)
