"""A sweep: only the cells of a grid that are missing are handed to an engine, then all are merged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from leakbench.cell import Request
from leakbench.errors import InputError
from leakbench.progress import Reporter, cells_line
from leakbench.study.engines import Placed, tasks_by
from leakbench.study.grid import Asked, Grid
from leakbench.study.journal import Journal, open_journal
from leakbench.study.merge import merge, whole
from leakbench.study.task import Outcome, Task
from leakbench.study.workers import listening, refuse_inside

__all__ = ["Engine", "Swept", "Wanted", "measured_first", "sweep"]

Engine: TypeAlias = Callable[[Iterable[Task]], Generator[Outcome, None, None]]
"""Takes tasks, yields what came of each as they end, and closes what it began when it is closed."""

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
    """Hand the tasks to the engine and enter what comes of them into the journal; nothing is begun for no task."""
    names = {cell.key: cell.name for cell in grid.cells}
    there, total = len(grid.cells) - len(tasks), len(grid.cells)
    ended, done, kept = list[Outcome](), 0, time.monotonic()
    say = reporter.say if not reporter.quiet else lambda _: None

    def begun() -> Iterator[Task]:
        # Drawn once the engine stands: one that cannot be had is refused by its one line.
        say(plan)
        reporter("cells", there, total)
        yield from tasks

    if not tasks:
        say(plan)
        return []

    with closing(_outcomes(engine, begun())) as outcomes:
        for outcome in outcomes:
            journal.append(outcome)
            ended.append(outcome)
            if outcome.kind != "done":
                reporter.say(f"{outcome.kind}: {names[outcome.key]}: {outcome.error}")
            done += outcome.kind == "done"
            reporter.tail = f", {len(ended) - done} failed" if done < len(ended) else ""
            reporter("cells", there + len(ended), total)
            if time.monotonic() - kept > KEEP:
                journal.keep()
                kept = time.monotonic()
    reporter.close()
    return ended


def _outcomes(engine: Engine, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
    """Yield what comes of each task; a signal to end, and a full disk, end the engine first."""
    with listening(), closing(engine(tasks)) as outcomes:
        for outcome in outcomes:
            if outcome.kind == "stopped":
                raise InputError(
                    f"{outcome.error}; what is finished is kept, the same command goes on when there is room"
                )
            yield outcome


def _anywhere(request: Request) -> Request:
    """Return the request with absolute paths: the working folder of a worker may be another one."""
    given = {name: getattr(request, name) for name in ("attack", "defense", "dataset")}
    own: dict[str, Any] = {
        name: str(Path(path).resolve()) for name, path in given.items() if path.endswith((".yaml", ".yml"))
    }
    weights = request.lpips_weights and Path(request.lpips_weights).resolve()
    return dataclasses.replace(request, **own, lpips_weights=weights)


@dataclass(frozen=True)
class Wanted:
    """A row of a table, a point of a frontier or a card: what it is called, and the cells that it is computed from."""

    name: str
    requests: tuple[Request, ...]
    command: str


def measured_first(
    wanted: Sequence[Wanted], engine: Placed | None, runs: Path, data_dir: Path | None, reporter: Reporter
) -> Generator[str, None, None]:
    """Yield the name of each row as soon as an engine has measured its cells, which are then whole in `runs`.

    Without an engine all names come at once, in their order, and the caller measures the cells itself. A cell that several rows
    share is measured once.

    Args:
        wanted: The rows, with different names.
        engine: The engine; None for this process.
        runs: Folder of the measured cells, one folder per hash.
        data_dir: Folder of the data sets; None for the default.
        reporter: Reports progress.

    Raises:
        InputError: Inside a worker of a sweep; for cells on other devices than the engine has; at the end, for rows that failed.
    """
    if engine is None or not wanted:
        yield from (row.name for row in wanted)
        return
    refuse_inside()
    task = tasks_by(engine, [(row.name, request) for row in wanted for request in row.requests], runs, data_dir)
    tasks = {
        repr(request): task(repr(request), _anywhere(request), row.command)
        for row in wanted
        for request in row.requests
    }
    left = {row.name: {repr(request) for request in row.requests} for row in wanted}
    errors = dict[str, str]()
    reporter("cells", 0, len(tasks))
    with closing(_outcomes(engine, list(tasks.values()))) as outcomes:
        for ended, outcome in enumerate(outcomes, 1):
            reporter("cells", ended, len(tasks))
            for name in [name for name, keys in left.items() if outcome.key in keys]:
                left[name].discard(outcome.key)
                if outcome.kind != "done":
                    errors.setdefault(name, outcome.error)
                    reporter.say(f"{outcome.kind}: {name}: {outcome.error}")
                if not left[name] and name not in errors:
                    yield name
    reporter.close()
    if errors:
        first, why = next(iter(errors.items()))
        raise InputError(
            f"{len(errors)} of {len(wanted)} rows failed; {first}: {why} (what is measured is kept; the same command tries again)"
        )
