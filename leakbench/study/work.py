"""The work of a worker: measure one cell in its own folder, and report in one line what failed."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

from leakbench.core.errors import BusyError, InputError, no_room
from leakbench.study.task import Task, TaskOutcome

if TYPE_CHECKING:
    from leakbench.data.kept import KeptData

__all__ = ["measure"]

PATIENCE = 600.0
"""Seconds to wait for a run that another process holds: the worker of a sweep that was killed just now may still be at it."""


def measure(task: Task) -> TaskOutcome:
    """Run a task's cell, or find it finished; any failure becomes the outcome's error."""
    began = time.monotonic()
    try:
        found = _measured(task, began + PATIENCE)
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.strerror:
            said = f"{error.filename2 or error.filename or 'file system'}: {error.strerror}"
        found = TaskOutcome(task.key, "stopped" if no_room(error, task.runs) else "failed", error=_line(said))
    return TaskOutcome(**{**found.as_dict(), "seconds": round(time.monotonic() - began, 3)})


def _measured(task: Task, until: float) -> TaskOutcome:
    # What takes seconds to import is imported with the first cell, so that a worker's loss is noticed at once.
    import torch  # noqa: PLC0415

    from leakbench.cell import identity  # noqa: PLC0415
    from leakbench.cell.budget import prepare  # noqa: PLC0415
    from leakbench.core.progress import Reporter  # noqa: PLC0415
    from leakbench.engine.memory import keep_freed_memory  # noqa: PLC0415
    from leakbench.execute import execute  # noqa: PLC0415
    from leakbench.storage.store import open_run  # noqa: PLC0415

    keep_freed_memory()
    torch.set_num_threads(task.threads)
    cell = prepare(task.request, task.data_dir, load=_kept())
    while True:
        try:
            with open_run(task.runs / cell.name, identity(cell, task.command), own=True, say=Reporter().say) as run:
                before = dict(run.manifest["phases"])
                execute(cell, run, lambda *_: None)
                fresh = run.manifest["phases"] != before  # Where nothing is to be done, no phase takes time.
            return TaskOutcome(task.key, "done", hash=cell.hash, run=cell.name, fresh=fresh)
        except BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


@cache
def _kept() -> KeptData:
    """Return this process's own memory of the data set that its last cell was of."""
    from leakbench.data.kept import KeptData  # noqa: PLC0415

    return KeptData()


def _line(text: str) -> str:
    return " ".join(text.split())
