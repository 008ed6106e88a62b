"""Releases of one example to each observer: the noisy sum of every batch, or the example's gradient.

With `Schedule.examples_per_person` K > 1, they are the releases of a person with K examples at each of `Schedule.most_copies`
clients. A sum of a batch with j of these examples moves by at most j times the bound of one example. If this is the bound of a clip
of the batch's mean, it moves by at most one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

from leakbench.privacy.calibration import CHANGES, Noise
from leakbench.privacy.group import Group, drawn_examples
from leakbench.privacy.ledger import Schedule, Stretch
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.release import (
    GROWING,
    OBSERVERS,
    Guarded,
    Observation,
    Part,
    Released,
    Releases,
    drawn,
    in_blocks,
    multiplier,
    repeated,
    span,
)

__all__ = ["of_an_example"]

OVER_ROUNDS = "noise on examples that is correlated over the rounds is not accounted"


def of_an_example(guarded: tuple[Guarded, ...], schedule: Schedule) -> dict[str, Observation]:
    """Return {observer: the releases of one example, or of one person}.

    Every observer is assumed to see which clients take part, and each of their updates. The released model is a function of the
    updates, so their epsilon is valid for it.

    Args:
        guarded: The whole training, each phase with at least one noise.
    """
    noises = [n for g in guarded for several in g.noises for n in several]
    if any(n.training or n.participation for n in noises):
        return dict.fromkeys(OBSERVERS, f"none: {OVER_ROUNDS}")
    update = _batches(guarded, schedule)
    aggregate = _aggregate(guarded, schedule) if schedule.secure_aggregation else update
    return {"global": update, "type-2": _one_gradient(guarded, schedule), "type-1": update, "type-0": aggregate}


def _participations(guarded: tuple[Guarded, ...], schedule: Schedule) -> str:
    """Return as text how often the example with the most copies, or a person at as many clients, takes part."""
    stretches = [g.stretch for g in guarded]
    whole = sum(s.rounds * s.clients_per_round for s in stretches)
    expected = whole / schedule.clients * schedule.most_copies
    mean, most = f"{schedule.copies:.4g}", f"{schedule.most_copies}"
    held = f"the worst example, which {most} of {schedule.clients} clients hold{'s' * (schedule.most_copies == 1)}"
    held += f" ({mean} on average)" * (mean != most) + ","
    beyond = upto = ""
    if schedule.examples_per_person > 1:
        held = f"a person with examples at no more than {most} of {schedule.clients} clients"
        upto, beyond = (
            "up to ",
            "; a person at more clients is not covered" if schedule.most_copies < schedule.clients else "",
        )
    if schedule.by_availability:
        rounds = sum(s.rounds for s in stretches)
        return f"{held} counts in each of {rounds} rounds: clients take part by availability{beyond}"
    if schedule.in_turn:
        turns = sum(schedule.most_participations("example", s.clients_per_round, s.rounds) for s in stretches)
        return f"{held} takes part at most {_times(turns, 6)}: clients take turns{beyond}"
    if all(s.clients_per_round == schedule.clients for s in stretches):
        return f"{held} takes part {upto}{_times(expected, 6)}: all clients take part in every round{beyond}"
    often = _times(expected, 4)
    random = "the draw of clients is random, and the observer sees it"
    return f"{held} takes part {upto}{often} on average: {random}{beyond}"


def _times(number: float, digits: int) -> str:
    text = f"{number:.{digits}g}"
    return "once" if text == "1" else f"{text} times"


def _visible(guarded: tuple[Guarded, ...], schedule: Schedule) -> bool:
    own = any(n.station == "example" and n.each for g in guarded for noises in g.noises for n in noises)
    return own and schedule.batch_sampling == "poisson"


def _on_the_sum(schedule: Schedule, visible: bool) -> Callable[[Noise], float]:
    # If each drawn example of a person brings its own noise, they share the noise that the sum has once.
    shared = math.sqrt(schedule.examples_per_person) if visible else 1.0

    def std(noise: Noise) -> float:
        if noise.station == "batch":
            return noise.std * (schedule.batch if noise.each else 1) / shared
        several = noise.each and not noise.alone and not visible
        if visible and not noise.each:
            return noise.std / shared
        return noise.std * (math.sqrt(schedule.batch) if several else 1.0)

    return std


def _batches(guarded: tuple[Guarded, ...], schedule: Schedule, summed: bool = False) -> Released:
    """Return the releases of every batch's sum.

    Args:
        summed: Whether each sum is part of a sum over K_t clients, whose noises add up.
    """
    visible = _visible(guarded, schedule)
    parts = _parts(guarded, schedule, visible, summed)
    single = dataclasses.replace(schedule, examples_per_person=1)
    least = span(_parts(guarded, single, visible, summed))
    together = not visible and all(
        _together(noises, _on_the_sum(schedule, visible)) for g in guarded for noises in g.noises
    )
    what = (
        f"noise of {least} times one example's bound on the sum of a batch{_of_a_person(schedule, visible, together)}"
    )
    times = _participations(guarded, schedule)
    q, iterations = schedule.example_rate, f"each is {schedule.local_iterations} local iterations"
    if schedule.batch_sampling == "split":
        how = f"each uses {_it(schedule)} {schedule.passes()} time(s) from a fixed split (q=1)"
        if any(len(g.noises) > 1 for g in guarded):
            how += " at the least noise of its round"
        how += "; zero-out adjacency"
    elif visible:
        how = f"{iterations}, Poisson batches with q={q:.4g}; zero-out adjacency; only the example's own noise counts; {GROWING}"
    elif schedule.batch_sampling == "fixed":
        how = f"{iterations}, batches of {schedule.batch} without replacement (q={q:.4g}, hidden); zero-out adjacency"
    else:
        how = f"{iterations}, Poisson batches with q={q:.4g} (hidden); add-or-remove adjacency"
    return Released(parts, f"{what}; {times}; {how}", "example")


def _parts(guarded: tuple[Guarded, ...], schedule: Schedule, visible: bool, summed: bool) -> tuple[Part, ...]:
    several = [(_one(g, schedule, visible, summed), g.stretch) for g in guarded]
    return tuple(_of_stretch(one, stretch, schedule) for one, stretch in in_blocks(several, schedule))


def _one(guarded: Guarded, schedule: Schedule, visible: bool, summed: bool) -> Releases:
    """Return the releases of one participation."""
    stretch = guarded.stretch
    gain = math.sqrt(stretch.clients_per_round) if summed else 1.0
    std = _on_the_sum(schedule, visible)
    sigmas = [gain * multiplier(noises, std) for noises in guarded.noises]
    together = [_together(noises, std) for noises in guarded.noises]
    if schedule.batch_sampling == "split":
        # The example is in a random batch of the round, so all batches count with the least noise. In the worst split, a person's
        # examples fill whole batches.
        whole, rest = divmod(schedule.examples_per_person, schedule.batch)
        most = math.sqrt(whole * schedule.batch**2 + rest**2)
        if all(together):  # In the worst split, they are in as many batches as possible.
            most = math.sqrt(min(schedule.examples_per_person, schedule.examples_per_client // schedule.batch))
        return (Mechanism(min(sigmas) / most, 1.0, schedule.passes()),)
    sampling: Literal["poisson", "fixed", "visible"] = "visible" if visible else schedule.batch_sampling
    several = zip(stretch.phases, sigmas, together, strict=True)
    return tuple(_mechanism(s, phase.local_iterations, sampling, schedule, at_once) for phase, s, at_once in several)


def _mechanism(
    sigma: float,
    steps: int,
    sampling: Literal["poisson", "fixed", "visible"],
    schedule: Schedule,
    together: bool = False,
) -> Mechanism | Group:
    """Return `steps` releases of the sum of a batch, for the examples of one person.

    Args:
        sigma: Noise divided by the bound of one example.
        sampling: As in `Mechanism`.
        together: Whether any number of the person's examples together moves the sum by at most one bound.
    """
    members, rate = schedule.examples_per_person, schedule.example_rate
    if sampling == "visible":  # Each example of a Poisson batch is drawn on its own, with its own noise.
        return Mechanism(sigma, rate, members * steps, "visible")
    if members == 1:
        return Mechanism(sigma, rate, steps, sampling)
    weights = drawn_examples(members, schedule.batch, schedule.examples_per_client, sampling)
    if together:
        return Mechanism(sigma, 1.0 - weights[0], steps, sampling)
    possible = [number for number, weight in enumerate(weights) if weight > 0]
    if len(possible) == 1:  # The number of drawn examples is certain.
        return Mechanism(sigma / possible[0], 1.0, steps, sampling)
    return Group(sigma / (len(weights) - 1), weights, steps, sampling)


def _together(noises: tuple[Noise, ...], std: Callable[[Noise], float]) -> bool:
    """Return whether the strongest noise has a bound for any number of a batch's examples together."""
    together = tuple(noise for noise in noises if noise.together)
    return bool(together) and multiplier(together, std) >= multiplier(noises, std)


