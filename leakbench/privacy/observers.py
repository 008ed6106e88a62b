"""Who sees what: the mechanism that each observer of a federation is up against, for one unit of a defense.

An epsilon belongs to an observer, because sampling amplifies only against those who cannot see it. `global` sees
released models; `type-2` one example's gradient after the example station; `type-1` a client's update after the client
station; `type-0` the same after the server station. Nobody drops out and all clients are honest, else their noise is
missing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from leakbench.privacy.accountants import Mechanism
from leakbench.privacy.ledger import Noise, Schedule, Unit, calibrated
from leakbench.types import Fact

__all__ = ["OBSERVERS", "Observation", "Release", "observations"]

OBSERVERS = ("global", "type-2", "type-1", "type-0")

GROWING = "the noise grows with the number drawn, which shows who was drawn, so q amplifies nothing"


@dataclass(frozen=True)
class Release:
    """What an observer sees of one unit, and the same as one sentence with its numbers and its adjacency."""

    mechanism: Mechanism
    sentence: str


Observation: TypeAlias = Release | str
"""A release, or why there is no guarantee."""


def observations(facts: Mapping[str, tuple[Fact, ...]], unit: Unit, schedule: Schedule) -> dict[str, Observation]:
    """Return {observer: what it sees of one unit}; `none: <reason>` where nothing is guaranteed."""
    if schedule.rounds == 0:
        return dict.fromkeys(OBSERVERS, "no round was trained")
    noises, why = calibrated(facts, unit, schedule.batch)
    if why:
        return dict.fromkeys(OBSERVERS, f"none: {why}")
    return _of_an_example(noises, schedule) if unit == "example" else _of_a_client(noises, schedule)


def _multiplier(noises: tuple[Noise, ...], std: Callable[[Noise], float]) -> float:
    """Return noise over bound: noises of one part add up in squares; of several parts the strongest stands alone."""
    squares: dict[int, float] = defaultdict(float)
    for noise in noises:
        squares[noise.part] += (std(noise) / noise.bound) ** 2
    return math.sqrt(max(squares.values()))


def _of_an_example(noises: tuple[Noise, ...], schedule: Schedule) -> dict[str, Observation]:
    # The draw of clients amplifies nothing here: who sees one client's update sees no more than is assumed anyway.
    update = _batches(noises, schedule)
    return {"global": update, "type-2": _one_gradient(noises, schedule), "type-1": update, "type-0": update}


def _batches(noises: tuple[Noise, ...], schedule: Schedule) -> Release:
    own = any(n.station == "example" and n.each for n in noises)
    visible = own and schedule.batch_sampling == "poisson"

    def on_the_sum(noise: Noise) -> float:
        if noise.station == "batch":
            return noise.std * (schedule.batch if noise.each else 1)
        several = noise.each and not noise.alone and not visible
        return noise.std * (math.sqrt(schedule.batch) if several else 1.0)

    sigma, taken = _multiplier(noises, on_the_sum), schedule.participations()
    what = f"noise of {sigma:.4g} times one example's bound on the sum of a batch"
    times = f"{taken} participations of a holder (copies: {schedule.copies:.4g}, at most {schedule.most_copies})"
    clients = "the draw of clients is not used as amplification"
    if schedule.batch_sampling == "split":
        steps = taken * schedule.passes()
        how = f"{times}, each using the example {schedule.passes()} time(s) from a fixed split (q=1)"
        return Release(Mechanism(sigma, 1.0, steps), f"{what}, {how}; zero-out adjacency; {clients}")
    steps, q = taken * schedule.local_iterations, schedule.example_rate
    many = f"{times} x {schedule.local_iterations} local iterations"
    if visible:
        how = f"{many}, Poisson batches with q={q:.4g}"
        seen = f"only the example's own noise counts; {GROWING}"
        return Release(Mechanism(sigma, q, steps, "visible"), f"{what}, {how}; zero-out adjacency; {seen}; {clients}")
    if schedule.batch_sampling == "fixed":
        how = f"{many}, batches of {schedule.batch} without replacement (q={q:.4g}); zero-out adjacency"
        return Release(Mechanism(sigma, q, steps, "fixed"), f"{what}, {how}; {clients}")
    how = f"{many}, Poisson batches with q={q:.4g}; add-or-remove adjacency"
    return Release(Mechanism(sigma, q, steps), f"{what}, {how}; {clients}")


def _one_gradient(noises: tuple[Noise, ...], schedule: Schedule) -> Observation:
    own = tuple(n for n in noises if n.station == "example" and n.each)
    if not own:
        return "none: noise is added after this tap, to the sum over a batch, not to one example's gradient"
    sigma, uses = _multiplier(own, lambda noise: noise.std), schedule.uses()
    sentence = (
        f"noise of {sigma:.4g} times the bound on the one example's gradient, seen in each of {uses} uses "
        "(expected, or the most that was counted), so nothing amplifies (q=1); zero-out adjacency"
    )
    return Release(Mechanism(sigma, 1.0, uses), sentence)


def _of_a_client(noises: tuple[Noise, ...], schedule: Schedule) -> dict[str, Observation]:
    at_client = tuple(n for n in noises if n.station == "client")
    if not at_client:
        trusts = "none: trusts the server"
        return {
            "global": _rounds(noises, schedule),
            "type-2": trusts,
            "type-1": trusts,
            "type-0": _update(noises, schedule),
        }
    return {
        "global": _rounds(noises, schedule),
        "type-2": "none: noise is added after this tap, to the client's whole update",
        "type-1": _update(at_client, schedule),
        "type-0": _update(noises, schedule),
    }


def _rounds(noises: tuple[Noise, ...], schedule: Schedule) -> Release:
    own = any(n.station == "client" or n.each for n in noises)
    visible = own and schedule.client_sampling == "poisson"

    def on_the_sum(noise: Noise) -> float:
        several = (noise.station == "client" or noise.each) and not noise.alone and not visible
        return noise.std * (math.sqrt(schedule.clients_per_round) if several else 1.0)

    sigma, q, cohort = _multiplier(noises, on_the_sum), schedule.client_rate, schedule.clients_per_round
    what = f"noise of {sigma:.4g} times one client's bound on the sum of {cohort} updates, {schedule.rounds} rounds"
    if visible:
        seen = f"only the client's own noise counts; {GROWING}"
        sentence = f"{what}, Poisson cohorts with q={q:.4g}; zero-out adjacency; {seen}"
        return Release(Mechanism(sigma, q, schedule.rounds, "visible"), sentence)
    honest = f"; counts on the noise of all {cohort} clients: honest, and nobody drops out" if own else ""
    if schedule.client_sampling == "fixed":
        sentence = f"{what}, cohorts drawn without replacement (q={q:.4g}); zero-out adjacency{honest}"
        return Release(Mechanism(sigma, q, schedule.rounds, "fixed"), sentence)
    return Release(
        Mechanism(sigma, q, schedule.rounds), f"{what}, Poisson cohorts with q={q:.4g}; add-or-remove adjacency{honest}"
    )


def _update(noises: tuple[Noise, ...], schedule: Schedule) -> Release:
    sigma = _multiplier(noises, lambda noise: noise.std)
    how = f"at most {schedule.rounds} rounds of one client, whose taking part is seen (q=1); zero-out adjacency"
    sentence = f"noise of {sigma:.4g} times the bound on one client's update, {how}"
    if any(n.station == "server" for n in noises):
        sentence += "; holds only for the update as the aggregate carries it, with the whole noise of the sum"
        sentence += ": a server that reads it on arrival is trusted"
    return Release(Mechanism(sigma, 1.0, schedule.rounds), sentence)
