"""The standard deviation of the noise in a leaked update, as an adaptive attacker computes it from the defense's recipe."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from leakbench.attack.undo import augmented_public
from leakbench.cell import Cell, leak_clock, leak_federation, random_at
from leakbench.core.rng import generator
from leakbench.core.types import Fact, Network
from leakbench.defense import FactProbe, facts_at
from leakbench.defense.augmentation import copies_of, is_random
from leakbench.defense.transform import stations_before
from leakbench.federated.optimizer import linear_steps
from leakbench.federated.view import View

__all__ = ["aware", "leak_facts", "noise_std"]

NO_NOISE = "none: no noise"
BY_QUOTIENT = (
    "none: clients step by Adam, which divides a noisy gradient by its own size, so that the noise does not just add up"
)


def leak_facts(cell: Cell, network: Network, round_number: int) -> dict[str, tuple[Fact, ...]]:
    """Return the facts of each station for the network that leaks after `round_number` rounds; see `facts_at`."""
    probe = FactProbe(network, cell.data.shape, cell.data.outputs, leak_federation(cell))
    return facts_at(cell.defense, probe, leak_clock(cell, round_number))


def noise_std(
    done: Mapping[str, tuple[Fact, ...]],
    tap: str,
    batch: int,
    cohort: int,
    steps: int,
    rate: float,
    client_optimizer: str = "sgd",
    length: float | None = None,
) -> float | str:
    """Return the standard deviation of the noise on each coordinate of the update, in the units of `leak`, or why it has none.

    Args:
        done: {station: facts}.
        tap: Leakage point.
        batch: Number of examples in a batch.
        cohort: Number of clients in the update.
        steps: Number of local iterations.
        rate: Learning rate.
        client_optimizer: Optimizer of the clients; noise before Adam's quotient does not add up after it.
        length: Number of plain steps as long as the local iterations, see `LinearSteps.length`; None for `steps`.
    """
    variance = 0.0
    for station in stations_before(tap):
        for fact in done[station]:
            if fact.kind in ("noise", "uncalibrated_noise"):
                if fact.std == 0:
                    continue
                if client_optimizer != "sgd" and tap != "type-2" and station in ("example", "batch"):
                    return BY_QUOTIENT
                if steps > 1 and tap != "type-2" and station in ("example", "batch"):
                    return (
                        "none: the noise of one local iteration moves the model of the next, so it does not just add up"
                    )
                variance += (fact.std * _share(station, fact.each, tap, batch, cohort, (length or steps) * rate)) ** 2
            elif variance and not fact.keeps_noise:
                return f"none: something acts at the {station} station on what is noisy already"
            elif fact.kind == "scale" or (fact.kind == "other" and fact.reason):
                return f"none: {fact.reason or 'the noise depends on the data'}"
    return math.sqrt(variance) if variance else NO_NOISE


def _share(station: str, each: bool, tap: str, batch: int, cohort: int, length: float) -> float:
    """Return the factor from `Fact.std` of a station's noise to its standard deviation in the update."""
    clients = 1 / math.sqrt(cohort)
    if station == "example":
        alone = 1.0 if tap == "type-2" else 1 / math.sqrt(batch)
        return (alone if each else 1 / batch) * clients
    if station == "batch":
        return (1.0 if each else 1 / batch) * clients
    return (clients if station == "client" or each else 1 / cohort) / length


def aware(view: View, cell: Cell) -> View:
    """Return the view of an adaptive attacker, which runs the defense's deterministic part on a guess and knows the noise.

    Behind augmentations with random draws, the attacker reconstructs augmented examples, with augmented public examples as its
    prior, and then undoes the augmentations (`leakbench.attack.undo`).
    """
    knowledge = dataclasses.replace(view.knowledge, defense=True)
    done = leak_facts(cell, view.network, view.clock.round)
    inputs = cell.defense.inputs
    grid = (view.batch * copies_of(inputs), view.cohort, view.local_steps)
    length = linear_steps(view.clock, view.learning_rate, view.local_steps).length
    std = noise_std(done, view.tap, *grid, view.learning_rate, view.clock.client_optimizer, length)
    noise, unknown = (None, std) if isinstance(std, str) else (std, "")
    if unknown == NO_NOISE or (unknown and not random_at(cell, view.tap)):
        unknown = ""
    stations = dataclasses.replace(cell.defense.stations, inputs=tuple(a for a in inputs if not is_random(a)))
    if view.public is not None and any(map(is_random, inputs)):
        rng = generator(cell.settings.seed, "augmented public")
        public = augmented_public(tuple(filter(is_random, inputs)), view.public, view.classes, view.clock, rng)
        view = dataclasses.replace(view, public=public)
    return dataclasses.replace(view, stations=stations, noise=noise, unknown=unknown, knowledge=knowledge)
