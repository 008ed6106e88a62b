"""The same seed on the same machine gives bit-identical results on every path; other thread counts and engines give close ones.

Bit-identical: rows, pictures, trained model.  Within a tolerance: RMSE of each victim if sums are added in another order.
"""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

from leakbench.measure.statistics import wilson
from leakbench.study.sweep import CLOCK
from tests.bad.tried import asked
from tests.offline import python_path
from tests.reliability.same import differences, results
from tests.reliability.tally import Tally

__all__ = ["check"]

ROOT = Path(__file__).parents[2]

BITS = ("rows.parquet", "rounds.parquet", "reconstructions.safetensors", "model.safetensors")

NEAR = 5e-3
"""Largest difference of a victim's RMSE (pixels from 0 to 1) for a direct attack, between threads, chunks and engines."""

FAR = 0.05
"""Largest median difference for a search: over many iterations a difference in the last bit grows."""


@dataclass(frozen=True)
class Cell:
    """A cell, and whether its attack searches."""

    words: str
    search: bool


CELLS: Mapping[str, Cell] = {
    "digits, lmmse": Cell(
        "--dataset digits --attack lmmse --taps type-2 --train-rounds 2 --victims 8 --candidates 20", False
    ),
    "digits, cpl behind fed_cdp": Cell(
        "--dataset digits --attack cpl --defense fed_cdp --taps type-2,type-1 --train-rounds 1 --clients 4"
        " --clients-per-round 2 --local-iterations 4 --leak-batch 1 --iterations 15 --victims 6 --candidates 20",
        True,
    ),
    "cancer, cpl behind fed_alpha_cdp": Cell(
        "--dataset cancer --attack cpl --defense fed_alpha_cdp --train-rounds 2 --clients 4 --clients-per-round 2"
        " --local-iterations 3 --iterations 15 --victims 5 --candidates 20",
        True,
    ),
    "faces, whitened": Cell(
        "--dataset faces --attack whitened --iterations 30 --taps type-2 --train-rounds 0 --victims 4 --candidates 20",
        True,
    ),
    "digits, autoleak, live after a round": Cell(
        "--dataset digits --attack autoleak --protocol live --leak-rounds 0,last --taps type-1 --train-rounds 2 --clients 4"
        " --clients-per-round 2 --local-iterations 2 --leak-batch 2 --iterations 10 --victims 4 --candidates 20",
        True,
    ),
}


def check(full: bool, scratch: Path) -> Tally:
    """Try one cell twice in this process; at full length, five cells in all ways."""
    tally = Tally()
    if not full:
        cell = CELLS["digits, lmmse"]
        one, two = (_here(cell, scratch / name) for name in ("one", "two"))
        _bits(tally, "digits, lmmse: twice", two, one)
        return tally
    apart = list[str]()
    for name, cell in CELLS.items():
        place = scratch / name.replace(", ", "-").replace(" ", "_")
        first = _run(cell, place / "first")
        _bits(tally, f"{name}: twice", _run(cell, place / "again"), first)
        _bits(tally, f"{name}: killed on the way", _resumed(cell, place / "resumed", 3), first)
        _bits(
            tally,
            f"{name}: nothing in the cache",
            _run(cell, place / "cold", XDG_CACHE_HOME=str(place / "empty")),
            first,
        )
        _bits(tally, f"{name}: fits not kept", _run(cell, place / "fits", LEAKBENCH_FITS=str(place / "none")), first)
        _manifest(tally, name, first)
        for said, other in {
            "two threads": _run(cell, place / "threads", OMP_NUM_THREADS="2"),
            "one victim at a time": _here(cell, place / "chunk", one_by_one=True),
            "--engine reference": _run(cell, place / "reference", more=("--engine", "reference")),
        }.items():
            apart.append(f"{name}, {said}: {_near(tally, f'{name}: {said}', cell, other, first)}")
    _engines(tally, scratch / "engines")
    tally.figures.append("RMSE apart, in the median and at most: " + "; ".join(apart))
    tally.figures.append(
        "a GPU against the CPU: not tried" if not torch.cuda.is_available() else "a GPU is there: pytest -m cuda"
    )
    return tally


def _words(cell: Cell, folder: Path) -> list[str]:
    return ["run", "--quiet", "--json", *cell.words.split(), "--device", "cpu", "--out", str(folder)]


def _environment(**changed: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path(ROOT), "OMP_NUM_THREADS": "1", **changed}


def _run(cell: Cell, folder: Path, more: Sequence[str] = (), **environment: str) -> Path:
    """Run a cell in a separate process; return its folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "leakbench", *_words(cell, folder), *more]
    done = subprocess.run(command, env=_environment(**environment), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-300:]}")
    return folder


def _here(cell: Cell, folder: Path, one_by_one: bool = False) -> Path:
    """Run a cell in this process, if requested with memory for one victim at a time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _of_one_victim() if one_by_one else nullcontext():
            code, _, err = asked(_words(cell, folder), folder.parent)
    finally:
        torch.set_num_threads(before)
    if code:
        raise RuntimeError(f"exit code {code}: {err[-300:]}")
    return folder


