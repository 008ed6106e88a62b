"""Work for the engine tests: light, so that a worker starts at once; workers can import it by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from leakbench.study.task import Task, TaskOutcome


def tasks(folder: Path, count: int) -> list[Task]:
    """Return tasks whose keys are numbers, in a folder of the test."""
    return [Task(str(n), None, folder) for n in range(count)]  # type: ignore[arg-type]


def noted(task: Task) -> TaskOutcome:
    """Write a file with the worker's name."""
    threads = os.environ.get("OMP_NUM_THREADS")
    unread = task.runs / str(os.getpid())
    unread.write_text(f"{os.getpid()} {threads}")
    unread.rename(task.runs / f"{task.key}.{time.monotonic_ns()}")
    return TaskOutcome(task.key, "done", run=str(os.getpid()))


def killed_once(task: Task) -> TaskOutcome:
    """Kill the worker of task 1 at its first try."""
    once = task.runs / "killed"
    if task.key == "1" and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return noted(task)


def killed_always(task: Task) -> TaskOutcome:
    """Kill the worker of task 1."""
    if task.key == "1":
        noted(task)
        os.kill(os.getpid(), signal.SIGKILL)
    return noted(task)


def endless(task: Task) -> TaskOutcome:
    """Write a file, and never return."""
    noted(task)
    time.sleep(600)
    return TaskOutcome(task.key, "done")


def nested(task: Task) -> TaskOutcome:
    """Start a sweep within a sweep."""
    from leakbench.core.errors import InputError  # noqa: PLC0415
    from leakbench.study.workers import refuse_inside  # noqa: PLC0415

    try:
        refuse_inside()
    except InputError as error:
        return TaskOutcome(task.key, "failed", error=str(error))
    return TaskOutcome(task.key, "done")


def gcs(task: Task) -> TaskOutcome:
    """Return the Ray head of this worker."""
    import ray  # noqa: PLC0415

    return TaskOutcome(task.key, "done", run=ray.get_runtime_context().gcs_address)
