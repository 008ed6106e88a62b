"""The ledger on random trainings: a split run spends as much as a whole one; units and adjacencies are never mixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from leakbench.core.types import Fact
from leakbench.privacy.curve import epsilon_curve
from leakbench.privacy.ledger import Phase, Schedule, Unit, first_rounds
from leakbench.privacy.mechanism import Mixture, gathered
from leakbench.privacy.observers import OBSERVERS, observations
from leakbench.privacy.release import Observation, Released
from tests.reliability.properties import holds
from tests.reliability.tally import Tally

__all__ = ["check_ledger"]

Facts = Mapping[str, tuple[Fact, ...]]

ADJACENCIES = {"poisson": "add-or-remove", "fixed": "zero-out", "visible": "zero-out"}
"""Adjacency of a sampled release, see `Mechanism`; without sampling it is zero-out."""


def _noise(each: bool) -> st.SearchStrategy[Fact]:
    return st.sampled_from((4.0, 8.0, 24.0)).map(lambda std: Fact("noise", std=std, each=each))


CLIP = st.sampled_from((1.0, 4.0)).map(lambda norm: Fact("clip", norm=norm))


def _guarded(before: str, after: str) -> st.SearchStrategy[Facts]:
    """Return a clip and one or two noises of the same unit: on each member at the first station, on the sum at the second."""
    own = st.tuples(CLIP, _noise(True)).map(lambda found: {before: found})
    both = st.tuples(CLIP, _noise(True), _noise(False)).map(lambda f: {before: f[:2], after: f[2:]})
    summed = st.tuples(CLIP, _noise(False)).map(lambda found: {before: found[:1], after: found[1:]})
    return st.one_of(own, summed, both)


OF_EXAMPLES, OF_CLIENTS = _guarded("example", "batch"), _guarded("client", "server")

NOTHING: st.SearchStrategy[Facts] = st.just({})

FACTS = {
    "example": st.tuples(OF_EXAMPLES, st.one_of(NOTHING, OF_CLIENTS)).map(lambda two: {**two[0], **two[1]}),
    "client": st.tuples(OF_CLIENTS, st.one_of(NOTHING, OF_EXAMPLES)).map(lambda two: {**two[0], **two[1]}),
}
"""{unit: parts that protect it, and sometimes the other unit as well}."""


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Return a small federation with any sampling; sometimes with copies, and with the counts of a run."""
    clients = draw(st.integers(2, 40))
    most = draw(st.integers(1, clients))
    rounds = draw(st.integers(2, 12))
    return Schedule(
        clients=clients,
        clients_per_round=draw(st.integers(1, clients)),
        rounds=rounds,
        local_iterations=draw(st.integers(1, 6)),
        batch=draw(st.integers(1, 10)),
        examples_per_client=draw(st.integers(10, 40)),
        copies=draw(st.floats(1.0, most)),
        most_copies=most,
        client_sampling=draw(st.sampled_from(("poisson", "fixed"))),
        batch_sampling=draw(st.sampled_from(("poisson", "fixed", "split"))),
        tensors=3,
        largest=draw(st.none() | st.fixed_dictionaries({"example": st.integers(1, 60), "uses": st.integers(1, 90)})),
        secure_aggregation=draw(st.booleans()),
        dropout=draw(st.sampled_from((0.0, 0.2))),
    )


@st.composite
def runs(draw: st.DrawFn, unit: Unit) -> tuple[Schedule, tuple[Phase, ...]]:
    """Return a federation and its phases: one or two ranges of rounds, each with one or two blocks of iterations."""
    schedule = draw(schedules())
    first = draw(st.integers(1, schedule.rounds))
    phases: list[Phase] = []
    for rounds in filter(None, (first, schedule.rounds - first)):
        done = draw(st.integers(0, schedule.local_iterations - 1))
        cohort = draw(st.integers(1, schedule.clients))
        blocks = [n for n in (done, schedule.local_iterations - done) if n]
        phases += [
            Phase(draw(FACTS[unit]), rounds, n, index == len(blocks) - 1, cohort) for index, n in enumerate(blocks)
        ]
    return schedule, tuple(phases)


RUNS = st.sampled_from(("example", "client")).flatmap(lambda unit: st.tuples(st.just(unit), runs(unit)))


def _spent(seen: Observation) -> object:
    """Return the releases that an observer sees, in any order, or the reason for the missing guarantee."""
    return set(gathered(seen.mechanisms)) if isinstance(seen, Released) else seen.split(", ")[0]


