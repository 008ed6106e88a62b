"""A limit on the seconds of an attack: its searches share them, the cheapest first, and each answers with its best so far.

Which iteration is the last one depends on how fast the machine is. `leakbench.attack.evaluations` has the limit that repeats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from leakbench.attack.doubts import BUDGET
from leakbench.attack.evaluations import most_evaluations, restarts_of
from leakbench.attack.search.lbfgs import Late, never
from leakbench.attack.slots.pooling import Least
from leakbench.attack.slots.stop import Stop, Watched, searches_of, with_searches
from leakbench.federated.view import View
from leakbench.separations import Separations
from leakbench.types import Generators

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

Now: TypeAlias = Callable[[], float]
"""A clock, in seconds; only differences matter."""

TRIED = 3
"""Iterations of one evaluation each after which a search's speed is known; the first one also warms up."""

QUICK = 0.1
"""Largest share of the limit that trials on all victims together may take."""

TRYING = 0.15
"""Share of the limit within which searches are tried; another one then counts as slow as the slowest that was."""

PATIENCE = 0.02
"""Share of the limit after which a trial ends after its current iteration."""

READING = 0.5
"""Largest share of the limit for what the searches read first; see `Reads`."""


@dataclass(frozen=True)
class Until:
    """A moment at which something has to end.

    Args:
        now: The clock.
        end: The moment.
    """

    now: Now
    end: float

    def __call__(self) -> bool:
        """Return whether the moment has come."""
        return self.now() >= self.end

    def share(self, parts: int) -> Until:
        """Return the end of the first of so many equal parts of the time that is left."""
        now = self.now()
        return Until(self.now, now + max(0.0, self.end - now) / parts)


@runtime_checkable
class Reads(Protocol):
    """A search that first reads something of what leaked, which the views then keep for other searches."""

    def prepare(self, views: tuple[View, ...], rngs: Generators, until: Until) -> None:
        """Read it, until a moment at most."""


@dataclass
class Timed:
    """A stop that decides as `stop` does, and ends all searches when their share of the time is over.

    A search that begins takes at least one iteration. `AutoLeak` skips searches that would begin after the end, except the first,
    so that every victim gets an answer.

    Args:
        stop: The stop of the recipe.
        now: The clock.
        until: When all searches of the attack must have ended.
        later: Number of searches that follow this one; each gets an equal share of the time that is left.
        each: Predicted seconds of two evaluations of one victim's search: the next one, and the one of its last point.
        ends: When this search must have ended; `until` until `begun` sets its share.
        cut: The first iteration after which victims were stopped by the clock; None if no victim was.
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
        """Return whether another evaluation of so many searches side by side, and their last one, would not end in time."""
        return self.now() + self.each * searches > self.ends

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        """Return which victims' searches end: all of them if another evaluation would not end in time."""
        ended = self.stop(iteration, values)
        if bool(ended.all()) or not self.late(len(values)):
            return ended
        self.cut = iteration if self.cut is None else min(self.cut, iteration)
        return torch.ones_like(ended)


def begun(stop: Stop) -> Stop:
    """Return the stop for a search that starts now; only a stop with a clock changes."""
    if isinstance(stop, Watched):
        return dataclasses.replace(stop, stop=begun(stop.stop))
    return stop.begin() if isinstance(stop, Timed) else stop


def until_of(stop: Stop) -> Until | None:
    """Return when a search with a stop that has begun must end; None where no clock ends it."""
    inner = _unwatched(stop)
    return Until(inner.now, inner.ends) if isinstance(inner, Timed) else None


def late_of(stop: Stop) -> Late:
    """Return what tells a search with a stop that has begun whether its time is over within an iteration."""
    inner = _unwatched(stop)
    return inner.late if isinstance(inner, Timed) else never


def cut_short(stop: Stop, steps: Tensor) -> dict[str, Tensor]:
    """Return the doubt `BUDGET` for the victims whose search was ended by the clock, by their number of steps (V,).

    A victim that settled in the very iteration of the cut is counted as cut.
    """
    inner = _unwatched(stop)
    if not isinstance(inner, Timed):
        return {}
    return {BUDGET: torch.zeros_like(steps, dtype=torch.bool) if inner.cut is None else steps >= inner.cut}


@dataclass
class _Noted:
    """A stop that notes when each of a few iterations has ended; no other one begins after `until`."""

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
    """Return the seconds that one gradient evaluation of a search takes for each of the first `victims` side by side.

    The victims' generators stay as they are: the trial has its own. It takes at least one iteration, and none that would begin
    after `patience` seconds.
    """
    noted = _Noted(now, now() + patience)
    single: dict[str, Any] = {"restarts": 1, "pooling": Least()}
    changed: dict[str, Any] = {"stop": noted} | {name: v for name, v in single.items() if hasattr(search, name)}
    if hasattr(search.descent, "inner"):
        changed["descent"] = dataclasses.replace(search.descent, inner=1)
    brief = dataclasses.replace(search, **changed)
    began = now()
    views = tuple(dataclasses.replace(view, searches=None) for view in views)  # A trial is not one of the searches.
    rngs = tuple(torch.Generator().manual_seed(lane) for lane in range(victims))
    brief(tuple(view.of(torch.arange(victims)) for view in views), rngs)
    if len(noted.times) < 2:  # It settled at once.
        return (now() - began) / 2 / victims
    return (noted.times[-1] - noted.times[0]) / (len(noted.times) - 1) / victims


