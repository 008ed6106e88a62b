"""Several looks at one release: views that differ in nothing but in the random numbers of the defense."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from torch import Tensor

from leakbench.defense.guess import Chooses
from leakbench.defense.transform import Stations
from leakbench.engine.budget import ALL_CACHES, lanes_within
from leakbench.engine.side_by_side import Cut
from leakbench.federated.client import runs_apart
from leakbench.federated.view import View
from leakbench.types import Parameters

__all__ = ["averaged", "chooses", "cut_of", "releases", "responses"]


def releases(views: tuple[View, ...]) -> tuple[tuple[View, ...], ...]:
    """Return the views in their order, those that follow each other and are looks at one release side by side."""
    cuts = [i for i, (one, next_) in enumerate(pairwise(views), 1) if not _same(one, next_)]
    return tuple(views[a:b] for a, b in pairwise((0, *cuts, len(views))))


def _same(one: View, other: View) -> bool:
    shown = [(v.tap, v.clock, v.examples, v.stations, v.noise) for v in (one, other)]
    # Of looks that tell what a network drew for each, the mean tells nothing of the kind.
    return one.network is other.network and shown[0] == shown[1] and not one.reads_draws


def averaged(views: tuple[View, ...]) -> tuple[tuple[View, int], ...]:
    """Return (a view of the mean update, n) for each release that n of the views show; a single view stays as it is.

    Of n looks y_i with independent noise of deviation s the mean is sufficient: sum |y_i - g|^2 = n |mean - g|^2 and what does
    not depend on the guess g. Its noise is s / sqrt(n).
    """
    return tuple((_mean(looks), len(looks)) for looks in releases(views))


def _mean(looks: tuple[View, ...]) -> View:
    first, *others = looks
    if not others:
        return first
    update = {n: u.clone() for n, u in first.update.items()}
    for view in others:
        for name, u in view.update.items():
            update[name] += u
    noise = None if first.noise is None else first.noise / math.sqrt(len(looks))
    return replace(first, update={n: u / len(looks) for n, u in update.items()}, noise=noise)


def chooses(stations: Stations) -> bool:
    """Say whether the stations make a choice that differs from look to look and shows in each, as of coordinates to send."""
    return any(isinstance(transform, Chooses) for transform in stations.transforms)


def cut_of(views: tuple[View, ...]) -> Cut:
    """Return how the searches of the views' victims are cut into pieces for threads, by what a victim's gradient takes.

    Not at all where threads cannot share the views: where a network's own code runs (its parameters are swapped meanwhile), nor on
    a GPU.
    """
    if any(not runs_apart(v.network, v.stations, v.shape) for v in views):
        return Cut(None)
    view = views[0]
    numbers = sum(u[0].numel() for u in view.update.values()) + view.examples * math.prod(view.shape)
    return Cut(lanes_within(ALL_CACHES, 4 * numbers))


def responses(
    views: tuple[View, ...], inputs: Tensor, targets: Tensor, victims: Tensor
) -> Iterator[tuple[Parameters, View]]:
    """Yield each view with what a guess would have shown there (`View.respond`), worked out once for all looks at a release.

    inputs (n, M, *s) and targets (n, M, classes): the guess.  victims (n,): whose it is.
    """
    for looks in releases(views):
        alike = not chooses(looks[0].stations)
        guess: Parameters | None = None
        for view in looks:
            if guess is None or not alike:
                guess = view.respond(inputs, targets, victims, by_what_leaked=True)
            yield guess, view
