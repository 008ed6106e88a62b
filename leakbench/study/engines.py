"""The engines by their names, each with the places that were asked for; what this machine has not is refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import torch

from leakbench.cell import Request
from leakbench.cell.device import AUTO, device_of
from leakbench.core.errors import InputError
from leakbench.study.on_ray import RayEngine
from leakbench.study.on_submitit import SubmititEngine
from leakbench.study.process import ProcessEngine
from leakbench.study.task import Task
from leakbench.study.workers import ENGINES, LOCAL, Places, check_places

__all__ = ["ENGINES", "Placed", "Places", "Tasks", "engine_of", "tasks_by"]

Placed: TypeAlias = ProcessEngine | RayEngine | SubmititEngine
"""An engine with the places of its cells: `threads` of each, `gpus_per_cell`."""

Tasks: TypeAlias = Callable[[str, Request, str], Task]
"""Makes a task of a key, a request and the command that the manifest of its run says."""


def engine_of(name: str, places: Places, folder: Path) -> Placed:
    """Return an engine; raises InputError for a name that there is not, and for places that it cannot have.

    Args:
        folder: Of submitit's files.
    """
    check_places(name, places)
    if name == "ray":
        return RayEngine(places.address, places.workers, places.threads or 1, places.gpus_per_cell)
    if name == "submitit":
        return SubmititEngine(
            folder,
            places.workers or 16,
            places.threads or 1,
            places.gpus_per_cell,
            places.slurm,
            places.address == LOCAL,
        )
    return _process(places)


def tasks_by(
    engine: Placed, asked: Iterable[tuple[str, Request]], runs: Path, data_dir: Path | None, where: str = ""
) -> Tasks:
    """Return what makes a task of a request, with absolute folders, since workers have working folders of their own.

    Args:
        engine: Engine that runs the tasks.
        asked: Name and request of every cell that it will run.
        runs: Folder of the measured cells.
        data_dir: Folder of the data sets; None for LEAKBENCH_DATA, or the default.
        where: What an error begins with before the name of a cell, as the file of a grid.

    Raises:
        InputError: A cell computes on a GPU and the engine has none for it, or the other way round.
    """
    for name, request in asked:
        on_gpu = (
            device_of(request.device).type == "cuda" if request.device == AUTO else request.device.startswith("cuda")
        )
        if on_gpu and not engine.gpus_per_cell:
            raise InputError(f"{where}cell {name!r}: device: got {request.device!r}; add --gpus-per-cell")
        if engine.gpus_per_cell and not on_gpu:
            raise InputError(
                f"gpus-per-cell: got {engine.gpus_per_cell:g}, but {where}cell {name!r} computes on {request.device!r}"
            )
    told = data_dir or (Path(os.environ["LEAKBENCH_DATA"]) if os.environ.get("LEAKBENCH_DATA") else None)
    data, folder = told and told.resolve(), runs.resolve()
    return lambda key, request, command: Task(key, request, folder, data, engine.threads, command)


def _process(places: Places) -> ProcessEngine:
    """Return the engine of this machine: a worker a core, or as many as its GPUs hold."""
    cores, most = len(os.sched_getaffinity(0)), None
    if places.gpus_per_cell:
        gpus = torch.cuda.device_count()
        if not gpus:
            raise InputError(
                f"gpus-per-cell: got {places.gpus_per_cell:g}, but this machine has no GPU that CUDA finds"
            )
        most = gpus * int(1 / places.gpus_per_cell)
        if places.workers is not None and places.workers > most:
            raise InputError(
                f"workers: got {places.workers}, but {gpus} GPUs hold {most} at {places.gpus_per_cell:g} each"
            )
    workers = places.workers or most or max(1, cores // (places.threads or 1))
    return ProcessEngine(workers, places.threads or max(1, cores // workers), places.gpus_per_cell)