def search_costs(method: Any, views: tuple[View, ...], now: Now) -> list[float]:
    """Return the most seconds that each search of a method which runs on these views takes, in the order in which they run.

    Each is measured by a few evaluations of one victim. A search that first separates a batch is not tried, since that can take
    long: it counts as the dearest of the others, per evaluation.
    """
    running = [search for number, search in enumerate(searches_of(method)) if runs(method, number, search, views)]
    tried = [not (isinstance(search, Reads) and views[0].examples > 1) for search in running]
    each = [
        seconds_per_evaluation(search, views, 1, now) if known else 0.0
        for search, known in zip(running, tried, strict=True)
    ]
    dearest = max(each, default=0.0)
    costs = [cost if known else dearest for cost, known in zip(each, tried, strict=True)]
    return [cost * most_evaluations(search) * views[0].victims for cost, search in zip(costs, running, strict=True)]


def runs(method: Any, number: int, search: Any, views: tuple[View, ...]) -> bool:
    """Return whether the search at a place in `searches_of` a method searches, and runs on these views."""
    stages = getattr(method, "stages", ())
    return hasattr(search, "stop") and (not stages or bool(stages[number].applies(views[0])))


def most_work(method: Any, views: tuple[View, ...]) -> list[float]:
    """Return the most gradient evaluations of one victim by each search of a method; 0 for one that does not run on the views."""

    def most(search: Any) -> float:
        return float(most_evaluations(search) if hasattr(search, "descent") else search.stop.limit)

    return [most(s) if runs(method, number, s, views) else 0.0 for number, s in enumerate(searches_of(method))]


@dataclass(frozen=True)
class WithinSeconds:
    """An attack that ends its searches within `seconds` from the moment it is called.

    First the searches read what they need of what leaked, as batches that are separated, once for all of them and for at most the
    share `READING` of the seconds.

    Then it measures one evaluation of each search: of one victim, and where that is quick of all victims together. It calls
    `tell` with the seconds that one victim takes at most without a limit and at least with any. It runs stages in the order of
    their cost without a limit, and marks every victim whose search was stopped. Closed forms and fits are not stopped.

    Args:
        method: The attack.
        seconds: The limit.
        tell: Called once with (predicted seconds of one victim, its seconds for one iteration of every search, number of victims
            that the attack also tries for its own doubts).
        now: The clock.
    """

    method: Any
    seconds: float
    tell: Callable[[float, float, int], None]
    now: Now

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Any:
        """Answer as the method does, in time."""
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
        # The last point of a search is evaluated once more.
        single = [2 * cost * restarts_of(search) if cost else 0.0 for cost, search in zip(each, searches, strict=True)]
        self.tell(sum(costs), sum(single), getattr(self.method, "twins", 0))
        order = sorted(range(len(searches)), key=lambda number: costs[number])
        running = [number for number in order if each[number]]
        timed = list(searches)
        for place, number in enumerate(running):
            search = searches[number]
            stop = Timed(search.stop, self.now, until, len(running) - place - 1, single[number])
            # What watches a stop stays outside.
            timed[number] = dataclasses.replace(search, stop=_inside(search.stop, stop))
        return with_searches(self.method, timed, order)(views, rngs)

    def _each(self, number: int, search: Any, views: tuple[View, ...]) -> float:
        """Return the seconds of an evaluation; 0 for a method that does not search, and for one that does not run here."""
        if not runs(self.method, number, search, views):
            return 0.0
        patience, victims = PATIENCE * self.seconds, views[0].victims
        each = seconds_per_evaluation(search, views, 1, self.now, patience)
        # Many victims side by side take less than as many times one, but a trial must not take the time of the attack.
        if TRIED * each * victims * len(searches_of(self.method)) < self.seconds * QUICK:
            each = seconds_per_evaluation(search, views, victims, self.now, patience)
        # A clock may be too coarse to see an evaluation; a search is never free.
        return max(each, 1e-9)


def _unwatched(stop: Stop) -> Stop:
    """Return the stop behind all that watch it."""
    while isinstance(stop, Watched):
        stop = stop.stop
    return stop


def _inside(stop: Stop, timed: Timed) -> Stop:
    if not isinstance(stop, Watched):
        return timed
    return dataclasses.replace(stop, stop=dataclasses.replace(timed, stop=stop.stop))
