"""What all engines share: tasks in flight, retries after a lost worker, signals, nesting, and optional packages."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from leakbench.core.errors import InputError, nearest
from leakbench.core.process import SIGNALS, Told
from leakbench.study.task import Task, TaskOutcome

__all__ = ["INSIDE", "RETRIES", "WINDOW", "check_installed", "in_flight", "listening", "needed", "refuse_inside"]

WINDOW = 64
"""Tasks in flight at least, where an engine has a queue: enough to keep its workers busy, and few to lose."""

RETRIES = 3
"""How often a task is begun again after its worker was lost."""


class Crew(Protocol):
    """Workers of an engine."""

    def begin(self, task: Task) -> None:
        """Hand a task to a worker, or to the queue before them."""

    def ended(self) -> list[tuple[Task, TaskOutcome | None]]:
        """Wait at most a second for tasks to end; a task whose worker was lost has the outcome None."""


def in_flight(tasks: Iterable[Task], crew: Crew, most: int, retries: int = RETRIES) -> Iterator[TaskOutcome]:
    """Yield the outcome of every task as it ends; at most `most` tasks are in flight."""
    source, again, lost, flying = iter(tasks), deque[Task](), Counter[str](), 0
    while True:
        while flying < most and (task := again.popleft() if again else next(source, None)) is not None:
            crew.begin(task)
            flying += 1
        if not flying:
            return
        for task, outcome in crew.ended():
            flying -= 1
            if outcome is not None:
                yield dataclasses.replace(outcome, tries=1 + lost[task.key])
                continue
            lost[task.key] += 1
            if lost[task.key] <= retries:
                again.append(task)
                continue
            tries = lost[task.key]
            yield TaskOutcome(task.key, "lost", error=f"its worker was lost each of {tries} times", tries=tries)


INSIDE = "LEAKBENCH_SWEEP_WORKER"
"""Set for the workers of a sweep, to the name of their engine.

An engine inside an engine would wait for places that its own sweep holds.
"""


def refuse_inside() -> None:
    """Raise InputError in a worker of a sweep, and in a task or an actor of Ray."""
    engine = os.environ.get(INSIDE)
    if engine is None and _in_ray():
        engine = "ray"
    if engine is not None:
        raise InputError(f"sweep: this is a worker of the engine {engine} already; start the sweep outside of it")


def _in_ray() -> bool:
    """Return whether this is a worker of Ray; a worker of Ray has imported it."""
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return False
    return ray.get_runtime_context().get_task_id() is not None


@contextmanager
def listening() -> Iterator[None]:
    """Raise KeyboardInterrupt for the first of the signals; one that is ignored, as SIGHUP by `nohup`, stays so.

    Enter it after an engine has started: Ray sets its own handler for SIGTERM.
    """
    told = Told()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, told)
    try:
        yield
    finally:
        for number, handler in heard.items():
            if not told.to_end:
                signal.signal(number, handler)


def check_installed(package: str) -> None:
    """Raise InputError where the package of the extra of this name is not installed; the package is not imported."""
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise _unusable(package, "is not installed")


def needed(package: str) -> Any:
    """Return the package of the extra of this name; raises InputError where it is not installed, or does not work."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == package
        why = "is not installed" if missing else f"cannot be imported ({error})"
        raise _unusable(package, why) from None


def _unusable(package: str, why: str) -> InputError:
    return InputError(f"engine: {package} {why}; pip install 'leakbench[{package}]'")


ENGINES = ("process", "ray", "submitit")

LOCAL = "local"
"""The address of submitit's own processes, for a trial without SLURM."""


@dataclass(frozen=True)
class Places:
    """How many cells there is room for: what a user asks of an engine; None where it decides.

    Args:
        workers: Cells side by side.
        threads: Threads of each cell.
        gpus_per_cell: In [0, 1], the share of a GPU that each takes.
    """

    address: str | None = None
    workers: int | None = None
    threads: int | None = None
    gpus_per_cell: float = 0.0
    slurm: Mapping[str, Any] = field(default_factory=dict)


def check_places(name: str, places: Places) -> None:
    """Raise InputError for an engine that does not exist, and for places that it cannot have; PyTorch is not imported."""
    if name not in ENGINES:
        raise InputError(f"engine: got {name!r}{nearest(name, ENGINES)}")
    if not 0 <= places.gpus_per_cell <= 1:
        raise InputError(f"gpus-per-cell: got {places.gpus_per_cell:g}, expected 0 to 1, since a cell computes on one")
    for option, value in (("workers", places.workers), ("threads-per-cell", places.threads)):
        if value is not None and value < 1:
            raise InputError(f"{option}: got {value}, expected at least 1")
    if places.slurm and name != "submitit":
        raise InputError(f"slurm: got it with --engine {name}; expected --engine submitit")
    if name == "submitit" and places.address not in (None, LOCAL):
        raise InputError(f"address: got {places.address!r}, expected 'local' or nothing with --engine submitit")
    if name == "process" and places.address is not None:
        raise InputError(f"address: got {places.address!r} with --engine process; expected --engine ray")
