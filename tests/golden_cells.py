"""Small cells with recorded numbers: numbers that change without a new behaviour version are found.

`python -m tests.golden_cells` measures the cells and writes `golden_cells.json` next to this file. It refuses to replace numbers
whose
cell has the same hash as before: raise a behaviour version first (`leakbench/core/behaviour.py` says where to declare versions).
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from leakbench.cell import Cell, Request
from leakbench.cell.behaviours import behaviours_of
from leakbench.cell.budget import prepare
from leakbench.core.behaviour import raised
from leakbench.core.progress import Reporter
from leakbench.study.study import executed

__all__ = ["CELLS", "COMMAND", "KEPT", "cell_of", "differences", "golden", "numbers", "unraised"]

KEPT = Path(__file__).with_suffix(".json")

COMMAND = "python -m tests.golden_cells"

FIRST = {"train_rounds": 0, "taps": ("type-2",), "victims": 4, "candidates": 20}
"""Settings shared by most cells: one example's gradient at initial weights."""

CELLS: dict[str, dict[str, Any]] = {
    "none, cpl": {**FIRST, "attack": "cpl", "iterations": 12},
    "none, inverting_gradients": {**FIRST, "attack": "inverting_gradients", "iterations": 12},
    "none, analytic_fc, digits": {**FIRST, "attack": "analytic_fc", "dataset": "digits", "leak_model": "mlp_sigmoid"},
    "none, autoleak, a batch": {
        **FIRST,
        "attack": "autoleak",
        "iterations": 4,
        "taps": ("type-1",),
        "leak_batch": 2,
        "victims": 2,
    },
    "fed_cdp, whitened_public": {**FIRST, "defense": "fed_cdp", "attack": "whitened_public", "iterations": 8},
    "fed_alpha_cdp, identification": {
        **FIRST,
        "defense": "fed_alpha_cdp",
        "attack": "identification",
        "victims": 20,
        "noise_factor": 0.02,
    },
    "noise_gaussian, lmmse": {**FIRST, "defense": "noise_gaussian", "attack": "lmmse"},
    "precode, cpl": {**FIRST, "defense": "precode", "attack": "cpl", "iterations": 3, "victims": 2},
    "soteria, whitened": {**FIRST, "defense": "soteria", "attack": "whitened", "iterations": 3, "victims": 2},
    "dssgd, identification, digits": {
        **FIRST,
        "defense": "dssgd",
        "attack": "identification",
        "dataset": "digits",
        "taps": ("type-1",),
        "victims": 20,
    },
    "fed_sdp, live, cancer": {
        "defense": "fed_sdp_client",
        "noise_factor": 0.003,
        "attack": "identification",
        "dataset": "cancer",
        "protocol": "live",
        "leak_rounds": ("last",),
        "train_rounds": 3,
        "clients": 20,
        "clients_per_round": 4,
        "local_iterations": 5,
        "taps": ("type-1", "type-0"),
        "victims": 12,
        "candidates": 20,
    },
    "fed_cdp_valid, trained, digits": {
        "defense": "fed_cdp_valid",
        "noise_factor": 0.1,
        "attack": "identification",
        "dataset": "digits",
        "train_rounds": 2,
        "clients": 10,
        "clients_per_round": 3,
        "local_iterations": 4,
        "taps": ("type-2",),
        "victims": 12,
        "candidates": 20,
    },
}
"""{name: fields of a `Request`}."""

SHARES = (
    *("asr", "asr_low", "asr_high", "null_asr", "identified", "identified_low", "identified_high"),
    *("label_accuracy", "label_ranked", "recognised", "null_recognised"),
    *("excluded_asr", "excluded_identified", "excluded_recognised"),
)
"""Counts of victims and numbers that follow from counts; these must be equal."""

SEARCHED = ("rmse", "psnr", "ssim")
"""Medians of a search's reconstructions, which differ by some percent between processors."""

OTHERS = ("null_rmse", "asr_bound", "identified_bound", "rmse_floor", "eta")

TOLERANCES = {"shares": 1e-6, "searched": 0.1, "others": 0.01, "epsilon": 1e-4}
"""Relative tolerances; for shares, absolute ones."""

ABSOLUTE = 1e-3
"""Absolute tolerance of numbers other than shares and epsilons."""


def cell_of(name: str) -> Cell:
    """Return one of the cells."""
    return prepare(Request(**{"dataset": "faces", **CELLS[name]}), None)


def numbers(cell: Cell, runs: Path) -> dict[str, float]:
    """Run a cell in a folder below `runs`; return {name: number}, with the leakage point before its numbers."""
    torch.set_num_threads(1)
    with executed(cell, runs, COMMAND, Reporter(quiet=True)) as (summary, run):
        rounds = run.read_rows("rounds.parquet")
    found = {
        "accuracy": summary.accuracy,
        "loss": float(rounds["loss"].iloc[-1]) if len(rounds) and "loss" in rounds else None,
        "epsilon claimed": summary.epsilon.claimed,
        "epsilon valid": summary.epsilon.valid,
        **{
            f"{point}: {what}": tap.value(what)
            for point, tap in summary.taps.items()
            for what in (*SHARES, *SEARCHED, *OTHERS)
            if what in tap.model_fields_set
        },
    }
    return {
        what: float(f"{float(number):.6g}")
        for what, number in found.items()
        if number is not None and math.isfinite(number)
    }


def golden(cell: Cell, found: Mapping[str, float]) -> dict[str, Any]:
    """Return the recorded entry of a cell."""
    return {"hash": cell.hash, "behaviours": raised(behaviours_of(cell)), "numbers": dict(found)}


def differences(kept: Mapping[str, float], found: Mapping[str, float]) -> Iterator[str]:
    """Yield the differences between a cell and its record, as `type-2: rmse 0.12, kept 0.1`."""
    for what in sorted({*kept, *found}):
        one, other = kept.get(what, math.nan), found.get(what, math.nan)
        kind = _kind(what)
        absolute = {"shares": TOLERANCES["shares"], "epsilon": 0.0}.get(kind, ABSOLUTE)
        if what.endswith(": ssim"):  # Near 0 without a reconstruction; differs between processors.
            absolute = 0.05
        if not math.isclose(one, other, rel_tol=TOLERANCES[kind], abs_tol=absolute):
            yield f"{what} {other:g}, kept {one:g}"


def _kind(what: str) -> str:
    name = what.rpartition(": ")[2]
    if name in SHARES:
        return "shares"
    return "searched" if name in SEARCHED else "epsilon" if name.startswith("epsilon") else "others"


def unraised(kept: Mapping[str, Any], cell: Cell, found: Mapping[str, float]) -> list[str]:
    """Return the numbers that changed although the cell's identity is the recorded one."""
    return list(differences(kept["numbers"], found)) if kept["hash"] == cell.hash else []


def main() -> int:
    """Measure all cells and record them; refuse if a number changed without a new behaviour version."""
    before = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    kept, refused = {}, []
    with tempfile.TemporaryDirectory() as runs:
        for name in CELLS:
            cell = cell_of(name)
            found = numbers(cell, Path(runs))
            if name in before and (changed := unraised(before[name], cell, found)):
                refused.append(f"{name}: {'; '.join(changed)}")
            kept[name] = golden(cell, found)
            print(f"{name}: {len(found)} numbers, hash {cell.hash[:12]}", flush=True)
    if refused:
        print("nothing was written: numbers changed without a new behaviour version; raise one", *refused, sep="\n")
        return 1
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"kept: {KEPT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
