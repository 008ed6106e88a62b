"""The epsilons of one cell, from the facts of its defense over its federation."""

from __future__ import annotations

import dataclasses
import math

from leakbench.cell import Settings, probe_of
from leakbench.core.errors import InputError
from leakbench.core.progress import Progress, unreported
from leakbench.core.types import Fact
from leakbench.data.availability import UNIFORM
from leakbench.data.dataset import Dataset
from leakbench.data.partition import Partition
from leakbench.defense import Defense, FactProbe, phases
from leakbench.privacy.curve import epsilon_curve
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Phase, Schedule, first_rounds

__all__ = ["cell_curve", "cell_epsilon", "ledger_of", "schedule_of"]


CONTROLS = (
    "control variates of SCAFFOLD carry earlier noise and cohorts into later updates: no other client's noise counts, and no draw"
    " of cohorts of a fixed size"
)


def cell_epsilon(
    defense: Defense,
    data: Dataset,
    settings: Settings,
    partition: Partition,
    largest: dict[str, int] | None,
    delta: float = 1e-5,
    progress: Progress = unreported,
) -> Epsilon:
    """Return the epsilons of a defense in the federation of a cell, for the model that is trained.

    Args:
        largest: Counts of the run (`Schedule.largest`); None before it.
        delta: Delta of the valid epsilons, in (0, 1).
        progress: Called with the rounds, and then with the observers, that are accounted for.
    """
    schedule, training = ledger_of(defense, data, settings, partition, largest, progress)
    reasons = [fact.reason for fact in _noises(training)]
    if schedule.groups < defense.cohort_groups:
        fewer = f"cohort_groups is {schedule.groups} here instead of {defense.cohort_groups}"
        reasons.append(f"{fewer}: there are {schedule.clients} clients for cohorts of {schedule.clients_per_round}")
    if schedule.by_availability:
        reasons.append("no amplification by client sampling: availability is not uniform, and an observer may know it")
    if schedule.control_variates and defense.unit == "client" and schedule.client_sampling != "poisson":
        reasons.append(CONTROLS)
    found = _explained(epsilon(training, defense.unit, defense.claim, schedule, delta, progress), reasons)
    if found.valid is None and all(at.valid is None for at in found.by_tap.values()):
        return found
    sentences = tuple(f"{what}, which this epsilon does not cover." for what in data.private_preparation)
    return dataclasses.replace(found, not_covered=sentences)


def ledger_of(
    defense: Defense,
    data: Dataset,
    settings: Settings,
    partition: Partition,
    largest: dict[str, int] | None = None,
    progress: Progress = unreported,
) -> tuple[Schedule, tuple[Phase, ...]]:
    """Return the schedule of a cell's federation and the phases of its defense, for the rounds that are trained.

    The schedule has the cell's number of examples of one person.
    """
    probe = probe_of(defense, data, settings)
    schedule = schedule_of(defense, probe, partition.mean_copies, partition.most_copies, largest)
    rounds = schedule.rounds if settings.stop_after is None else settings.stop_after
    schedule = dataclasses.replace(schedule, examples_per_person=settings.examples_per_person)
    return dataclasses.replace(schedule, rounds=rounds), first_rounds(phases(defense, probe, progress), rounds)


def cell_curve(defense: Defense, data: Dataset, settings: Settings, partition: Partition) -> list[float]:
    """Return the valid epsilon at delta 1e-5 of released models after each round, by Rényi divergences of integer orders.

    The list is empty without a guarantee or if an epsilon is infinite, and for a person with several examples, for whom Rényi
    divergences are far above the valid epsilon: rare draws of many examples decide them.
    """
    schedule, training = ledger_of(defense, data, settings, partition)
    if schedule.examples_per_person > 1 and defense.unit == "example":
        return []
    try:
        curve = epsilon_curve(training, defense.unit, schedule)
    except InputError:
        return []
    values = [float(value) for value in curve]
    # With very little noise, the epsilon of later rounds is infinite, which an axis cannot show.
    return values if all(map(math.isfinite, values)) else []


def schedule_of(
    defense: Defense, probe: FactProbe, copies: float, most_copies: int, largest: dict[str, int] | None = None
) -> Schedule:
    """Return the schedule of a federation with a defense.

    Args:
        copies: Average number of clients that hold one example.
        most_copies: Largest number of clients that hold one example.
        largest: Counts of the run (`Schedule.largest`); None before it.
    """
    f = probe.federation
    return Schedule(
        clients=f.clients,
        clients_per_round=f.clients_per_round,
        rounds=f.rounds,
        local_iterations=f.local_iterations,
        batch=f.batch,
        examples_per_client=f.examples_per_client,
        copies=copies,
        most_copies=most_copies,
        client_sampling=defense.cohorts,
        groups=defense.clock(f, 0).groups,
        batch_sampling=defense.batches,
        tensors=len(probe.network.parameters),
        largest=largest,
        secure_aggregation=defense.aggregation == "secure",
        shuffled=defense.aggregation == "shuffled",
        dropout=f.dropout if defense.on_dropout == "continue" else 0.0,
        client_optimizer=f.client_optimizer,
        by_availability=f.availability != UNIFORM,
        control_variates=f.algorithm == "scaffold",
    )


def _noises(training: tuple[Phase, ...]) -> list[Fact]:
    return [fact for phase in training for facts in phase.facts.values() for fact in facts if fact.kind == "noise"]


def _explained(found: Epsilon, reasons: list[str]) -> Epsilon:
    """Add reasons, such as those in the facts of the noises, to the reason of each valid epsilon."""
    more = "".join(f"; {reason}" for reason in dict.fromkeys(reasons) if reason)
    taps = {n: dataclasses.replace(t, reason=t.reason + more * (t.valid is not None)) for n, t in found.by_tap.items()}
    return dataclasses.replace(found, reason=found.reason + more * (found.valid is not None), by_tap=taps)