def _of_a_person(schedule: Schedule, visible: bool, together: bool = False) -> str:
    """Return what the sentence adds for a person with several examples; nothing for one example."""
    members = schedule.examples_per_person
    if members == 1:
        return ""
    if visible:
        return f"; a person with at most {members} examples in a client's data, each with its own noise"
    moves = "one bound for each of them in the batch"
    if together:
        moves = "one bound, however many of them are in the batch, whose mean is clipped"
    return f"; a person with at most {members} examples in a client's data moves it by up to {moves}"


def _it(schedule: Schedule) -> str:
    return "it" if schedule.examples_per_person == 1 else "each example"


def _of_stretch(one: Releases, stretch: Stretch, schedule: Schedule) -> Part:
    most = schedule.most_participations("example", stretch.clients_per_round, stretch.rounds)
    return Part(stretch.rounds, drawn(one, "example", stretch, schedule), repeated(one, most), one, most)


def _aggregate(guarded: tuple[Guarded, ...], schedule: Schedule) -> Released:
    """Return the releases to a server under secure aggregation.

    The noise of all K_t clients counts only if each noisy sum enters the aggregate unchanged. This requires one local iteration,
    since the next one would start from the client's own noise alone, and SGD. An update of Adam is a function of the client's own
    noisy sums. It keeps the guarantee of their noise but gains nothing from the noise of other clients.
    """
    reasons = {
        "each client's Adam divides by the size of its own noisy gradient before they are summed": schedule.client_optimizer
        != "sgd",
        "each client's control variate of SCAFFOLD carries its own noisy update into later sums": schedule.control_variates,
        "with several local iterations each builds on the client's own noise alone": schedule.local_iterations > 1,
        "several updates of one sum may contain copies of the example": schedule.most_copies > 1,
        "how many clients take part is random": not schedule.complete,
        "how much noise the others add depends on their draw": _visible(guarded, schedule),
        "a client changes its own noisy gradients or sum further before they are summed": any(
            map(_changed_alone, guarded)
        ),
    }
    why = next((reason for reason, applies in reasons.items() if applies), "")
    release = _batches(guarded, schedule, summed=not why)
    if why:
        remark = f"secure aggregation hides the update in a sum, whose other noise is not counted: {why}"
    else:
        remark = "trusts the other clients: counts on the noise of all of a round, which are honest and do not drop out"
    return Released(release.parts, f"{release.sentence}; {remark}", "example")


