"""What of a run's arrays is kept or shown where no example and no reconstruction may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["without_pictures"]

T = TypeVar("T")

SCORES = ("trajectory",)
"""The last word of the names of arrays in which there is nothing of an example; any other is taken for one that has."""


def without_pictures(arrays: Mapping[str, T]) -> dict[str, T]:
    """Return those of {name: array} in which there is nothing of an example."""
    return {name: array for name, array in arrays.items() if name.rpartition(".")[2] in SCORES}
