"""What each observer sees of one example: the noisy sum of every batch, or the one gradient itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from leakbench.privacy.calibration import Noise
from leakbench.privacy.ledger import Schedule
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.release import GROWING, Guarded, Observation, Part, Released, multiplier, span

__all__ = ["of_an_example"]


def of_an_example(guarded: tuple[Guarded, ...], schedule: Schedule) -> dict[str, Observation]:
    """Return {observer: what it sees}; guarded: the whole training, each phase with at least one noise."""
    # The draw of clients amplifies nothing here: who sees one client's update sees no more than is assumed anyway.
    update = _batches(guarded, schedule)
    aggregate = _aggregate(guarded, schedule) if schedule.secure_aggregation else update
    return {"global": update, "type-2": _one_gradient(guarded, schedule), "type-1": update, "type-0": aggregate}


def _drawn(guarded: tuple[Guarded, ...]) -> int:
    return sum(g.stretch.rounds * g.stretch.clients_per_round for g in guarded)


def _visible(guarded: tuple[Guarded, ...], schedule: Schedule) -> bool:
    own = any(n.station == "example" and n.each for g in guarded for noises in g.noises for n in noises)
    return own and schedule.batch_sampling == "poisson"


def _on_the_sum(schedule: Schedule, visible: bool) -> Callable[[Noise], float]:
    def std(noise: Noise) -> float:
        if noise.station == "batch":
            return noise.std * (schedule.batch if noise.each else 1)
        several = noise.each and not noise.alone and not visible
        return noise.std * (math.sqrt(schedule.batch) if several else 1.0)

    return std


def _batches(guarded: tuple[Guarded, ...], schedule: Schedule, summed: bool = False) -> Released:
    """Return the release of every batch's sum; summed: each lies in a sum over K_t clients, whose noises add up."""
    visible, taken = _visible(guarded, schedule), schedule.participations(_drawn(guarded))
    parts = tuple(_part(g, schedule, visible, taken, summed) for g in guarded)
    shares = sum(part.participations for part in parts)
    what = f"noise of {span(parts)} times one example's bound on the sum of a batch"
    times = f"{shares} participations of a holder (copies: {schedule.copies:.4g}, at most {schedule.most_copies})"
    if len(parts) > 1 and shares > schedule.rounds:
        times += ", spread evenly over the rounds,"
    clients = "the draw of clients is not used as amplification"
    if schedule.batch_sampling == "split":
        how = f"{times}, each using the example {schedule.passes()} time(s) from a fixed split (q=1)"
        if any(len(g.noises) > 1 for g in guarded):
            how += " at the least noise of its round"
        return Released(parts, f"{what}, {how}; zero-out adjacency; {clients}")
    many, q = f"{times} x {schedule.local_iterations} local iterations", schedule.example_rate
    if visible:
        seen = f"only the example's own noise counts; {GROWING}"
        return Released(parts, f"{what}, {many}, Poisson batches with q={q:.4g}; zero-out adjacency; {seen}; {clients}")
    if schedule.batch_sampling == "fixed":
        how = f"{many}, batches of {schedule.batch} without replacement (q={q:.4g}); zero-out adjacency"
        return Released(parts, f"{what}, {how}; {clients}")
    return Released(parts, f"{what}, {many}, Poisson batches with q={q:.4g}; add-or-remove adjacency; {clients}")


def _part(guarded: Guarded, schedule: Schedule, visible: bool, taken: int, summed: bool) -> Part:
    stretch = guarded.stretch
    share = stretch.share(taken, schedule.rounds)
    gain = math.sqrt(stretch.clients_per_round) if summed else 1.0
    sigmas = [gain * multiplier(noises, _on_the_sum(schedule, visible)) for noises in guarded.noises]
    if schedule.batch_sampling == "split":
        # In which of a round's batches the example lies is random, so that the least noise has to stand for all.
        return Part(stretch.rounds, share, (Mechanism(min(sigmas), 1.0, share * schedule.passes()),))
    sampling: Literal["poisson", "fixed", "visible"] = "visible" if visible else schedule.batch_sampling
    several = zip(stretch.phases, sigmas, strict=True)
    q = schedule.example_rate
    mechanisms = tuple(Mechanism(s, q, share * phase.local_iterations, sampling) for phase, s in several)
    return Part(stretch.rounds, share, mechanisms)


def _aggregate(guarded: tuple[Guarded, ...], schedule: Schedule) -> Released:
    """Return what the server sees of one example under secure aggregation.

    Its noise is that of all K_t clients only where each noisy sum enters the aggregate as it is: with one local
    iteration, since the next one would start from the client's own noise alone, and of SGD. Of Adam, what one update shows is
    a function of that client's own noisy sums, which keeps what their noise guarantees and gains nothing of the others'.
    """
    reasons = {
        "each client's Adam divides by the size of its own noisy gradient before they are summed": schedule.client_optimizer
        != "sgd",
        "with several local iterations each builds on the client's own noise alone": schedule.local_iterations > 1,
        "copies of the example may lie in several updates of one sum": schedule.most_copies > 1,
        "how many clients take part is random": not schedule.complete,
        "how much noise the others add depends on their draw": _visible(guarded, schedule),
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    release = _batches(guarded, schedule, summed=not why)
    if why:
        said = f"secure aggregation hides the update in a sum, whose other noise is not counted: {why}"
    else:
        said = "secure aggregation: the noise of all clients of a round adds up: honest, and nobody drops out"
    return Released(release.parts, f"{release.sentence}; {said}")


def _one_gradient(guarded: tuple[Guarded, ...], schedule: Schedule) -> Observation:
    own = [[tuple(n for n in noises if n.station == "example" and n.each) for noises in g.noises] for g in guarded]
    bare = [g.stretch.first + 1 for g, noises in zip(guarded, own, strict=True) if not all(noises)]
    if bare:
        why = "none: noise is added after this tap, to the sum over a batch, not to one example's gradient"
        return why if len(bare) == len(guarded) else f"{why}, from round {bare[0]} of {schedule.rounds} on"
    drawn = _drawn(guarded)
    total, taken, parts = schedule.uses(drawn), schedule.participations(drawn), list[Part]()
    # Before a run the number of uses is random; after it, or from a split, it is known.
    known = schedule.counted("uses") is not None or schedule.batch_sampling == "split"
    for g, noises in zip(guarded, own, strict=True):
        uses, share = g.stretch.share(total, schedule.rounds), g.stretch.share(taken, schedule.rounds)
        least = min(multiplier(several, lambda noise: noise.std) for several in noises)
        random = Mechanism(least, schedule.example_rate, share * schedule.local_iterations, "visible")
        parts.append(Part(g.stretch.rounds, uses, (Mechanism(least, 1.0, uses) if known else random,)))
    seen = sum(part.participations for part in parts)
    how = (
        "counted"
        if known
        else f"expected of {sum(p.mechanisms[0].steps for p in parts):,} draws, as many as chance has it"
    )
    sentence = (
        f"noise of {span(parts)} times the bound on the one example's gradient, seen in each of its {seen} uses ({how}), "
        "so nothing amplifies; zero-out adjacency"
    )
    return Released(tuple(parts), sentence)
