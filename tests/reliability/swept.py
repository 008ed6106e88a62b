"""A sweep of two tiny cells in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from leakbench.core.progress import Reporter
from leakbench.study.grid import Grid
from leakbench.study.sweep import Swept, sweep
from leakbench.study.task import Task, TaskOutcome
from leakbench.study.work import measure

__all__ = ["GRID", "swept"]

GRID = """
given: {dataset: cancer, attack: cpl, iterations: 1, victims: 2, candidates: 2, taps: [type-2], train_rounds: 1, clients: 2,
        clients_per_round: 2, local_iterations: 1}
each: {defense: [none, fed_cdp]}
"""


def swept(grid: Grid, folder: Path) -> Swept:
    """Sweep in this process, below a folder."""

    def engine(tasks: Iterable[Task]) -> Iterator[TaskOutcome]:
        yield from map(measure, tasks)

    runs = folder / "runs"
    return sweep(
        grid,
        engine,  # type: ignore[arg-type]
        lambda cell: Task(cell.key, cell.request, runs),
        runs,
        folder / "out",
        Reporter(quiet=True),
    )
