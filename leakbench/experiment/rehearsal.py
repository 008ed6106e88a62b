"""A short rehearsal of the attack before a federation is trained, so that errors appear at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from leakbench.attack.fit_store import FitStore, fit_folder
from leakbench.attack.isolation import answered
from leakbench.attack.looks import averaged
from leakbench.attack.recipe import Method
from leakbench.attack.slots.stop import limited
from leakbench.cell import Cell
from leakbench.core.progress import unticked
from leakbench.core.rng import generators
from leakbench.core.types import Generators
from leakbench.data.partition import Partition
from leakbench.engine.room import Room
from leakbench.experiment.stage_attack import LOWER
from leakbench.experiment.victims import Sent, Victims, candidates, draw_victims, views_of
from leakbench.federated.view import View

__all__ = ["refuse_views", "rehearse"]

FEW = 4
"""Number of candidates of a rehearsed ranking."""


def rehearse(
    cell: Cell, partition: Partition, sent: Callable[[str], Sent], tick: Callable[[], None] = unticked
) -> None:
    """Run the attack for one victim of every leakage point and one iteration.

    Args:
        sent: Maps a leakage point to the network at its first weights, which replaces the networks of all rounds.
        tick: Called after each gradient evaluation.

    Raises:
        InputError: If the attack fails.
    """
    method, fits = _short(cell.attack.method), FitStore(fit_folder())
    for tap in cell.settings.taps:
        victims = draw_victims(cell, tap, 0, partition)
        views = tuple(v for number in cell.settings.leaks[0] for v in _views(cell, tap, number, victims, sent(tap)))
        views = tuple(dataclasses.replace(view, fits=fits, tick=lambda *_: tick()) for view in views)
        rngs = generators(cell.settings.seed, "rehearsal", [(0, 0)])
        rehearsed = partial(_rehearsed, method, views, rngs)
        list(Room("victims", 1, LOWER)(slice(0, 1), rehearsed))  # Room turns a lack of memory into an InputError.


def refuse_views(cell: Cell, partition: Partition, sent: Callable[[str], Sent]) -> None:
    """Refuse an attack that cannot read what one of the leakage points shows, before the first of them is attacked.

    Args:
        sent: Maps a leakage point to the network at its first weights.

    Raises:
        InputError: The attack's own, for a view to which it does not apply.
    """
    method = cell.attack.method
    if not hasattr(method, "applies"):
        return
    for tap in cell.settings.taps:
        victims = draw_victims(cell, tap, 0, partition)
        views = _views(cell, tap, cell.settings.leaks[0][0], victims, sent(tap))
        if not method.applies(averaged(views)[0][0]):
            answered(_short(method), views, generators(cell.settings.seed, "rehearsal", [(0, 0)]))


def _rehearsed(method: Method, views: tuple[View, ...], rngs: Generators, lanes: slice) -> None:
    answered(method, views, rngs)


def _views(cell: Cell, tap: str, round_number: int, victims: Victims, sent: Sent) -> tuple[View, ...]:
    views = views_of(cell, tap, round_number, victims, torch.arange(1), sent)
    if not cell.attack.needs.candidates:
        return views
    shown, _ = candidates(cell, victims)
    few = dataclasses.replace(shown, inputs=shown.inputs[:FEW], labels=shown.labels[:FEW])
    return tuple(dataclasses.replace(view, candidates=few) for view in views)


def _short(method: Method) -> Method:
    """Return the method with one iteration, if it has a limit, and one epoch, if it trains."""
    short: Any = limited(method, 1) or method
    method = dataclasses.replace(short, epochs=1) if hasattr(short, "epochs") else short
    return method
