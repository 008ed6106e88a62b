"""A limit on the gradient evaluations of an attack for each victim: the same numbers on every machine."""

from __future__ import annotations

from typing import Any

from torch import nn

from leakbench.attack.slots.descent import evaluations_each
from leakbench.attack.slots.stop import limited, searches_of, with_searches
from leakbench.errors import InputError

__all__ = ["most_evaluations", "restarts_of", "runs_on", "with_evaluations"]


def restarts_of(search: Any) -> int:
    """Return the number of searches for each victim that a method makes side by side."""
    return int(getattr(search, "restarts", 1))


def most_evaluations(search: Any, iterations: int | None = None) -> int:
    """Return the most gradient evaluations of one victim by a search.

    Args:
        iterations: Instead of its own limit.
    """
    limit = search.stop.limit if iterations is None else iterations
    # The last point of each restart is evaluated once more.
    return int(restarts_of(search) * (limit * evaluations_each(search.descent) + 1))


def runs_on(method: Any, number: int, model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether the search at a place in `searches_of` a method runs on a network for inputs of a shape (*s)."""
    stages = getattr(method, "stages", ())
    return not stages or bool(stages[number].runs_on(model, shape))


def with_evaluations(method: Any, most: int, model: nn.Module, shape: tuple[int, ...]) -> Any:
    """Return a method that takes at most `most` gradient evaluations of each victim, on a network for inputs of a shape (*s).

    The searches share them equally; what the shorter searches do not need goes to the longer ones. The share of a search does not
    depend on the victim, so that an answer does not depend on which victims are attacked together.

    Raises:
        InputError: For a method that does not search, and for fewer evaluations than one iteration of each search takes.
    """
    searches = searches_of(method)
    running = [n for n, s in enumerate(searches) if hasattr(s, "stop") and runs_on(method, n, model, shape)]
    if not running:
        raise InputError(
            f"evaluations: the attack's method {type(method).__name__} does not search, so that it takes none; leave it out"
        )
    running.sort(key=lambda n: most_evaluations(searches[n]))
    least = [most_evaluations(searches[n], 1) for n in running]
    if most < sum(least):
        raise InputError(
            f"evaluations: got {most}, expected at least {sum(least)}, which one iteration of each of the attack's"
            f" {len(least)} searches takes"
        )
    changed, left = list(searches), most
    for place, number in enumerate(running):
        search = searches[number]
        share = max(least[place], min(left // (len(running) - place), left - sum(least[place + 1 :])))
        iterations = min(search.stop.limit, (share // restarts_of(search) - 1) // evaluations_each(search.descent))
        left -= most_evaluations(search, iterations)
        changed[number] = limited(search, iterations)
    return with_searches(method, changed)
