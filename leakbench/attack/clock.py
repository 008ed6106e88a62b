"""A limit on the seconds of an attack: its searches share them, the cheapest first, and each returns its best point so far.

The number of iterations depends on the speed of the machine. The limit in `leakbench.attack.evaluations` does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.attack.doubts import BUDGET
from leakbench.attack.evaluations import most_evaluations, restarts_of
from leakbench.attack.search.lbfgs import Late, never
from leakbench.attack.slots.pooling import Least
from leakbench.attack.slots.stop import Stop, Watched, searches_of, with_searches
from leakbench.core.types import Generators
from leakbench.federated.searches import Now
from leakbench.federated.separations import Separations
from leakbench.federated.view import View

__all__ = [
    "Now",
    "Timed",
    "Until",
    "WithinSeconds",
    "begun",
    "cut_short",
    "late_of",
    "most_work",
    "search_costs",
    "seconds_per_evaluation",
    "until_of",
]

TRIED = 3
"""Number of iterations, with one evaluation each, of a trial of a search; the first also warms up."""

QUICK = 0.1
"""Largest share of the limit for trials on all victims together."""

TRYING = 0.15
"""Share of the limit in which searches are tried; a search that is not tried counts as slow as the slowest trial."""

PATIENCE = 0.02
"""Share of the limit after which a trial ends after its current iteration."""

READING = 0.5
"""Largest share of the limit for what the searches read before they start; see `Reads`."""


@dataclass(frozen=True)
class Until:
    """A moment at which a computation must end.

    Args:
        now: The clock.
        end: The moment, in seconds of the clock.
    """

    now: Now
    end: float

    def __call__(self) -> bool:
        """Return whether the moment has come."""
        return self.now() >= self.end

    def share(self, parts: int) -> Until:
        """Return the end of the first of `parts` equal parts of the time that is left."""
        now = self.now()
        return Until(self.now, now + max(0.0, self.end - now) / parts)


@runtime_checkable
class Reads(Protocol):
    """A search that first separates batches or reads features; the views then keep the results for other searches."""

    def prepare(self, views: tuple[View, ...], rngs: Generators, until: Until) -> None:
        """Read them until `until` at most."""


@dataclass
class Timed:
    """A stop that decides as `stop` does, and ends all searches when their share of the time is over.

    A search that has started takes at least one iteration. `AutoLeak` skips searches that would start after the end, except the
    first, so that every victim gets a reconstruction.

    Args:
        stop: The stop of the recipe.
        now: The clock.
        until: When all searches of the attack must have ended.
        later: Number of searches that follow this one; each gets an equal share of the time that is left.
        each: Predicted seconds of two evaluations for one victim: the next one, and the one of the last point.

    Attributes:
        ends: When this search must have ended; `until` before `begun` sets its share.
        cut: The first iteration after which the clock ended searches; None if it ended none.
    """

    stop: Stop
    now: Now
    until: float
    later: int = 0
    each: float = 0.0
    ends: float = field(default=0.0, init=False)
    cut: int | None = field(default=None, init=False)

    @property
    def limit(self) -> int:
        """The limit of `stop`."""
        return self.stop.limit

    def __post_init__(self) -> None:
        self.ends = self.until

    def begin(self) -> Timed:
        """Return this stop for a search that starts now."""
        fresh = dataclasses.replace(self)
        now = self.now()
        fresh.ends = now + (self.until - now) / (self.later + 1)
        return fresh

    def late(self, searches: int) -> bool:
        """Return whether another evaluation of so many searches at once, and their last evaluation, would end too late."""
        return self.now() + self.each * searches > self.ends

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return (V,) bool, which searches end: all of them if another evaluation would end too late."""
        ended = self.stop(iteration, values)
        if bool(ended.all()) or not self.late(len(values)):
            return ended
        self.cut = iteration if self.cut is None else min(self.cut, iteration)
        return torch.ones_like(ended)


def begun(stop: Stop) -> Stop:
    """Return the stop for a search that starts now; only stops with a clock change."""
    if isinstance(stop, Watched):
        return dataclasses.replace(stop, stop=begun(stop.stop))
    return stop.begin() if isinstance(stop, Timed) else stop


