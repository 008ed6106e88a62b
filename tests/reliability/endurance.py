"""Endurance: many cells in one process, large results folders, a sweep of one week."""

from __future__ import annotations

import dataclasses
import gc
import os
import resource
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

import leakbench
from leakbench.cell import Request, identity
from leakbench.cell.budget import prepare
from leakbench.core.progress import Reporter
from leakbench.data.kept import KeptData
from leakbench.execute import execute
from leakbench.storage.runs import listed
from leakbench.storage.store import open_run
from leakbench.study.grid import Asked, Grid
from leakbench.study.sweep import sweep
from leakbench.study.task import Task, TaskOutcome
from tests.reliability.tally import Tally

TINY = Request(
    dataset="cancer",
    attack="cpl",
    iterations=1,
    victims=1,
    candidates=2,
    taps=("type-1",),
    train_rounds=1,
    clients=2,
    clients_per_round=2,
    local_iterations=1,
)

WARM, GROWTH_MB, LIST_S, READ_S = 50, 50.0, 3.0, 10.0
DAY_S, CELL_S = 86_400, 300


def check(full: bool, scratch: Path) -> Tally:
    """Try 1,000 cells, 5,000 runs of 100 rows, and a week of five-minute cells; about a quarter of an hour at full length."""
    tally = Tally()
    _one_process(tally, scratch / "process", *((1000, WARM) if full else (4, 2)))
    _folder(tally, scratch / "folder", *((5000, 100) if full else (10, 10)))
    _week(tally, scratch / "week", 7 * DAY_S // CELL_S if full else 7)
    return tally


def _one_process(tally: Tally, place: Path, cells: int, warm: int) -> None:
    """Run this many cells with different seeds; memory and open files must not grow after the first ones."""
    kept, before, files = KeptData(), 0.0, 0
    for seed in range(cells):
        cell = prepare(dataclasses.replace(TINY, seed=seed), None, load=kept)
        with open_run(place / cell.name, identity(cell, "leakbench run")) as run:
            execute(cell, run, lambda *_: None)
        if seed + 1 == warm:
            gc.collect()
            before, files = _resident_mb(), len(os.listdir("/proc/self/fd"))
    gc.collect()
    grown, opened = _resident_mb() - before, len(os.listdir("/proc/self/fd")) - files
    tally.expect(grown < GROWTH_MB, f"{cells} cells: memory grew by {grown:.0f} MB after the first {warm}")
    tally.expect(opened == 0, f"{cells} cells: {opened} more files are open than after the first {warm}")
    found = len(list(listed(place)))
    tally.expect(found == cells, f"{cells} cells: {found} are listed")
    tally.figures.append(f"{cells} cells: {grown:+.0f} MB, {opened:+d} open files after the first {warm}")


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def _folder(tally: Tally, place: Path, runs: int, rows: int) -> None:
    """List and read a folder of this many runs with this many rows each."""
    _copies(place, runs, rows)
    began = time.perf_counter()
    found = [each.folder for each in listed(place)]  # As the command does, which keeps no manifest in memory.
    listing = time.perf_counter() - began
    tally.expect(len(found) == runs, f"{runs} runs: {len(found)} are listed")
    tally.expect(listing < LIST_S, f"{runs} runs are listed in {listing:.1f} s, expected under {LIST_S:g}")
    began = time.perf_counter()
    frame = leakbench.read(place)
    reading = time.perf_counter() - began
    tally.expect(len(frame) == runs * rows, f"{runs} runs of {rows} rows: {len(frame)} are read")
    tally.expect(frame["hash"].nunique() == runs, f"{runs} runs: {frame['hash'].nunique()} are read")
    tally.expect(reading < READ_S, f"{len(frame)} rows are read in {reading:.1f} s, expected under {READ_S:g}")
    tally.figures.append(f"{runs} runs listed in {listing:.1f} s, {len(frame)} rows read in {reading:.1f} s")


def _copies(place: Path, runs: int, rows: int) -> None:
    """Write runs with the fields of a real one, each with its own hash and rows."""
    cell = prepare(TINY, None)
    with open_run(place / "first", identity(cell, "leakbench run")) as run:
        execute(cell, run, lambda *_: None)
        first, summary = run.read_rows("rows.parquet"), run.manifest["summary"]
    table = pd.concat([first] * (rows // len(first) + 1), ignore_index=True)[:rows]
    for number in range(runs):
        own = table.assign(rmse=np.random.default_rng(number).random(rows))
        with open_run(place / f"run{number:05d}", {**identity(cell, "leakbench run"), "hash": f"{number:064x}"}) as run:
            run.manifest.update(summary=summary, complete=True)
            run.write_rows("rows.parquet", own)
    for path in (place / "first").iterdir():
        path.unlink()
    (place / "first").rmdir()


def _week(tally: Tally, out: Path, cells: int) -> None:
    """Sweep five-minute cells on a simulated clock, killed once a day; every row of every day must be in the tables."""
    runs = out / "runs"
    _copies(runs, cells, 2)
    names = sorted(path.name for path in runs.iterdir())
    asked = tuple(Asked(name, dataclasses.replace(TINY, seed=n), f"{n:064x}") for n, name in enumerate(names))
    clock, killed, days = [0.0], [0], 0

    def engine(tasks: Iterable[Task]) -> Generator[TaskOutcome, None, None]:
        until = clock[0] + min(DAY_S, cells * CELL_S / 7)
        for task in tasks:
            if clock[0] >= until:
                killed[0] += 1
                raise KeyboardInterrupt
            clock[0] += CELL_S
            yield TaskOutcome(task.key, "done", hash=task.key, run=names[int(task.key, 16)], seconds=CELL_S)

    def task_of(cell: Asked) -> Task:
        return Task(cell.key, cell.request, runs)

    with mock.patch("leakbench.study.sweep.time.monotonic", lambda: clock[0]):
        while True:
            days += 1
            try:
                swept = sweep(Grid(out / "grid.yaml", asked), engine, task_of, runs, out, Reporter(quiet=True))
                break
            except KeyboardInterrupt:
                continue
    rows = pq.read_table(out / "rows.parquet", columns=["hash"]).to_pandas()
    tally.expect(swept.failed == 0 and killed[0] > 0, f"{swept.failed} cells failed, {killed[0]} kills")
    tally.expect(len(rows) == 2 * cells, f"{cells} cells of two rows: {len(rows)} rows after {days} days")
    tally.expect(set(rows["hash"].value_counts()) == {2}, "a cell has more or fewer rows than its run")
    tally.figures.append(f"{cells} cells in {clock[0] / DAY_S:.1f} simulated days, {killed[0]} kills: {len(rows)} rows")
