"""Slot `format`: reads the files of a set into a `Dataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from leakbench.core.recipe import Slot
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import Check
from leakbench.data.dataset import Dataset, Feature

__all__ = ["FORMAT", "SCALED_BY_TRAINING", "Dataset", "Feature", "Format", "ReadsAnySize"]


SCALED_BY_TRAINING = "The features are scaled by the range of the private training data"
"""What a format computes from private data that scales the columns of a table by the range of the training split."""


@runtime_checkable
class Format(Protocol):
    """Reads one kind of set and has the checksums of its files.

    A format whose result depends on the private training data as a whole says so in an attribute `private_preparation`: the
    start of a sentence, such as `SCALED_BY_TRAINING`. No epsilon covers this preparation, which is printed next to each.
    """

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare the files in `folder` (None for a set without files) with the checksums, without raising an error."""

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read and check the set, with an empty `name`; raises InputError for a file that is missing, damaged or unknown."""


@runtime_checkable
class ReadsAnySize(Protocol):
    """A format whose files have larger pictures than it reads."""

    def at(self, size: int) -> Format:
        """Return the format that reads pictures of height and width `size`; raises InputError for more than the files have."""


FORMAT = Slot("format", ("leakbench.data",))