def until_of(stop: Stop) -> Until | None:
    """Return when a search must end, given its stop from `begun`; None if no clock ends it."""
    inner = _unwatched(stop)
    return Until(inner.now, inner.ends) if isinstance(inner, Timed) else None


def late_of(stop: Stop) -> Late:
    """Return the function that says whether no time is left within an iteration, given the stop from `begun`."""
    inner = _unwatched(stop)
    return inner.late if isinstance(inner, Timed) else never


def cut_short(stop: Stop, steps: Tensor) -> dict[str, Tensor]:
    """Return the doubt `BUDGET` for the victims whose search the clock ended.

    A victim whose search settled in the iteration of the cut also counts.

    Args:
        stop: The stop of the search.
        steps: Number of steps (V,) of each victim.

    Returns:
        {BUDGET: (V,) bool}; {} if no clock ends the search.
    """
    inner = _unwatched(stop)
    if not isinstance(inner, Timed):
        return {}
    return {BUDGET: torch.zeros_like(steps, dtype=torch.bool) if inner.cut is None else steps >= inner.cut}


@dataclass
class _Trial:
    """A stop that records the end of each of a few iterations; no further iteration starts after `until`."""

    now: Now
    until: float
    times: list[float] = field(default_factory=list)
    limit: int = TRIED

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        self.times.append(self.now())
        ended = iteration >= self.limit or self.times[-1] > self.until
        return torch.full_like(values, ended, dtype=torch.bool)


def seconds_per_evaluation(
    search: Any, views: tuple[View, ...], victims: int, now: Now, patience: float = float("inf")
) -> float:
    """Return the seconds per victim of one gradient evaluation of a search.

    The trial has its own generators, so that those of the victims do not change.

    Args:
        search: A method with a `stop` and a `descent`.
        views: Views of the victims.
        victims: Number of victims that are searched at once: the first ones.
        now: The clock.
        patience: Seconds after which no further iteration starts; the first always runs.
    """
    stop = _Trial(now, now() + patience)
    single: dict[str, Any] = {"restarts": 1, "pooling": Least()}
    changed: dict[str, Any] = {"stop": stop} | {name: v for name, v in single.items() if hasattr(search, name)}
    if hasattr(search.descent, "inner"):
        changed["descent"] = dataclasses.replace(search.descent, inner=1)
    brief = dataclasses.replace(search, **changed)
    began = now()
    views = tuple(dataclasses.replace(view, searches=None) for view in views)  # A trial is not one of the searches.
    rngs = tuple(torch.Generator().manual_seed(lane) for lane in range(victims))
    brief(tuple(view.of(torch.arange(victims)) for view in views), rngs)
    if len(stop.times) < 2:  # The search settled at once.
        return (now() - began) / 2 / victims
    return (stop.times[-1] - stop.times[0]) / (len(stop.times) - 1) / victims


def search_costs(method: Any, views: tuple[View, ...], now: Now) -> list[float]:
    """Return the largest number of seconds that each search of a method takes, in order, for the searches that run on the views.

    The costs are measured by a few evaluations for one victim. A search that first separates a batch is not tried, since that can
    take long: its evaluations count as the most expensive of the others.
    """
    running = [search for number, search in enumerate(searches_of(method)) if runs(method, number, search, views)]
    tried = [not (isinstance(search, Reads) and views[0].examples > 1) for search in running]
    each = [
        seconds_per_evaluation(search, views, 1, now) if known else 0.0
        for search, known in zip(running, tried, strict=True)
    ]
    highest = max(each, default=0.0)
    costs = [cost if known else highest for cost, known in zip(each, tried, strict=True)]
    return [cost * most_evaluations(search) * views[0].victims for cost, search in zip(costs, running, strict=True)]


def runs(method: Any, number: int, search: Any, views: tuple[View, ...]) -> bool:
    """Return whether the search at position `number` of `searches_of(method)` has a stop and runs on the views."""
    stages = getattr(method, "stages", ())
    return hasattr(search, "stop") and (not stages or bool(stages[number].applies(views[0])))