def _of_one_victim() -> AbstractContextManager[Any]:
    """Limit a chunk to one victim."""
    return mock.patch("leakbench.experiment.stage_attack.lanes_within", lambda budget, each, most=None: 1)


def _resumed(cell: Cell, folder: Path, times: int) -> Path:
    """Run a cell that is killed after some of its chunks."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, times + 1):
        command = [sys.executable, "-m", "leakbench", *_words(cell, folder)]
        with subprocess.Popen(
            command, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None and len(list(folder.glob("**/*.safetensors"))) < number:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
    return _run(cell, folder)


def _bits(tally: Tally, said: str, other: Path, one: Path) -> None:
    for name in BITS:
        if (one / name).exists():
            tally.expect(_content(one / name) == _content(other / name), f"{said}: {name} differs")


def _content(path: Path) -> bytes:
    """Return a file's bytes; for rows, without the columns that depend only on a clock."""
    if path.suffix != ".parquet":
        return path.read_bytes()
    table = pq.read_table(path)
    stream = io.BytesIO()
    pq.write_table(table.drop_columns([name for name in CLOCK if name in table.column_names]), stream)
    return stream.getvalue()


def _near(tally: Tally, said: str, cell: Cell, other: Path, one: Path) -> str:
    """Compare RMSEs and ASR of the same victims; return the largest difference of RMSEs."""
    rows, beside = (pd.read_parquet(folder / "rows.parquet") for folder in (one, other))
    apart = (rows["rmse"] - beside["rmse"]).abs().fillna(0.0).to_numpy()
    most = float(np.median(apart)) if cell.search else float(apart.max())
    limit = FAR if cell.search else NEAR
    tally.expect(most <= limit, f"{said}: RMSE {most:.2g} apart, expected at most {limit:g}")
    for tap, part in rows.groupby("tap"):
        low, high = wilson(int(part["success"].sum()), len(part))
        share = float(beside.loc[beside["tap"] == tap, "success"].mean())
        tally.expect(
            low - 1e-9 <= share <= high + 1e-9, f"{said}: ASR {share:.2f} at {tap}, expected {low:.2f} to {high:.2f}"
        )
    return f"{np.median(apart):.1g}, {apart.max():.1g}"


def _manifest(tally: Tally, said: str, folder: Path) -> None:
    from leakbench.storage.store import read_manifest  # noqa: PLC0415

    manifest = read_manifest(folder)
    [computed] = manifest["computed"]
    tally.expect({"threads", "device", "capability", "deterministic"} <= set(computed), f"{said}: manifest: {computed}")
    tally.expect({"torch", "numpy", "leakbench", "python"} <= set(manifest["versions"]), f"{said}: manifest: versions")


GRID = """
given: {dataset: digits, attack: cpl, iterations: 3, victims: 3, candidates: 5, taps: [type-2], train_rounds: 1, clients: 3,
        clients_per_round: 2, local_iterations: 2}
each: {defense: [DEFENSES], seed: [0, 1]}
"""


def _engines(tally: Tally, place: Path) -> None:
    """Sweep the same cells with one process, with two, in another order and with Ray; the rows must be bit-identical."""
    place.mkdir(parents=True)
    orders = {"one": "none, sign, fed_cdp", "other": "fed_cdp, sign, none"}
    for name, defenses in orders.items():
        (place / f"{name}.yaml").write_text(GRID.replace("DEFENSES", defenses), encoding="utf-8")
    ways = {
        "one process": ("one", "--engine process --workers 1 --threads-per-cell 1"),
        "two processes": ("one", "--engine process --workers 2 --threads-per-cell 1"),
        "another order": ("other", "--engine process --workers 1 --threads-per-cell 1"),
    }
    if importlib.util.find_spec("ray") is not None:
        ways["Ray"] = ("one", "--engine ray --workers 2 --threads-per-cell 1")
    else:
        tally.figures.append("Ray: not there, not tried")
    found = {way: _swept(place, grid, options, way.replace(" ", "-")) for way, (grid, options) in ways.items()}
    first = found["one process"]
    tally.expect(len(first) == 6, f"engines: {len(first)} cells, expected 6")
    for way, folders in found.items():
        tally.expect(set(folders) == set(first), f"{way}: other cells")
        for key in set(folders) & set(first):
            _bits(tally, f"{way}: {key}", folders[key], first[key])
        if way in ("two processes", "Ray"):
            wrong = differences(*(results(place / name.replace(" ", "-") / "out") for name in (way, "one process")))
            tally.expect(not wrong, f"{way}: merged tables: {wrong}")


def _swept(place: Path, grid: str, options: str, name: str) -> dict[str, Path]:
    folder = place / name
    words = f"sweep --quiet --json {place / grid}.yaml {options} --runs {folder / 'runs'} --out {folder / 'out'}"
    done = subprocess.run(
        [sys.executable, "-m", "leakbench", *words.split()],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: exit code {done.returncode}: {done.stderr[-300:]}")
    return {run.name: run for run in (folder / "runs").iterdir() if run.is_dir()}
