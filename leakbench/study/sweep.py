"""A sweep: only the cells of a grid that are missing are handed to an engine, then all are merged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.progress import Reporter, cells_line
from leakbench.study.grid import Asked, Grid
from leakbench.study.journal import Journal, open_journal
from leakbench.study.merge import merge, whole
from leakbench.study.study import Engine, outcomes_of
from leakbench.study.task import Outcome, Task
from leakbench.study.workers import refuse_inside

__all__ = ["Swept", "sweep"]

KEEP = 5.0
"""Seconds after which the journal is brought to the disk."""


@dataclass(frozen=True)
class Swept:
    """What a sweep did.

    Args:
        there: Cells that were whole before.
        run: Of them measured now.
        found: Whole runs that were found.
    """

    cells: int
    there: int
    run: int
    found: int
    failed: int
    retried: int
    seconds: float
    tables: tuple[Path, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self.__dict__, "tables": [str(path) for path in self.tables]}

    @property
    def rows(self) -> pd.DataFrame:
        """One row for each example under attack, of all measured cells: rows.parquet."""
        return self._read("rows")

    def table(self) -> pd.DataFrame:
        """Return one line for each cell and leakage point, with its state, settings and measurements: cells.parquet."""
        return self._read("cells")

    def _read(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(next(path for path in self.tables if path.stem == name))


def sweep(
    grid: Grid,
    engine: Engine,
    task_of: Callable[[Asked], Task],
    runs: Path,
    out: Path,
    reporter: Reporter,
    retry_failed: bool = False,
) -> Swept:
    """Measure the missing cells of a grid by an engine, and merge all into tables in `out`.

    A cell that ended in an error is a record of the journal, `out`/cells.jsonl; it is tried again where `retry_failed` says so.
    Raises InputError inside a worker of a sweep, and where another sweep writes to `out`; KeyboardInterrupt for SIGTERM too.
    """
    refuse_inside()
    began = time.monotonic()
    with open_journal(out / "cells.jsonl") as journal:
        known = journal.known
        done = [c for c in grid.cells if c.key in known and known[c.key].kind == "done"]
        there = [cell for cell in done if whole(known[cell.key], runs, reporter.say)]
        errors = [c for c in grid.cells if c.key in known and known[c.key].kind != "done"]
        kept = {cell.key for cell in (*there, *([] if retry_failed else errors))}
        missing = [cell for cell in grid.cells if cell.key not in kept]
        took = [known[cell.key].seconds for cell in there if known[cell.key].fresh]
        plan = _plan(grid, len(there), len(missing), 0 if retry_failed else len(errors), took)
        ended = _measured(grid, engine, [task_of(cell) for cell in missing], journal, reporter, plan)
        tables = merge(grid, known, runs, out)
        failed = sum(cell.key in known and known[cell.key].kind != "done" for cell in grid.cells)
    succeeded = [outcome for outcome in ended if outcome.kind == "done"]
    fresh = sum(outcome.fresh for outcome in succeeded)
    retried = sum(outcome.tries > 1 for outcome in ended)
    seconds = round(time.monotonic() - began, 1)
    return Swept(len(grid.cells), len(there), fresh, len(succeeded) - fresh, failed, retried, seconds, tuple(tables))


def _plan(grid: Grid, there: int, missing: int, stand: int, took: Sequence[float]) -> str:
    """Return what is said before any cell is measured.

    Args:
        took: Seconds of the cells that were measured before.
    """
    same = f" ({grid.same} more are the same as others)" if grid.same else ""
    failed = f", {stand} failed before (--retry-failed tries them again)" if stand else ""
    known = f"; {cells_line(missing, took)}, cell after cell" if missing and took else ""
    return f"{len(grid.cells)} cells{same}: {there} done, {missing} missing{failed}{known}"


def _measured(
    grid: Grid, engine: Engine, tasks: list[Task], journal: Journal, reporter: Reporter, plan: str
) -> list[Outcome]:
    """Hand the tasks to the engine and enter their outcomes into the journal; without tasks the engine is not started."""
    say = reporter.say if not reporter.quiet else lambda _: None
    if not tasks:
        say(plan)
        return []
    names = {cell.key: [cell.name] for cell in grid.cells}
    ended, synced = list[Outcome](), time.monotonic()
    there = len(grid.cells) - len(tasks)
    with closing(outcomes_of(engine, tasks, names, reporter, there, lambda: say(plan))) as outcomes:
        for outcome in outcomes:
            journal.append(outcome)
            ended.append(outcome)
            if time.monotonic() - synced > KEEP:
                journal.keep()
                synced = time.monotonic()
    return ended
