"""A sweep: only the cells of a grid that are missing are handed to an engine, then all are merged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from leakbench.core.errors import DamagedError, InputError
from leakbench.core.progress import Reporter, cells_line
from leakbench.storage.manifest_file import check_files, read_manifest, written
from leakbench.storage.packed import check_parquet
from leakbench.storage.rows_file import check_schema, versioned
from leakbench.storage.store import write_atomically
from leakbench.storage.summary import Summary
from leakbench.study.grid import Asked, Grid
from leakbench.study.journal import Journal, open_journal
from leakbench.study.study import Engine, outcomes_of
from leakbench.study.task import Task, TaskOutcome
from leakbench.study.workers import refuse_inside

__all__ = [
    "Swept",
    "merge",
    "sweep",
    "whole",
]


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
) -> list[TaskOutcome]:
    """Hand the tasks to the engine and enter their outcomes into the journal; without tasks the engine is not started."""
    say = reporter.say if not reporter.quiet else lambda _: None
    if not tasks:
        say(plan)
        return []
    names = {cell.key: [cell.name] for cell in grid.cells}
    ended, synced = list[TaskOutcome](), time.monotonic()
    there = len(grid.cells) - len(tasks)
    with closing(outcomes_of(engine, tasks, names, reporter, there, lambda: say(plan))) as outcomes:
        for outcome in outcomes:
            journal.append(outcome)
            ended.append(outcome)
            if time.monotonic() - synced > KEEP:
                journal.keep()
                synced = time.monotonic()
    return ended


Row = dict[str, Any]

CLOCK = ("seconds", "fit_seconds", "minutes")
"""Columns that no second run repeats."""

FIRST = ("defense", "attack", "dataset", "seed")


def whole(outcome: TaskOutcome, runs: Path, say: Callable[[str], None]) -> bool:
    """Say whether the run of a cell that was done is there as it was written.

    Args:
        say: Told of one that was damaged.
    """
    folder = runs / outcome.run
    try:
        manifest = read_manifest(folder)
        check_files(folder, manifest)
    except DamagedError as error:
        say(f"{error.what}; its cell is measured again")
        return False
    except InputError:
        return False
    return manifest.get("hash") == outcome.hash and manifest.get("complete") is True


def merge(grid: Grid, known: Mapping[str, TaskOutcome], runs: Path, out: Path) -> list[Path]:
    """Write the tables of what is known of a grid's cells into `out` and return their paths."""
    tables, cells, times = list[pa.Table](), list[Row](), list[Row]()
    differ = _differ(grid.cells)
    for asked in grid.cells:
        outcome = known.get(asked.key)
        state = {"state": outcome.kind if outcome else "missing", "error": outcome.error if outcome else None}
        first: Row = {"cell": asked.name, "hash": outcome.hash if outcome else None}
        first |= {name: getattr(asked.request, name) for name in FIRST}
        given = {f"given_{name}": _plain(getattr(asked.request, name)) for name in differ}
        if outcome is None or outcome.kind != "done":
            cells.append({**first, **state, **given})
            continue
        manifest = read_manifest(runs / outcome.run)
        named = {**first, **{name: manifest["cell"][name] for name in FIRST}}
        cells += [{**named, **state, **given, "run": outcome.run, **figures} for figures in _figures(manifest)]
        tables.append(_rows(written(runs / outcome.run, manifest, "rows.parquet"), named))
        phases = {phase: float(seconds) for phase, seconds in manifest["phases"].items()}
        times.append({"cell": asked.name, "hash": outcome.hash, "seconds": sum(phases.values()), **phases})
    whole = (
        pa.concat_tables(tables, promote_options="permissive")
        if tables
        else pa.table({"cell": pa.array([], pa.string())})
    )
    found = {"rows": whole.combine_chunks(), "cells": _table(cells), "times": _table(times)}
    for name, table in found.items():
        write_atomically(out / f"{name}.parquet", partial(pq.write_table, versioned(table)))
    return [out / f"{name}.parquet" for name in found]


def _differ(cells: Sequence[Asked]) -> list[str]:
    """Return the fields in which cells of a grid differ, without the first columns."""
    names = [f.name for f in dataclasses.fields(cells[0].request) if f.name not in FIRST]
    return [n for n in names if any(getattr(c.request, n) != getattr(cells[0].request, n) for c in cells)]


def _figures(manifest: Mapping[str, Any]) -> Iterable[Row]:
    """Yield what a run's summary says of each leakage point, in one row each."""
    summary = Summary.of(manifest["summary"])
    whole = {
        "accuracy": summary.accuracy,
        "epsilon_claimed": summary.epsilon.claimed,
        "epsilon_valid": summary.epsilon.valid,
    }
    for point, tap in summary.taps.items():
        single = {n: v for n, v in tap.as_dict().items() if n not in CLOCK and not isinstance(v, dict | list)}
        yield {"point": point, **whole, **single}


def _rows(path: Path, first: Row) -> pa.Table:
    """Return the rows of a run, with the same columns before each."""
    check_schema(path, pq.read_schema(path))
    check_parquet(path)
    table = pq.read_table(path).replace_schema_metadata(None)
    table = table.drop_columns([name for name in (*CLOCK, *first) if name in table.column_names])
    before = [(name, pa.array([value] * len(table))) for name, value in first.items()]
    return pa.table(dict(before) | {name: table[name] for name in table.column_names})


def _table(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table; a column with both words and numbers has words only."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if not (len(kinds) < 2 or kinds == {int, float}):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array([float(v) if float in kinds and v is not None else v for v in values])


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value) if isinstance(value, Path) else value
