"""A study: rows that are planned, measured here or by an engine, stored as soon as each is complete, and shown on a page.

Tables of papers, frontiers, cards and sweeps are planners: they say which cells they need, and what becomes of the results.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import pandas as pd

from leakbench.cell import Cell, Request, identity
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.core.provenance import versions
from leakbench.core.recipe import own_recipes
from leakbench.execute import execute
from leakbench.storage.atomic import write_text
from leakbench.storage.store import Run, alone, open_run
from leakbench.storage.summary import Summary, Tap
from leakbench.study.engines import Placed, tasks_by
from leakbench.study.rows import Row, RowStore
from leakbench.study.task import Task, TaskOutcome
from leakbench.study.workers import listening, refuse_inside

__all__ = [
    "Engine",
    "Execution",
    "Job",
    "Page",
    "Study",
    "executed",
    "limit_of",
    "minutes_of",
    "outcomes_of",
    "versions_of",
]

Engine: TypeAlias = Callable[[Iterable[Task]], Generator[TaskOutcome, None, None]]
"""Takes tasks, yields the outcome of each as it ends, and ends its workers when it is closed."""

T = TypeVar("T")


@contextmanager
def executed(cell: Cell, runs: Path, command: str, reporter: Reporter | None = None) -> Iterator[tuple[Summary, Run]]:
    """Run a cell in its own folder in `runs`, or read it where it is finished; give its summary and the open run."""
    progress = reporter or Reporter()
    try:
        with open_run(runs / cell.name, identity(cell, command), own=True, say=progress.say) as run:
            yield execute(cell, run, progress), run
    finally:
        progress.close()


def versions_of(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the JSON of {package: version} under which the runs of a row were computed, in the field `versions` of the row.

    Args:
        runs: Their manifests, or `versions` that were joined before. Different versions of a package are joined by commas;
            `device` is a field if a run was computed on a GPU.
    """
    told = [each for run in runs for each in (run["versions"], *run.get("computed", []))]
    found = {
        name: ", ".join(dict.fromkeys(part for each in told if name in each for part in str(each[name]).split(", ")))
        for name in [*versions(), "device"]
    }
    return json.dumps(
        {name: text for name, text in found.items() if name != "device" or text not in ("", "cpu")}, sort_keys=True
    )


def limit_of(cell: Cell) -> int | None:
    """Return the largest number of iterations of a cell's attack; None for an attack without a search or with several stages."""
    limit: int | None = getattr(getattr(cell.attack.method, "stop", None), "limit", None)
    return limit


def minutes_of(tap: Tap) -> float:
    """Return the minutes of the attack at a leakage point of a summary."""
    return round(float(tap.seconds or 0.0) / 60, 1)


@dataclass(frozen=True)
class Job(Generic[T]):
    """A row of a table, a point of a frontier or a cell of a card before it is measured.

    Args:
        name: Its name, different from those of other jobs.
        measure: Returns its result; its cells are run in this process, or read where they are finished.
        requests: Its cells, which an engine can run before; empty for a job without cells.
        command: The command that measures it, for the manifests.
        heading: Start of the lines of progress in this process.
    """

    name: str
    measure: Callable[[], T]
    requests: tuple[Request, ...] = ()
    command: str = ""
    heading: str = ""


@dataclass(frozen=True)
class Execution:
    """Where and how the cells of jobs are run.

    Args:
        runs: Folder of the measured cells, one folder per hash.
        data_dir: Folder of the data sets; None for the default.
        reporter: Reports progress.
        engine: Runs cells in parallel; None for this process.
    """

    runs: Path
    data_dir: Path | None
    reporter: Reporter
    engine: Placed | None = None

    def __call__(self, jobs: Iterable[Job[T]]) -> Generator[tuple[Job[T], T], None, None]:
        """Yield each job with its result.

        In this process a job is measured before the next one is planned. An engine runs the cells of all jobs, and a cell that
        several jobs share once; a job is yielded when its cells are finished.

        Raises:
            InputError: Inside a worker of an engine; for cells on other devices than the engine has; at the end, for jobs that
                failed.
        """
        waiting = list[Job[T]]()
        for job in jobs:
            if self.engine is not None and job.requests:
                waiting.append(job)
            else:
                self.reporter.heading = job.heading
                yield job, job.measure()
        if self.engine is not None and waiting:
            with closing(self._finished(waiting, self.engine)) as finished:
                for job in finished:
                    yield job, job.measure()

    def _finished(self, jobs: Sequence[Job[T]], engine: Placed) -> Generator[Job[T], None, None]:
        """Yield each job when an engine has run its cells; on GPUs, if it has them, those for which no other device is given."""

        def placed(request: Request) -> Request:
            default = request.device == Request.device
            return dataclasses.replace(request, device="cuda") if engine.gpus_per_cell and default else request

        refuse_inside()
        self.reporter.heading = ""
        every = [(job, request) for job in jobs for request in job.requests]
        task = tasks_by(engine, [(job.name, placed(request)) for job, request in every], self.runs, self.data_dir)
        tasks = {repr(each): task(repr(each), _absolute(placed(each)), job.command) for job, each in every}
        left = {job.name: {repr(request) for request in job.requests} for job in jobs}
        names = {key: [name for name, keys in left.items() if key in keys] for key in tasks}
        by_name = {job.name: job for job in jobs}
        errors = dict[str, str]()
        with closing(outcomes_of(engine, list(tasks.values()), names, self.reporter)) as outcomes:
            for outcome in outcomes:
                for name in names[outcome.key]:
                    left[name].discard(outcome.key)
                    if outcome.kind != "done":
                        errors.setdefault(name, outcome.error)
                    if not left[name] and name not in errors:
                        yield by_name[name]
        if errors:
            first, why = next(iter(errors.items()))
            raise InputError(
                f"{len(errors)} of {len(jobs)} rows failed; {first}: {why} (what is measured is kept; the same command tries again)"
            )


