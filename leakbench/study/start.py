"""From the cells of a grid to tasks of an engine: where they compute, and which folders their workers find."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from leakbench.errors import InputError
from leakbench.study.grid import Asked, Grid
from leakbench.study.task import Task

__all__ = ["tasks_of"]


class HasPlaces(Protocol):
    """What an engine says of the places of its cells."""

    @property
    def threads(self) -> int:
        """Of each cell."""

    @property
    def gpus_per_cell(self) -> float:
        """0 for none."""


def tasks_of(grid: Grid, engine: HasPlaces, runs: Path, data_dir: Path | None, command: str) -> Callable[[Asked], Task]:
    """Return what makes a task of a cell of the grid.

    Folders are made absolute, as workers have working folders of their own.  Raises InputError for cells that ask for a GPU where
    none is set apart, or the other way round.
    """
    for cell in grid.cells:
        on_gpu = cell.request.device.startswith("cuda")
        if on_gpu and not engine.gpus_per_cell:
            raise InputError(
                f"{grid.path}: cell {cell.name!r}: device: got {cell.request.device!r}; add --gpus-per-cell"
            )
        if engine.gpus_per_cell and not on_gpu:
            raise InputError(
                f"gpus-per-cell: got {engine.gpus_per_cell:g}, but cell {cell.name!r} of {grid.path} computes on"
                f" {cell.request.device!r}"
            )
    told = data_dir or (Path(os.environ["LEAKBENCH_DATA"]) if os.environ.get("LEAKBENCH_DATA") else None)
    data, folder = told and told.resolve(), runs.resolve()
    return lambda cell: Task(cell.key, cell.request, folder, data, engine.threads, command)
