"""Slot `stop`: when a search ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field
from torch import Tensor

from leakbench.core.part import part
from leakbench.core.recipe import Slot
from leakbench.core.request import MOST_ITERATIONS

__all__ = [
    "STOP",
    "Iterations",
    "Stop",
    "Watched",
    "limited",
    "searches_of",
    "watched",
    "with_searches",
]


@runtime_checkable
class Stop(Protocol):
    """Decides which victims' searches end."""

    @property
    def limit(self) -> int:
        """Largest number of iterations of a search."""

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return (V,) bool, which searches end after iteration number `iteration`, given the latest distances (V,)."""


@part("stop.iterations")
class Iterations:
    """End after `limit` iterations (DLG and CPL: 300), or if a distance is no longer finite, because it cannot recover."""

    limit: Annotated[int, Field(ge=1, le=MOST_ITERATIONS, description="Largest number of iterations.")] = 300

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return (V,) bool, which searches end."""
        return ~values.isfinite() | (iteration >= self.limit)


def limited(method: Any, limit: int) -> Any:
    """Return a method whose searches, its own or those of its stages, take at most `limit` iterations; None if it has none."""
    if hasattr(method, "stop"):
        return dataclasses.replace(method, stop=dataclasses.replace(method.stop, limit=limit))
    if not _searches(method):
        return None
    return with_searches(method, [limited(search, limit) or search for search in searches_of(method)])


def searches_of(method: Any) -> tuple[Any, ...]:
    """Return the searches of a method: its stages, or the method itself."""
    return _searches(method) or (method,)


def _searches(method: Any) -> tuple[Any, ...]:
    """Return the methods of the stages, if at least one of them has a stop."""
    methods = tuple(stage.method for stage in getattr(method, "stages", ()))
    return methods if any(hasattr(search, "stop") for search in methods) else ()


def with_searches(method: Any, searches: Sequence[Any], order: Sequence[int] | None = None) -> Any:
    """Return the method with other searches in place of those of `searches_of`.

    Args:
        method: The method.
        searches: One search for each of `searches_of(method)`.
        order: Numbers of the searches, in the order in which they will run; None keeps the order.
    """
    if not _searches(method):
        return searches[0]
    stages = [dataclasses.replace(stage, method=s) for stage, s in zip(method.stages, searches, strict=True)]
    return dataclasses.replace(method, stages=tuple(stages[n] for n in order or range(len(stages))))


@dataclass(frozen=True)
class Watched:
    """A stop that decides as `stop` does and, after each iteration except the last, calls `tell` with the share that is done."""

    stop: Stop
    tell: Callable[[float], None]

    @property
    def limit(self) -> int:
        """The limit of `stop`."""
        return self.stop.limit

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return (V,) bool, which searches end."""
        if iteration < self.limit:
            self.tell(iteration / self.limit)
        return self.stop(iteration, values)


def watched(method: Any, tell: Callable[[float], None] | None, work: Sequence[float] | None = None) -> Any:
    """Return a method with the same results that reports the progress of its searches; unchanged if it has no stop.

    Args:
        method: The method.
        tell: Called with the share of all iterations that is done, in (0, 1). None: no reports.
        work: Weights of the searches in the progress; None for equal weights.
    """

    if hasattr(method, "stop"):
        stop = method.stop.stop if isinstance(method.stop, Watched) else method.stop
        return dataclasses.replace(method, stop=stop if tell is None else Watched(stop, tell))
    several = _searches(method)
    counts = [1.0] * len(several) if work is None or not sum(work) else list(work)

    def of_stage(number: int) -> Callable[[float], None] | None:
        if tell is None:
            return None
        before = sum(counts[:number])
        return lambda share: tell((before + counts[number] * share) / sum(counts))

    return with_searches(method, [watched(s, of_stage(n)) for n, s in enumerate(several)]) if several else method


STOP = Slot("stop", ("leakbench.attack.slots",))