def outcomes_of(
    engine: Engine,
    tasks: Sequence[Task],
    names: Mapping[str, Sequence[str]],
    reporter: Reporter,
    finished: int = 0,
    plan: Callable[[], None] = lambda: None,
) -> Generator[TaskOutcome, None, None]:
    """Yield the outcome of each task, report progress, and print every failure; a signal and a full disk end the engine first.

    Args:
        engine: Runs the tasks.
        tasks: The tasks.
        names: {key of a task: names of what needs it}.
        reporter: Reports progress.
        finished: Number of cells that were finished before.
        plan: Called when the engine has started: an engine that cannot start is refused by its one line.

    Raises:
        InputError: The disk is full.
    """
    failed, total = 0, finished + len(tasks)

    def begun() -> Iterator[Task]:
        plan()
        reporter("cells", finished, total)
        yield from tasks

    with listening(), closing(engine(begun())) as outcomes:
        for ended, outcome in enumerate(outcomes, finished + 1):
            if outcome.kind == "stopped":
                raise InputError(
                    f"{outcome.error}; what is finished is kept, the same command goes on when there is room"
                )
            if outcome.kind != "done":
                for name in names[outcome.key]:
                    reporter.say(f"{outcome.kind}: {name}: {outcome.error}")
                failed += 1
                reporter.tail = f", {failed} failed"
            yield outcome
            reporter("cells", ended, total)  # After the caller has stored what it makes of the cell.
    reporter.close()
    reporter.tail = ""


def _absolute(request: Request) -> Request:
    """Return the request with absolute paths: the working folder of a worker may be another one."""
    own: dict[str, Any] = {**own_recipes(vars(request), lambda path: str(Path(path).resolve()))}
    weights = request.lpips_weights and Path(request.lpips_weights).resolve()
    return dataclasses.replace(request, **own, lpips_weights=weights)


@dataclass(frozen=True)
class Page:
    """The page of rows.

    Args:
        path: The file.
        text: Returns the page of all rows.
        before: Writes what belongs to the page, such as its figure.
    """

    path: Path
    text: Callable[[pd.DataFrame], str]
    before: Callable[[pd.DataFrame], object] = lambda _: None

    def write(self, rows: pd.DataFrame) -> Path:
        """Write the page and return its path; the page comes last, so that a page that fits its rows has the rest as well."""
        self.before(rows)
        write_text(self.path, self.text(rows))
        return self.path

    def fits(self, rows: pd.DataFrame) -> bool:
        """Return whether the file is the page of these rows."""
        return self.path.is_file() and self.path.read_bytes() == self.text(rows).encode()


@dataclass(frozen=True)
class Study:
    """Rows and their page.

    Args:
        store: The CSV of the rows.
        page: Their page; None where it is written once, at the end.
    """

    store: RowStore
    page: Page | None = None

    def __call__(
        self, jobs: Iterable[Job[list[Row]]], execution: Execution, say: Callable[[Row], None]
    ) -> pd.DataFrame:
        """Measure jobs and return all rows of the study; rows and page are written after each job.

        Args:
            jobs: The rows to measure, planned one after the other.
            execution: Where and how their cells are run.
            say: Receives each new row.
        """
        rows = self.store.read()
        fresh = False
        with closing(execution(jobs)) as results:
            for job, found in results:
                rows, fresh = self.store.replace(job.name, found, self.page.write if self.page else None), True
                for row in found:
                    say(row)
        return self._refreshed() if len(rows) and not fresh and self.page is not None else rows

    def _refreshed(self) -> pd.DataFrame:
        """Return all rows; a page that is missing or is not that of the rows is written."""
        with alone(self.store.path.parent):
            rows = self.store.read()
            if self.page is not None and not self.page.fits(rows):
                self.page.write(rows)
        return rows
