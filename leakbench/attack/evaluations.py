"""A limit on the gradient evaluations of each victim. Unlike a limit on seconds, it gives the same numbers on every machine."""

from __future__ import annotations

from typing import Any

from torch import nn

from leakbench.attack.slots.descent import evaluations_each
from leakbench.attack.slots.stop import limited, searches_of, with_searches
from leakbench.core.errors import InputError

__all__ = ["most_evaluations", "restarts_of", "runs_on", "with_evaluations"]


def restarts_of(search: Any) -> int:
    """Return the number of restarts per victim, which a search runs side by side."""
    return int(getattr(search, "restarts", 1))


def most_evaluations(search: Any, iterations: int | None = None) -> int:
    """Return the largest number of gradient evaluations per victim that a search can make.

    Args:
        search: A method with a `stop` and a `descent`.
        iterations: Limit on iterations; None for the limit of the search's stop.
    """
    limit = search.stop.limit if iterations is None else iterations
    # Evaluations between the steps, such as those of rearranged texts.
    between = search.between(limit) if hasattr(search, "between") else 0
    # The search evaluates the last point of each restart once more.
    return int(restarts_of(search) * (limit * evaluations_each(search.descent) + 1 + between))


def runs_on(method: Any, number: int, model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether the search at position `number` of `searches_of(method)` runs on a network for inputs of shape (*s)."""
    stages = getattr(method, "stages", ())
    return not stages or bool(stages[number].runs_on(model, shape))


def with_evaluations(method: Any, most: int, model: nn.Module, shape: tuple[int, ...]) -> Any:
    """Return the method with at most `most` gradient evaluations per victim.

    The searches get equal shares. What a short search does not need goes to the longer ones. A share does not depend on the
    victim, so that a reconstruction does not depend on which victims are attacked together.

    Args:
        method: A method, or an ensemble with stages.
        most: Number of gradient evaluations per victim, over all searches.
        model: The attacked network.
        shape: Shape (*s) of one input.

    Raises:
        InputError: If the method does not search, or if one iteration of each search takes more evaluations.
    """
    searches = searches_of(method)
    running = [n for n, s in enumerate(searches) if hasattr(s, "stop") and runs_on(method, n, model, shape)]
    if not running:
        raise InputError(
            f"evaluations: got {most}, but the attack does not search, so that it has no evaluations; leave it out"
        )
    running.sort(key=lambda n: most_evaluations(searches[n]))
    least = [most_evaluations(searches[n], 1) for n in running]
    if most < sum(least):
        searching = "the attack's search" if len(least) == 1 else f"each of the attack's {len(least)} searches"
        raise InputError(
            f"evaluations: got {most}, expected at least {sum(least)}, which one iteration of {searching} takes"
        )
    changed, left = list(searches), most
    for place, number in enumerate(running):
        search = searches[number]
        share = max(least[place], min(left // (len(running) - place), left - sum(least[place + 1 :])))
        iterations = min(search.stop.limit, (share // restarts_of(search) - 1) // evaluations_each(search.descent))
        while most_evaluations(search, iterations) > share:
            iterations -= 1
        left -= most_evaluations(search, iterations)
        changed[number] = limited(search, iterations)
    return with_searches(method, changed)