def _cut(phases: tuple[Phase, ...], rounds: int) -> tuple[Phase, ...]:
    """Return the same training with the first rounds run separately from the others."""
    found, first, block = list[Phase](), 0, list[Phase]()
    for phase in phases:
        block.append(phase)
        if not phase.ends:
            continue
        done = min(max(rounds - first, 0), phase.rounds)
        for part in filter(None, (done, phase.rounds - done)):
            found += [dataclasses.replace(p, rounds=part) for p in block]
        first, block = first + phase.rounds, []
    return tuple(found)


def _split_is_whole(unit_and_run: tuple[Unit, tuple[Schedule, tuple[Phase, ...]]], share: float) -> None:
    unit, (schedule, phases) = unit_and_run
    cut = _cut(phases, round(share * schedule.rounds))
    whole, again = observations(phases, unit, schedule), observations(cut, unit, schedule)
    for name in OBSERVERS:
        assert _spent(whole[name]) == _spent(again[name]), f"{name}: {whole[name]} becomes {again[name]}"


def _curve_goes_on(unit_and_run: tuple[Unit, tuple[Schedule, tuple[Phase, ...]]], share: float) -> None:
    unit, (schedule, phases) = unit_and_run
    done = max(1, round(share * schedule.rounds))
    # A run's counts cover all rounds; copies are spread over the existing rounds.
    plain = dataclasses.replace(schedule, largest=None, copies=1.0, most_copies=1)
    before = dataclasses.replace(plain, rounds=done)
    seen = [observations(p, unit, s)["global"] for p, s in ((phases, plain), (first_rounds(phases, done), before))]
    if not all(isinstance(found, Released) for found in seen):
        return
    whole, part = (epsilon_curve(p, unit, s) for p, s in ((phases, plain), (first_rounds(phases, done), before)))
    samplings = [{m.sampling for m in found.mechanisms} for found in seen if isinstance(found, Released)]
    # If the noise of later rounds shows which clients were drawn, all rounds count as if it did. Else adjacencies would be mixed.
    same = samplings[0] == samplings[1] and np.allclose(whole[:done], part, rtol=1e-9)
    assert same or ((whole[:done] > part - 1e-12).all() and "visible" in samplings[0]), f"{whole[:done]} becomes {part}"
    assert (np.diff(whole) >= -1e-12).all(), f"{whole} falls"


def _units_apart(unit_and_run: tuple[Unit, tuple[Schedule, tuple[Phase, ...]]], others: tuple[Facts, Facts]) -> None:
    unit, (schedule, phases) = unit_and_run
    mine = ("example", "batch") if unit == "example" else ("client", "server")
    other = others[0] if unit == "client" else others[1]
    alone = [dataclasses.replace(p, facts={s: f for s, f in p.facts.items() if s in mine}) for p in phases]
    beside = [dataclasses.replace(p, facts={**p.facts, **other}) for p in alone]
    for_other = [dataclasses.replace(p, facts=dict(other)) for p in alone]
    found, same, none = (observations(p, unit, schedule) for p in (alone, beside, for_other))
    for name in OBSERVERS:
        assert _spent(found[name]) == _spent(same[name]), f"{name}: {found[name]} becomes {same[name]} by {other}"
        assert isinstance(none[name], str) and "not to one" in none[name], f"{name}: {none[name]} by {other}"


def _one_adjacency(unit_and_run: tuple[Unit, tuple[Schedule, tuple[Phase, ...]]]) -> None:
    unit, (schedule, phases) = unit_and_run
    for name, seen in observations(phases, unit, schedule).items():
        if isinstance(seen, str):
            continue
        releases = [each for m in seen.mechanisms for each in (m.mechanisms if isinstance(m, Mixture) else (m,))]
        sampled = {ADJACENCIES[each.sampling] for each in releases if each.sampling_rate < 1}
        said = {word for word in ("add-or-remove", "zero-out") if word in seen.sentence}
        assert len(sampled) <= 1 and len(said) == 1, f"{name}: {sampled}, said {said}: {seen.sentence}"
        assert not sampled or sampled == said, f"{name}: {sampled}, said {said}: {seen.sentence}"


def check_ledger(tally: Tally, examples: int) -> None:
    """Try every property of the ledger on random trainings."""
    share = st.floats(0, 1)
    holds(tally, "a run in two parts spends what the whole does", examples, _split_is_whole, RUNS, share)
    holds(tally, "the epsilon after some rounds is that of these rounds", examples, _curve_goes_on, RUNS, share)
    holds(tally, "units stay apart", examples, _units_apart, RUNS, st.tuples(OF_EXAMPLES, OF_CLIENTS))
    holds(tally, "one adjacency in one release, and said", examples, _one_adjacency, RUNS)
