"""Several observations of one release: views that differ only in the random numbers of the defense."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from torch import Tensor

from leakbench.core.types import Parameters
from leakbench.defense.guess import Chooses
from leakbench.defense.transform import Stations
from leakbench.engine.budget import ALL_CACHES, lanes_within
from leakbench.engine.side_by_side import Pieces
from leakbench.federated.client import runs_apart
from leakbench.federated.view import View

__all__ = ["averaged", "chooses", "cut_of", "releases", "responses", "unchanging"]


def releases(views: tuple[View, ...]) -> tuple[tuple[View, ...], ...]:
    """Group consecutive views that are observations of the same release; the order stays."""
    cuts = [i for i, (one, next_) in enumerate(pairwise(views), 1) if not _same(one, next_)]
    return tuple(views[a:b] for a, b in pairwise((0, *cuts, len(views))))


def _same(one: View, other: View) -> bool:
    each = [(v.tap, v.clock, v.examples, v.stations, v.noise) for v in (one, other)]
    # The mean of several observations does not show what a stochastic network drew for each of them.
    return one.network is other.network and each[0] == each[1] and not one.reads_draws


def averaged(views: tuple[View, ...]) -> tuple[tuple[View, int], ...]:
    """Return a view of the mean update of each release, with the number n of its observations.

    The mean is sufficient for n observations y_i with independent noise of deviation s: sum |y_i - g|^2 = n |mean - g|^2 plus a
    term that does not depend on the guess g. The noise of the mean is s / sqrt(n).

    Returns:
        Pairs (view, n). A release with one observation keeps its view.
    """
    return tuple((_mean(observations), len(observations)) for observations in releases(views))


def _mean(observations: tuple[View, ...]) -> View:
    first, *others = observations
    if not others:
        return first
    update = {n: u.clone() for n, u in first.update.items()}
    for view in others:
        for name, u in view.update.items():
            update[name] += u
    noise = None if first.noise is None else first.noise / math.sqrt(len(observations))
    return replace(first, update={n: u / len(observations) for n, u in update.items()}, noise=noise)


def chooses(stations: Stations) -> bool:
    """Return whether a station chooses the coordinates to send, by a choice that each observation shows and that can differ."""
    return any(isinstance(transform, Chooses) for transform in stations.transforms)


def cut_of(views: tuple[View, ...]) -> Pieces:
    """Return how to cut the victims' searches into chunks for threads, by the memory that one victim's gradient takes.

    Nothing is cut if threads cannot share the views: if the network's own code runs, whose parameters are swapped during a call,
    or on a GPU.
    """
    if any(not runs_apart(v.network, v.stations, v.shape) for v in views):
        return Pieces(None)
    view = views[0]
    numbers = sum(u[0].numel() for u in view.update.values()) + view.examples * math.prod(view.shape)
    return Pieces(lanes_within(ALL_CACHES, 4 * numbers))


def unchanging(views: tuple[View, ...]) -> tuple[Tensor, ...] | None:
    """Return `changing` of a search whose value depends on its arguments alone: (), but None for the reference engine."""
    return () if all(v.network.engine == "fast" for v in views) else None


def responses(
    views: tuple[View, ...], inputs: Tensor, targets: Tensor, victims: Tensor, hidden: Tensor | None = None
) -> Iterator[tuple[Parameters, View]]:
    """Yield each view with the update of a guess (`View.respond`), which is computed once per release.

    Args:
        views: Views of V victims.
        inputs: Guessed inputs (n, M, *s).
        targets: Guessed labels (n, M, classes).
        victims: Positions (n,) of the victims in the views.
        hidden: Guessed private numbers (n, h) of the defense, for one observation; None for none.
    """
    for observations in releases(views):
        alike = not chooses(observations[0].stations)
        guess: Parameters | None = None
        for view in observations:
            if guess is None or not alike:
                guess = view.respond(inputs, targets, victims, by_what_leaked=True, hidden=hidden)
            yield guess, view
