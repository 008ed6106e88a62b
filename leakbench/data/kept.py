"""Loads a data set once for many cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.recipe import DatasetRecipe

__all__ = ["KeptData"]

Loaded: TypeAlias = tuple[str, DatasetRecipe, Dataset]


@dataclass
class KeptData:
    """`load_dataset` that caches the last set: the cells of a grid come one set after another, and a set may fill a gigabyte.

    Args:
        offline: Whether a set that is not on this machine is an error; else it is fetched.
    """

    offline: bool = False
    _cached: dict[tuple[str, Path | None, int | None], Loaded] = field(default_factory=dict, repr=False)

    def __call__(
        self, name_or_path: str, data_dir: Path | None = None, *, progress: Any = None, size: int | None = None
    ) -> Loaded:
        """Return (name, recipe, data) as `load_dataset` does."""
        key = (name_or_path, data_dir, size)
        if key not in self._cached:
            self._cached.clear()
            self._cached[key] = load_dataset(name_or_path, data_dir, self.offline, progress=progress, size=size)
        return self._cached[key]
