"""The arrays of a run that may be stored or shown if examples and reconstructions may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["without_pictures"]

T = TypeVar("T")

SCORES = ("trajectory",)
"""Last word of the names of arrays without examples and reconstructions; all other arrays are removed."""


def without_pictures(arrays: Mapping[str, T]) -> dict[str, T]:
    """Return the arrays of {name: array} without examples and reconstructions."""
    return {name: array for name, array in arrays.items() if name.rpartition(".")[2] in SCORES}
