"""Slot `stop`: when a search ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field
from torch import Tensor

from leakbench.part import part

__all__ = ["MOST_ITERATIONS", "STOPS", "Iterations", "Stop", "Watched", "limited", "searches_of", "watched"]

MOST_ITERATIONS = 1_000_000
"""Of each the distance is kept."""


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

    limit: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] = 300

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return who ends."""
        return ~values.isfinite() | (iteration >= self.limit)


def limited(method: Any, limit: int) -> Any:
    """Return a method whose searches, its own or those of its stages, take at most `limit` iterations; None where it has none."""
    if hasattr(method, "stop"):
        return dataclasses.replace(method, stop=dataclasses.replace(method.stop, limit=limit))
    several = _searches(method)
    if not several:
        return None
    shorter = {name: tuple(limited(stage, limit) or stage for stage in stages) for name, stages in several.items()}
    return dataclasses.replace(method, **shorter)


def searches_of(method: Any) -> tuple[Any, ...]:
    """Return the searches that a method is made of: its stages, or itself."""
    return tuple(stage for stages in _searches(method).values() for stage in stages) or (method,)


def _searches(method: Any) -> dict[str, tuple[Any, ...]]:
    """Return {field: stages} of a method that is made of several, of which one at least has a stop."""
    fields = {name: getattr(method, name, ()) for name in ("stages", "where_kinked")}
    return fields if any(hasattr(stage, "stop") for stages in fields.values() for stage in stages) else {}


@dataclass(frozen=True)
class Watched:
    """A stop that decides as `stop` does and tells after each iteration but the last which share of the limit is taken."""

    stop: Stop
    tell: Callable[[float], None]

    @property
    def limit(self) -> int:
        """That of `stop`."""
        return self.stop.limit

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return who ends."""
        if iteration < self.limit:
            self.tell(iteration / self.limit)
        return self.stop(iteration, values)


def watched(method: Any, tell: Callable[[float], None] | None) -> Any:
    """Return a method that answers the same and tells how far its searches are; as it is where it searches by no iterations.

    tell: of the share of the most iterations, in (0, 1); of several stages each counts for the same share.  None: tell nobody.
    """
    if hasattr(method, "stop"):
        stop = method.stop.stop if isinstance(method.stop, Watched) else method.stop
        return dataclasses.replace(method, stop=stop if tell is None else Watched(stop, tell))
    several = _searches(method)
    count = sum(map(len, several.values()))
    numbers = iter(range(count))

    def of_stage(number: int) -> Callable[[float], None] | None:
        return None if tell is None else lambda share: tell((number + share) / count)

    told = {name: tuple(watched(s, of_stage(next(numbers))) for s in stages) for name, stages in several.items()}
    return dataclasses.replace(method, **told) if told else method


STOPS: dict[str, type[Stop]] = {"iterations": Iterations}
