"""The engine `process`: workers on this machine, one process each; a killed worker is replaced."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from leakbench.study.task import Task, TaskOutcome, Work
from leakbench.study.work import measure
from leakbench.study.workers import INSIDE, RETRIES, in_flight

__all__ = ["ProcessEngine"]


@dataclass(frozen=True)
class ProcessEngine:
    """Measure tasks by `workers` processes.

    Args:
        threads: Threads of each worker, its OMP_NUM_THREADS.
        gpus_per_cell: The share of a GPU that a worker takes, 0 for none; `gpus` are shared among the workers in turn.
    """

    workers: int
    threads: int = 1
    gpus_per_cell: float = 0.0
    retries: int = RETRIES
    work: Work = measure

    def __call__(self, tasks: Iterable[Task]) -> Generator[TaskOutcome, None, None]:
        """Yield the outcome of each task as it ends."""
        each = int(1 / self.gpus_per_cell) if self.gpus_per_cell else 0
        crew = _ProcessCrew(
            [_Worker(self._environment(n // each if each else None), self.work) for n in range(self.workers)]
        )
        try:
            yield from in_flight(tasks, crew, self.workers, self.retries)
        finally:
            crew.close()

    def _environment(self, gpu: int | None) -> dict[str, str]:
        own = {INSIDE: "process", "OMP_NUM_THREADS": str(self.threads)}
        return own if gpu is None else {**own, "CUDA_VISIBLE_DEVICES": _visible(gpu)}


def _visible(gpu: int) -> str:
    """Return which GPU the one of this number is, among those that this process may see."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return told.split(",")[gpu] if told else str(gpu)


@dataclass
class _Worker:
    """A place for a process: the next one begins with the next task."""

    environment: Mapping[str, str]
    work: Work
    process: BaseProcess | None = None
    pipe: Connection | None = None
    task: Task | None = None

    def begin(self, task: Task) -> None:
        if self.process is None:
            spawn = multiprocessing.get_context("spawn")
            self.pipe, there = spawn.Pipe()
            self.process = spawn.Process(target=_serve, args=(there, self.work), name="leakbench sweep")
            with _environment(self.environment):
                self.process.start()
            there.close()
        self.task = task
        assert self.pipe is not None  # noqa: S101 - said to mypy; it holds by construction
        with contextlib.suppress(OSError):  # It died between two tasks, which the end of its pipe tells.
            self.pipe.send(task)

    def answer(self) -> tuple[Task, TaskOutcome | None]:
        """Return what came of the task; after a process that is lost the place is free for another."""
        assert self.task is not None  # noqa: S101 - said to mypy; it holds by construction
        assert self.pipe is not None  # noqa: S101 - said to mypy; it holds by construction
        task, self.task = self.task, None
        try:
            return task, self.pipe.recv()
        except (EOFError, OSError):
            self.end(0)
            return task, None

    def end(self, seconds: float) -> None:
        """Kill the process if it does not end in time."""
        if self.process is not None and self.pipe is not None:
            self.process.join(seconds)
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = self.pipe = self.task = None


@dataclass
class _ProcessCrew:
    workers: list[_Worker] = field(default_factory=list)

    def begin(self, task: Task) -> None:
        next(worker for worker in self.workers if worker.task is None).begin(task)

    def ended(self) -> list[tuple[Task, TaskOutcome | None]]:
        busy = {worker.pipe: worker for worker in self.workers if worker.task is not None and worker.pipe is not None}
        return [busy[pipe].answer() for pipe in wait(list(busy), 1.0)]  # type: ignore[index]

    def close(self) -> None:
        """End all processes: what they do is kept piece by piece."""
        for worker in self.workers:
            if worker.process is not None:
                worker.process.terminate()
        for worker in self.workers:
            worker.end(1.0)


@contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    """Change what a process that is started inherits: the environment, which OpenMP reads before anything of ours runs there.

    Ctrl-C and the end of a terminal reach a whole group of processes: they are blocked, so that the sweep alone decides.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _serve(pipe: Connection, work: Work) -> None:
    """Do the tasks that the pipe delivers until it ends."""
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(work(task))


def _end_with_the_sweep() -> None:
    """End this process as soon as its parent is gone, also by `kill -9`; else it would continue with its cell."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
