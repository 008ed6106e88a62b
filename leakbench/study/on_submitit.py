"""The engine `submitit`: arrays of SLURM jobs, each with a share of the tasks; no daemon, only files and the scheduler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from leakbench.core.errors import InputError
from leakbench.storage.atomic import write_text
from leakbench.study.task import Task, TaskOutcome, Work, outcome_of
from leakbench.study.work import measure
from leakbench.study.workers import INSIDE, RETRIES, in_flight, needed

__all__ = ["SubmititEngine"]

EVERYTHING = 2**31
"""Tasks in flight: the scheduler's queue is the window."""

POLL = 1.0

ASKED = 4.0
"""Seconds in which the scheduler is to say what its nodes have."""


@dataclass(frozen=True)
class SubmititEngine:
    """Measure tasks by arrays of `workers` SLURM jobs, each one task after another.

    Args:
        folder: Folder of the outcomes and logs of jobs; every node must see it.
        slurm: {parameter of sbatch: value}, as partition, account, time.
        local: Processes of this machine in the scheduler's stead.
    """

    folder: Path
    workers: int = 16
    threads: int = 1
    gpus_per_cell: float = 0.0
    slurm: Mapping[str, Any] = field(default_factory=dict)
    local: bool = False
    retries: int = RETRIES
    work: Work = measure

    def __call__(self, tasks: Iterable[Task]) -> Generator[TaskOutcome, None, None]:
        """Yield the outcome of each task as it ends.

        Raises:
            InputError: SLURM or a requested GPU does not exist, or SLURM refuses a parameter.
        """
        submitit = needed("submitit")
        if not self.local and shutil.which("sbatch") is None:
            raise InputError(
                "engine: submitit found no SLURM on this machine (no sbatch on PATH); try --address local, or --engine process"
            )
        if self.gpus_per_cell:
            check_gpus(self.local)
        outcomes = self.folder / "outcomes"
        shutil.rmtree(outcomes, ignore_errors=True)
        outcomes.mkdir(parents=True)
        crew = _SubmititCrew(self._executor(submitit), outcomes, self.work, self.workers)
        try:
            yield from in_flight(tasks, crew, EVERYTHING, self.retries)
        finally:
            crew.close()

    def _executor(self, submitit: Any) -> Any:
        executor = submitit.AutoExecutor(folder=self.folder / "jobs", cluster="local" if self.local else "slurm")
        of_slurm = {} if self.local else {f"slurm_{name}": value for name, value in self.slurm.items()}
        gpus = {"gpus_per_node": 1} if self.gpus_per_cell and not self.local else {}
        try:
            executor.update_parameters(name="leakbench", cpus_per_task=self.threads, **gpus, **of_slurm)
        except (TypeError, ValueError, NameError) as error:
            raise InputError(f"slurm: {' '.join(str(error).split())}") from None
        return executor


def check_gpus(local: bool) -> None:
    """Raise InputError where no node of the scheduler has a GPU to give, else of this machine; one that does not say may have."""
    if local:
        import torch  # noqa: PLC0415

        if not torch.cuda.device_count():
            raise InputError("gpus-per-cell: this machine has no GPU that CUDA finds; leave --gpus-per-cell out")
        return
    try:
        line = ["sinfo", "--noheader", "--format=%G"]
        said = subprocess.run(line, check=False, capture_output=True, text=True, timeout=ASKED)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return
    if said.returncode == 0 and said.stdout.strip() and "gpu" not in said.stdout:
        raise InputError(
            "gpus-per-cell: SLURM has no node with a GPU (sinfo --format=%G names none); leave --gpus-per-cell out"
        )


@dataclass
class _SubmititCrew:
    executor: Any
    outcomes: Path
    work: Work
    workers: int
    _waiting: list[Task] = field(default_factory=list)
    _jobs: dict[Any, list[Task]] = field(default_factory=dict)
    _came_to: set[Any] = field(default_factory=set)

    def begin(self, task: Task) -> None:
        self._waiting.append(task)

    def ended(self) -> list[tuple[Task, TaskOutcome | None]]:
        self._submit()
        time.sleep(POLL)
        found = list[tuple[Task, TaskOutcome | None]]()
        for job in list(self._jobs):
            over = job.done()  # Asked before its files are looked for: what it wrote is then there.
            found += self._answered(job)
            if over and (left := self._jobs.pop(job)):
                # Tasks that it did not begin are not lost, unless it began none.
                begun = 1 if job in self._came_to else len(left)
                found += [(task, None) for task in left[:begun]]
                self._waiting += left[begun:]
        return found

    def _submit(self) -> None:
        """Submit what waits as one array, dealt in turns: neighbours in a grid take equally long."""
        shares = [share for n in range(self.workers) if (share := self._waiting[n :: self.workers])]
        self._waiting = []
        if shares:
            calls = [partial(_do_all, share, self.outcomes, self.work) for share in shares]
            with self.executor.batch():
                jobs = [self.executor.submit(call) for call in calls]
            self._jobs |= dict(zip(jobs, shares, strict=True))

    def _answered(self, job: Any) -> list[tuple[Task, TaskOutcome | None]]:
        there = {path.stem: path for path in self.outcomes.glob("*.json")}
        found = list[tuple[Task, TaskOutcome | None]]()
        for task in self._jobs[job]:
            if task.key in there:
                found.append((task, _read(there[task.key])))
                there[task.key].unlink()
        if found:
            self._came_to.add(job)
            answered = {task.key for task, _ in found}
            self._jobs[job] = [task for task in self._jobs[job] if task.key not in answered]
        return found

    def close(self) -> None:
        """Cancel the jobs that go on: what they do is kept piece by piece."""
        for job, left in self._jobs.items():
            if left:  # Else it is ending by itself.
                job.cancel(check=False)


def _do_all(tasks: list[Task], outcomes: Path, work: Work) -> None:
    """Do tasks one after another; the outcome of each is a file, which is complete or does not exist."""
    os.environ[INSIDE] = "submitit"
    for task in tasks:
        text = json.dumps(work(task).as_dict(), ensure_ascii=False)
        write_text(outcomes / f"{task.key}.json", text)


def _read(path: Path) -> TaskOutcome | None:
    """Return what came of a task; None where its file was damaged, as of one whose worker was lost."""
    try:
        return outcome_of(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError):
        return None
