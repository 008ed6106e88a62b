"""Releases of one client to each observer: the noisy sum of a round's updates, or the client's update."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from leakbench.core.words import epsilon_text
from leakbench.privacy.calibration import Noise
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.ledger import Schedule, Stretch
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.release import (
    GROWING,
    OBSERVERS,
    Guarded,
    Observation,
    Part,
    Released,
    drawn,
    in_blocks,
    multiplier,
    repeated,
    span,
)
from leakbench.privacy.shuffle import Shuffled

__all__ = ["REPLACEMENT", "of_a_client"]

Draw: TypeAlias = Literal["poisson", "fixed", "visible"]
"""How a cohort is drawn; `visible`: the observer sees which clients take part, so sampling does not amplify."""

Shares: TypeAlias = Callable[[Noise], int]
"""Noise -> the number of clients whose noise of this kind is in the sum for certain."""

TRUSTED: Observation = "none: trusts the server, whose correlated noise is the only one that counts"

OF_ONE_CLIENT = "noise of each client that is correlated over its own rounds is not accounted"
"""Such noise would gain nothing against an observer of all updates of a client.

Let A turn the client's updates into the sums whose error counts, with columns a_t, and let C^-1 z be the noise of the updates. For
contributions along a_t (a model has coordinates enough), sens(C) is at least |C U| for the rows U_t = a_t / |a_t|. By Cauchy and
Schwarz, |A C^-1| |C U| is at least tr(A U) = sum of |a_t|. A diagonal C with C_tt^2 = |a_t|, which is independent noise, has
exactly this error.
"""

TWO_ADJACENCIES = "some rounds bound a client's update and others the weights that it sends, which are two adjacencies"

REPLACEMENT = "replacement adjacency: the clip bounds the weights that a client sends, not its update"

OWN = "; counts the client's own noise only, and trusts neither the server nor other clients"


def of_a_client(guarded: tuple[Guarded, ...], schedule: Schedule) -> dict[str, Observation]:
    """Return {observer: the releases of one client}.

    Args:
        guarded: The last phase of each round, with at least one noise.
    """
    noises = [n for g in guarded for n in g.noises[-1]]
    if any((n.training or n.participation) and (n.station != "server" or n.each) for n in noises):
        return dict.fromkeys(OBSERVERS, f"none: {OF_ONE_CLIENT}")
    if len({n.replaced for n in noises}) > 1:
        return dict.fromkeys(OBSERVERS, f"none: {TWO_ADJACENCIES}")
    if any(n.training for n in noises):
        return _correlated(guarded, schedule)
    if any(n.participation for n in noises):
        return _banded(guarded, schedule)
    released = _rounds(guarded, schedule)
    arriving = (
        _summed(guarded, schedule) if schedule.secure_aggregation else _update(guarded, schedule, {"client", "server"})
    )
    at_client = [any(n.station == "client" for n in g.noises[-1]) for g in guarded]
    if not any(at_client):
        trusts = "none: trusts the server"
        return {"global": released, "type-2": trusts, "type-1": trusts, "type-0": arriving}
    update: Observation = _update(guarded, schedule, {"client"}) if all(at_client) else _trusting(at_client, guarded)
    if schedule.shuffled and all(at_client):
        arriving = _shuffled(arriving, guarded, schedule)
    return {
        "global": released,
        "type-2": "none: noise is added after this leakage point, to the client's whole update",
        "type-1": update,
        "type-0": arriving,
    }


def _shuffled(arriving: Released, guarded: tuple[Guarded, ...], schedule: Schedule) -> Released:
    """Return the releases of updates that arrive in a random order, if each client has noise of its own.

    Noise at the server comes later, and integer noise has a bound of its own: then shuffling changes nothing here.
    """
    noises = [n for g in guarded for n in g.noises[-1]]
    if any(n.station != "client" or n.integer for n in noises):
        return arriving
    if not schedule.complete:
        why = (
            "control variates connect the reports"
            if schedule.control_variates
            else "the number of reports in a round is random"
        )
        text = f"{arriving.sentence}; {why}, so that shuffling proves nothing"
        return dataclasses.replace(arriving, sentence=text)
    least = min(multiplier(g.noises[-1], lambda noise: noise.std) for g in guarded)
    reports = min(g.stretch.clients_per_round for g in guarded)
    return dataclasses.replace(arriving, shuffled=Shuffled(least, reports, _turns(guarded, schedule)))


def _correlated(guarded: tuple[Guarded, ...], schedule: Schedule) -> dict[str, Observation]:
    """Return the releases behind the server's correlated noise: all of a training together are one Gaussian mechanism.

    Other noise is not counted. The sums of all rounds, and so the updates at type-0, show no more than this mechanism.
    """
    noises = [[n for n in g.noises[-1] if n.training] for g in guarded]
    found = {(n.training / n.bound, n.training) for each in noises for n in each}
    # One round by itself has no other round of the client.
    separation = min(schedule.rounds, max(n.separation for each in noises for n in each))
    why = _broken(noises, guarded, len(found), separation, schedule)
    if why:
        return {**dict.fromkeys(("global", "type-0"), f"none: {why}"), "type-2": TRUSTED, "type-1": TRUSTED}
    sigma, _ = found.pop()
    one = (Mechanism(sigma, 1.0, 1),)
    rounds = schedule.rounds
    often = (
        f"a client that takes part at most once in any {separation} consecutive rounds"
        if separation > 1
        else "a client in any rounds"
    )
    sentence = (
        f"noise that is correlated over the rounds: all {rounds} releases together are one with noise of"
        f" {epsilon_text(sigma, '.4g')} times one client's bound, for {often}; {_adjacency(guarded)}"
    )
    arriving = Released((Part(rounds, one, one, one, 1),), sentence + _at_the_server(guarded, "sum"), "client")
    return {
        "global": Released(arriving.parts, sentence, "client"),
        "type-2": TRUSTED,
        "type-1": TRUSTED,
        "type-0": arriving,
    }


def _broken(
    noises: list[list[Noise]], guarded: tuple[Guarded, ...], scales: int, separation: int, schedule: Schedule
) -> str:
    """Return why noise that is correlated over the rounds proves nothing; empty if it does.

    Args:
        noises: The correlated noises of each stretch.
        scales: Number of different scales.
        separation: Least difference between two rounds of one client that the noise is for.
    """
    if not all(noises):
        first = next(g.stretch.first for g, each in zip(guarded, noises, strict=True) if not each)
        return f"round {first + 1} has no noise that is correlated with that of the others"
    if scales > 1:
        return "the scale of noise that is correlated over the rounds changes, so that rounds do not take back what was added"
    if separation > schedule.separation:
        once = f"its noise is for clients that take part once in {separation} consecutive rounds"
        return f"{once}, and these may take part more often"
    return ""


def _banded(guarded: tuple[Guarded, ...], schedule: Schedule) -> dict[str, Observation]:
    """Return the releases behind banded noise at the server: each round of a client as behind independent noise.

    Let C have b bands, and two rounds of a client be at least b apart. Its update of round t then changes the rows t ... t + b - 1
    of C x + z alone, by one column of C times the update, and no other of its updates changes them. Given all that was released
    before and the other clients' draws, these rows are one release of a Gaussian mechanism; they are sampled if the draw is hidden
    and independent of that of its other rounds (Choquette-Choo et al., NeurIPS 2023, Theorem 4). Other noise is not counted.
    """
    noises = [[n for n in g.noises[-1] if n.participation] for g in guarded]
    found = {(n.participation / n.bound, n.participation) for each in noises for n in each}
    # In one round by itself, no other round of the client shares its noise.
    separation = min(schedule.rounds, max(n.separation for each in noises for n in each))
    why = _broken(noises, guarded, len(found), separation, schedule)
    if why:
        return {**dict.fromkeys(("global", "type-0"), f"none: {why}"), "type-2": TRUSTED, "type-1": TRUSTED}
    alone = list[Guarded]()
    for g, each in zip(guarded, noises, strict=True):
        one = tuple(dataclasses.replace(n, std=n.participation) for n in each)
        first, rounds = g.stretch, g.stretch.rounds
        # The deviation of the rounds differs, but not that of the independent noise. Turns are counted over all of them together.
        if alone and (alone[-1].noises, alone[-1].stretch.clients_per_round) == ((one,), first.clients_per_round):
            first = alone.pop().stretch
            rounds += first.rounds
        alone.append(Guarded(dataclasses.replace(first, rounds=rounds), (one,)))
    released = _rounds(tuple(alone), schedule)
    arriving = (
        _summed(tuple(alone), schedule)
        if schedule.secure_aggregation
        else _update(tuple(alone), schedule, {"client", "server"})
    )
    if separation > 1:
        shared = f"noise that is correlated over {separation} rounds, of which a client is in at most one: in each of its rounds "
        released, arriving = (dataclasses.replace(s, sentence=shared + s.sentence) for s in (released, arriving))
    return {"global": released, "type-2": TRUSTED, "type-1": TRUSTED, "type-0": arriving}


def _trusting(at_client: list[bool], guarded: tuple[Guarded, ...]) -> str:
    first = guarded[at_client.index(False)].stretch.first + 1
    return f"none: trusts the server, from round {first} on"


def _on_the_sum(schedule: Schedule, cohort: int) -> Shares:
    # If the size of the cohort is random or clients fail, only the client's own noise is certain.
    certain = schedule.complete

    def shares(noise: Noise) -> int:
        return cohort if (noise.station == "client" or noise.each) and not noise.alone and certain else 1

    return shares


def _alone(noise: Noise) -> int:
    return 1


def _release(noises: tuple[Noise, ...], shares: Shares) -> Mechanism | DiscreteMechanism:
    """Return one release with these noises: Gaussian noises together, or one integer noise, to which any other only adds."""
    gaussian = tuple(n for n in noises if n.integer is None)
    found: list[Mechanism | DiscreteMechanism] = [
        DiscreteMechanism(n.integer, shares(n), 1.0, 1) for n in noises if n.integer
    ]
    if gaussian:
        sigma = multiplier(gaussian, lambda noise: noise.std * math.sqrt(shares(noise)))
        found.append(Mechanism(sigma, 1.0, 1))
    return max(found, key=lambda mechanism: mechanism.noise_multiplier)


def _replaced(guarded: tuple[Guarded, ...]) -> bool:
    return any(n.replaced for g in guarded for n in g.noises[-1])


def _adjacency(guarded: tuple[Guarded, ...]) -> str:
    return REPLACEMENT if _replaced(guarded) else "zero-out adjacency"


def _own(guarded: tuple[Guarded, ...]) -> bool:
    return any(n.station == "client" or n.each for g in guarded for n in g.noises[-1])


def _cohorts(guarded: tuple[Guarded, ...]) -> str:
    sizes = [g.stretch.clients_per_round for g in guarded]
    return f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"


def _parts(guarded: tuple[Guarded, ...], schedule: Schedule, draw: Draw) -> tuple[Part, ...]:
    """Return the releases of the sum of each round."""
    several = [_release(g.noises[-1], _on_the_sum(schedule, g.stretch.clients_per_round)) for g in guarded]
    return _of_rounds(several, guarded, schedule, draw)


def _of_rounds(
    several: Sequence[Mechanism | DiscreteMechanism], guarded: tuple[Guarded, ...], schedule: Schedule, draw: Draw
) -> tuple[Part, ...]:
    """Return the releases of all rounds.

    Args:
        several: The release in one round of each stretch.
    """
    pairs = [((one,), g.stretch) for one, g in zip(several, guarded, strict=True)]
    return tuple(_part(one, stretch, schedule, draw) for (one,), stretch in in_blocks(pairs, schedule))


def _part(release: Mechanism | DiscreteMechanism, stretch: Stretch, schedule: Schedule, draw: Draw) -> Part:
    one = (release,)
    rounds, rate = stretch.rounds, schedule.rate(stretch.clients_per_round)
    sampled = dataclasses.replace(release, sampling_rate=rate, steps=schedule.turns(rounds), sampling=draw)
    hidden = (sampled,) if draw != "visible" else ()
    most = schedule.most_participations("client", stretch.clients_per_round, rounds)
    return Part(rounds, hidden or drawn(one, "client", stretch, schedule), repeated(one, most), one, most)


def _rates(guarded: tuple[Guarded, ...], schedule: Schedule) -> str:
    rates = [schedule.rate(g.stretch.clients_per_round) for g in guarded]
    return f"q={max(rates):.4g}" if min(rates) == max(rates) else f"q={min(rates):.4g} to {max(rates):.4g}"


def _of_groups(schedule: Schedule) -> str:
    """Return as text that groups of clients take turns, empty without groups."""
    if schedule.groups == 1:
        return ""
    return f" from {schedule.groups} groups in turn, each in at most {schedule.turns(schedule.rounds)} rounds,"


def _seen_rounds(guarded: tuple[Guarded, ...], schedule: Schedule) -> str:
    """Return as text in how many rounds a client takes part, and whether that is random."""
    rates = _rates(guarded, schedule)
    if schedule.in_turn:
        return f"{schedule.rounds} rounds, in at most {_turns(guarded, schedule)} of which the client takes its turn"
    turns = schedule.turns(schedule.rounds)
    which = "each of which" if schedule.groups == 1 else f"at most {turns} of which the client's group has its turn and"
    if schedule.by_availability:
        return (
            f"{schedule.rounds} rounds, each of which counts for every client, since clients take part by availability"
        )
    if rates == "q=1":
        return f"{schedule.rounds} rounds, in {which} every client takes part"
    return (
        f"{schedule.rounds} rounds, in {which} the client takes part with {rates}: the draw of clients is random, and "
        "the observer sees it"
    )


def _turns(guarded: tuple[Guarded, ...], schedule: Schedule) -> int:
    stretches = [g.stretch for g in guarded]
    return sum(schedule.most_participations("client", s.clients_per_round, s.rounds) for s in stretches)


def _trusting_others(cohorts: str) -> str:
    return f"; trusts the other clients: counts on the noise of all {cohorts} clients, which are honest and do not drop out"


def _rounds(guarded: tuple[Guarded, ...], schedule: Schedule) -> Released:
    own, cohorts = _own(guarded), _cohorts(guarded)
    visible = own and not schedule.complete
    zero_out, sampling = _adjacency(guarded), schedule.client_sampling
    # Other clients' control variates depend on earlier cohorts, whose members are not independent of each other. A client whose
    # update has no bound shows whether it is in a Poisson cohort; one in a cohort of a fixed size is in the place of another one.
    shown = sampling == "in_turn" or (schedule.control_variates and sampling == "fixed")
    shown = shown or (_replaced(guarded) and sampling == "poisson" and not visible)
    draw: Draw = "visible" if visible or shown or sampling == "in_turn" else sampling
    parts = _parts(guarded, schedule, draw)
    what = f"noise of {span(parts)} times one client's bound on the sum of {cohorts} updates, {schedule.rounds} rounds"
    if shown:
        honest = _trusting_others(cohorts) if own and not visible else ""
        only = "; only the client's own noise counts" if visible else ""
        only += ", since others may drop out" if visible and not schedule.control_variates else ""
        what = f"noise of {span(parts)} times one client's bound on the sum of {cohorts} updates"
        return Released(parts, f"{what}, {_seen_rounds(guarded, schedule)}; {zero_out}{honest}{only}", "client")
    if visible:
        failing = f"clients drop out with probability {schedule.dropout:g}, so " if schedule.dropout else ""
        cohort = "Poisson cohorts" if schedule.client_sampling == "poisson" else "cohorts drawn without replacement"
        seen = f"{failing}only the client's own noise counts; {GROWING}"
        return Released(parts, f"{what}, {cohort} with {_rates(guarded, schedule)}; {zero_out}; {seen}", "client")
    if schedule.by_availability:
        how = "each of which counts for every client, since clients take part by availability"
        return Released(parts, f"{what}, {how}; {zero_out}", "client")
    honest = _trusting_others(cohorts) if own else ""
    if schedule.client_sampling == "fixed":
        how = f"cohorts drawn without replacement ({_rates(guarded, schedule)}), hidden from the observer"
        return Released(parts, f"{what}, {how}; {zero_out}{honest}", "client")
    # To add or remove a client would change the groups of the others.
    adjacency = "add-or-remove adjacency" if schedule.groups == 1 else zero_out
    rates = _rates(guarded, schedule)
    hidden = "" if schedule.groups > 1 and rates == "q=1" else ", hidden from the observer"
    how = f"Poisson cohorts{_of_groups(schedule)} with {rates}{hidden}"
    return Released(parts, f"{what}, {how}; {adjacency}{honest}", "client")


def _summed(guarded: tuple[Guarded, ...], schedule: Schedule) -> Released:
    """Return the releases to a server under secure aggregation, which sees a sum and the clients in it."""
    parts, cohorts = _parts(guarded, schedule, "visible"), _cohorts(guarded)
    sentence = (
        f"noise of {span(parts)} times one client's bound on the sum of {cohorts} updates, "
        f"{_seen_rounds(guarded, schedule)}; secure aggregation hides all but the sum; {_adjacency(guarded)}"
    )
    if _own(guarded) and schedule.complete:
        sentence += _trusting_others(cohorts)
    return Released(parts, sentence + _at_the_server(guarded, "sum"), "client")


def _at_the_server(guarded: tuple[Guarded, ...], what: str) -> str:
    if not any(n.station == "server" for g in guarded for n in g.noises[-1]):
        return ""
    if what == "sum":
        return "; holds only for the sum with the server's noise: a server that reads it before is trusted"
    carried = "; holds only for the update as the aggregate carries it, with the whole noise of the sum"
    return f"{carried}: a server that reads it on arrival is trusted"


def _update(guarded: tuple[Guarded, ...], schedule: Schedule, stations: set[str]) -> Released:
    several = [_release(tuple(n for n in g.noises[-1] if n.station in stations), _alone) for g in guarded]
    parts = _of_rounds(several, guarded, schedule, "visible")
    how = f"{_seen_rounds(guarded, schedule)}; {_adjacency(guarded)}"
    sentence = f"noise of {span(parts)} times the bound on one client's update, {how}"
    trusted = _at_the_server(guarded, "update") if "server" in stations else ""
    return Released(parts, sentence + (trusted or OWN), "client")
