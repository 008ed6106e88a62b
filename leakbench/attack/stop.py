"""Slot `stop`: when a search ends."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from leakbench.types import Count, part

__all__ = ["STOPS", "Iterations", "Stop"]


@runtime_checkable
class Stop(Protocol):
    """Decides which victims' searches end."""

    @property
    def limit(self) -> int:
        """The most iterations that any search may take."""

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return (V,) bool after that many iterations, given the latest distances (V,)."""


@part
class Iterations:
    """End after `limit` iterations (DLG and CPL: 300), or as soon as a distance is no longer finite: it cannot recover."""

    limit: Count = 300

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return who ends."""
        return ~values.isfinite() | (iteration >= self.limit)


STOPS: dict[str, type[Stop]] = {"iterations": Iterations}