def most_work(method: Any, views: tuple[View, ...]) -> list[float]:
    """Return the largest number of gradient evaluations per victim of each search of a method; 0 for one that does not run here."""

    def most(search: Any) -> float:
        return float(most_evaluations(search) if hasattr(search, "descent") else search.stop.limit)

    return [most(s) if runs(method, number, s, views) else 0.0 for number, s in enumerate(searches_of(method))]


@dataclass(frozen=True)
class WithinSeconds:
    """An attack that ends its searches within `seconds` from the moment it is called.

    First, the searches separate batches and read features, once for all of them, for at most the share `READING` of the seconds.
    Then the attack measures one evaluation of each search, for one victim and, if that is fast, for all victims together. It runs
    stages in the order of their cost without a limit, and reports a doubt for every victim whose search the clock ended. Closed
    forms and fits are not ended.

    Args:
        method: The attack.
        seconds: The limit.
        tell: Called once with (predicted seconds for one victim without a limit, seconds for one iteration of every search, number
            of victims that the attack also tries for its own doubts).
        now: The clock.
    """

    method: Any
    seconds: float
    tell: Callable[[float, float, int], None]
    now: Now

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Any:
        """Return the method's result within the limit."""
        until = self.now() + self.seconds
        searches = searches_of(self.method)
        views = tuple(dataclasses.replace(view, separations=Separations(every=True)) for view in views)
        reading = Until(self.now, self.now() + READING * self.seconds)
        for number, search in enumerate(searches):
            if isinstance(search, Reads) and runs(self.method, number, search, views):
                search.prepare(views, rngs, reading)
        each, trying, longest = list[float](), self.now() + TRYING * self.seconds, 0.0
        for number, search in enumerate(searches):
            began = self.now()
            tried = not any(each) or began + longest <= trying
            slowest = max(each, default=0.0) if runs(self.method, number, search, views) else 0.0
            each.append(self._each(number, search, views) if tried else slowest)
            longest = max(longest, self.now() - began)
        costs = [cost * most_evaluations(search) if cost else 0.0 for cost, search in zip(each, searches, strict=True)]
        # A search evaluates its last point once more.
        single = [2 * cost * restarts_of(search) if cost else 0.0 for cost, search in zip(each, searches, strict=True)]
        self.tell(sum(costs), sum(single), getattr(self.method, "twins", 0))
        order = sorted(range(len(searches)), key=lambda number: costs[number])
        running = [number for number in order if each[number]]
        timed = list(searches)
        for place, number in enumerate(running):
            search = searches[number]
            stop = Timed(search.stop, self.now, until, len(running) - place - 1, single[number])
            # A `Watched` stop stays outside, so that it still reports the progress.
            timed[number] = dataclasses.replace(search, stop=_inside(search.stop, stop))
        return with_searches(self.method, timed, order)(views, rngs)

    def _each(self, number: int, search: Any, views: tuple[View, ...]) -> float:
        """Return the seconds of an evaluation; 0 for a method that does not search or does not run on the views."""
        if not runs(self.method, number, search, views):
            return 0.0
        patience, victims = PATIENCE * self.seconds, views[0].victims
        each = seconds_per_evaluation(search, views, 1, self.now, patience)
        # Many victims at once take less time than one by one, but a trial must not use up the time of the attack.
        if TRIED * each * victims * len(searches_of(self.method)) < self.seconds * QUICK:
            each = seconds_per_evaluation(search, views, victims, self.now, patience)
        # A coarse clock can measure 0 for an evaluation, which would mean that the search does not run.
        return max(each, 1e-9)


def _unwatched(stop: Stop) -> Stop:
    """Return the stop inside all `Watched` stops."""
    while isinstance(stop, Watched):
        stop = stop.stop
    return stop


def _inside(stop: Stop, timed: Timed) -> Stop:
    if not isinstance(stop, Watched):
        return timed
    return dataclasses.replace(stop, stop=dataclasses.replace(timed, stop=stop.stop))
