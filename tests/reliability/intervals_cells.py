"""The gate on real cells: the same defense with other noise draws, and a defense whose noise became weaker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom

from leakbench.cell import Request, identity, resolve_cell
from leakbench.execute import execute
from leakbench.gate.gate import GateLimits, gate
from leakbench.storage.store import open_run
from tests.reliability.tally import Tally

__all__ = ["check_cells"]

RECIPE = """
title: A clip and noise
cite: none
unit: example
example: [{{clip_whole: {{norm: 1.0}}}}, {noises}]
claim: {{none: {{reason: a test}}}}
"""
NOISE = "{{gaussian_noise: {{multiplier: {sigma}, to: each}}}}"

BEFORE, AFTER = 0.003, 0.0017
"""Noise multipliers between which the ASR of `lmmse` on digits rises by about .2."""


def measured(scratch: Path, sigma: float, seed: int, noises: int) -> Path:
    """Run 100 victims behind noise of this total strength, as one noise or as a sum of several, which draws differently."""
    each = ", ".join([NOISE.format(sigma=sigma / noises**0.5)] * noises)
    recipe = scratch / "guarded.yaml"
    recipe.write_text(RECIPE.format(noises=each), encoding="utf-8")
    asked = Request(
        dataset="digits", attack="lmmse", defense=str(recipe), taps=("type-2",), train_rounds=0, candidates=150,
        victims=100, seed=seed,
    )  # fmt: skip
    cell = resolve_cell(asked, None)
    folder = scratch / f"{sigma:g}-{seed}-{noises}"
    with open_run(folder, identity(cell, "tests.reliability")) as run:
        execute(cell, run, lambda phase, done, total: None)
    return folder


def check_cells(tally: Tally, scratch: Path, seeds: int) -> None:
    """Other draws raise an alarm for at most 5 % of seeds; weaker noise that raises the ASR by .2 does for at least 90 %."""
    alarmed = {"other draws": 0, "weaker": 0, "weaker, other draws": 0}
    rises, back = [], []
    for seed in range(seeds):
        before = measured(scratch, BEFORE, seed, 1)
        runs = {
            "other draws": measured(scratch, BEFORE, seed, 2),
            "weaker": measured(scratch, AFTER, seed, 1),
            "weaker, other draws": measured(scratch, AFTER, seed, 2),
        }
        for name, folder in runs.items():
            alarmed[name] += any(not check.holds for check in gate(folder, before, GateLimits()))
        hits = {name: _success(folder) for name, folder in (*runs.items(), ("before", before))}
        rises.append(float(hits["weaker"].mean() - hits["before"].mean()))
        back.append([float((hits["before"] & ~hits[name]).mean()) for name in ("weaker", "weaker, other draws")])
    same, other = np.mean(back, axis=0)
    said = f"of {seeds} seeds on digits, noise {BEFORE:g} to {AFTER:g}"
    tally.expect(
        alarmed["other draws"] <= binom.ppf(0.99, seeds, 0.05), f"false alarms at other draws: {alarmed}, {said}"
    )
    tally.expect(alarmed["weaker"] >= 0.9 * seeds, f"alarms where noise is weaker: {alarmed}, {said}")
    tally.figures.append(
        f"gate on real cells ({said}, ASR {np.mean(rises):+.2f}): {alarmed['other draws']} alarms at other draws, "
        f"{alarmed['weaker']} at weaker noise ({same:.1%} of victims the other way), "
        f"{alarmed['weaker, other draws']} with other draws too ({other:.1%})"
    )


def _success(folder: Path) -> np.ndarray:
    rows = pd.read_parquet(folder / "rows.parquet").sort_values("victim")
    return (rows["success"] == 1).to_numpy()
