"""What travels between a sweep and its workers: a cell to measure, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from leakbench.core.typed import typed_fields, types_of

if TYPE_CHECKING:  # A worker starts without PyTorch, which comes with its first cell.
    from leakbench.core.request import Request

__all__ = ["Kind", "Task", "TaskOutcome", "Work", "outcome_of"]

Kind: TypeAlias = Literal["done", "failed", "lost", "stopped"]
"""A run that is whole; a cell that ended in an error; one whose worker was lost each time that it was tried; one that was cut
short because the disk took no more, which is of no cell's doing and ends the sweep."""


@dataclass(frozen=True)
class Task:
    """A cell to measure.

    Args:
        key: Of `leakbench.study.grid.Asked`.
        runs: The folder of the runs' folders.
        data_dir: As `--data-dir`.
        threads: Threads of a worker.
        command: What the manifest is to say of where the run is from.
    """

    key: str
    request: Request
    runs: Path
    data_dir: Path | None = None
    threads: int = 1
    command: str = "leakbench sweep"


@dataclass(frozen=True)
class TaskOutcome:
    """What came of a task.

    Args:
        hash: The cell's identity and the name of its folder, of one that is done.
        run: The cell's identity and the name of its folder, of one that is done.
        error: One line, of one that is not.
        seconds: Of this try, wall time.
        tries: Workers that began it.
        fresh: False where the run was whole before.
    """

    key: str
    kind: Kind
    hash: str = ""
    run: str = ""
    error: str = ""
    seconds: float = 0.0
    tries: int = 1
    fresh: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


LONGEST = 1e12
"""Seconds, and tries, of a task; a larger number may be none that a float holds."""

Work: TypeAlias = Callable[[Task], TaskOutcome]


def outcome_of(record: Any) -> TaskOutcome:
    """Return the outcome of plain data; raises TypeError or ValueError for data that are not an outcome."""
    if not isinstance(record, dict):
        raise TypeError(f"got {type(record).__name__}, expected the fields of an outcome")
    found = TaskOutcome(**typed_fields(types_of(TaskOutcome), record))
    if not (0 <= found.seconds <= LONGEST and 1 <= found.tries <= LONGEST):
        raise ValueError("seconds, tries: got numbers that no sweep gives")
    if found.kind == "done" and (found.run in ("", ".", "..") or "/" in found.run or "\0" in found.run):
        raise ValueError(f"run: {found.run!r} is not a name of a run's folder")
    return found
