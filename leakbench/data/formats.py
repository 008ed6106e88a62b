"""The slot `format`: how the files of a set become a `Dataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import Check
from leakbench.data.dataset import Dataset, Feature
from leakbench.recipe import Slot

__all__ = ["FORMAT", "Dataset", "Feature", "Format"]


@runtime_checkable
class Format(Protocol):
    """Reads one kind of set and knows the checksums of its files."""

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare what lies in `folder` (None: nothing needs to) with the checksums; raises nothing."""

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read and check the set; `name` is left empty. Raises InputError for what is missing, damaged or unknown."""


FORMAT = Slot("format", ("leakbench.data",))