def _changed_alone(guarded: Guarded) -> bool:
    """Return whether a transform other than noise changes a noisy gradient or sum before the clients are merged."""
    for phase in guarded.stretch.phases:
        noisy = False
        for station in ("example", "batch", "client", "server"):
            for fact in phase.facts.get(station, ()):
                noisy = noisy or fact.kind == "noise"
                if noisy and fact.kind in CHANGES:
                    return True
    return False


def _one_gradient(guarded: tuple[Guarded, ...], schedule: Schedule) -> Observation:
    own = [[tuple(n for n in noises if n.station == "example" and n.each) for noises in g.noises] for g in guarded]
    bare = [g.stretch.first + 1 for g, noises in zip(guarded, own, strict=True) if not all(noises)]
    if bare:
        why = "none: noise is added after this leakage point, to the sum over a batch, not to one example's gradient"
        return why if len(bare) == len(guarded) else f"{why}, from round {bare[0]} of {schedule.rounds} on"
    several, members = list[tuple[tuple[Mechanism | Group, ...], Stretch]](), schedule.examples_per_person
    uses = schedule.passes() if schedule.batch_sampling == "split" else schedule.local_iterations
    for g, noises in zip(guarded, own, strict=True):
        least = min(multiplier(each, lambda noise: noise.std) for each in noises)
        one: Mechanism | Group
        if schedule.batch_sampling == "split":
            one = Mechanism(least, 1.0, members * uses)
        elif schedule.batch_sampling == "fixed" and members > 1:
            weights = drawn_examples(members, schedule.batch, schedule.examples_per_client, "fixed")
            one = Group(least / math.sqrt(len(weights) - 1), weights, uses, "visible")
        else:
            one = _mechanism(least, uses, "visible", schedule)
        several.append(((one, Mechanism(least, 1.0, members)), g.stretch))
    parts, levels = list[Part](), list[Part]()
    for (one, single), stretch in in_blocks(several, schedule):
        part = _of_stretch((one,), stretch, schedule)
        # A run counts the uses of an example, not only the updates with it. A person has at most K times as many.
        parts.append(dataclasses.replace(part, one=(single,), most=part.most * uses))
        levels.append(dataclasses.replace(part, every=(Mechanism(single.noise_multiplier, 1.0, 1),)))
    it = _it(schedule)
    how = (
        f"each uses {it} {schedule.passes()} time(s) from a fixed split"
        if schedule.batch_sampling == "split"
        else f"each draws {it} with q={schedule.example_rate:.4g} in {schedule.local_iterations} local iterations"
    )
    sentence = (
        f"noise of {span(levels)} times the bound on the one example's gradient{_of_a_person(schedule, True)}; "
        f"{_participations(guarded, schedule)}; {how}; "
        "every use is visible, so that nothing amplifies; zero-out adjacency"
    )
    return Released(tuple(parts), sentence, "uses")
