"""The epsilons of one cell: its defense's facts and its federation's schedule, handed to the ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from leakbench.cell import Settings, probe_of
from leakbench.data.dataset import Dataset
from leakbench.defense import Defense, facts
from leakbench.federated.partition import Partition
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Schedule
from leakbench.types import Fact

__all__ = ["cell_epsilon"]


def cell_epsilon(
    defense: Defense,
    data: Dataset,
    settings: Settings,
    partition: Partition,
    largest: dict[str, int] | None,
    delta: float = 1e-5,
) -> Epsilon:
    """Return the epsilons of a defense in the federation of a cell, for the model that is trained.

    largest: what the run counted (`Schedule.largest`); None before it.
    """
    f = settings.federation
    probe = probe_of(data, settings)
    schedule = Schedule(
        clients=f.clients,
        clients_per_round=f.clients_per_round,
        rounds=f.rounds,
        local_iterations=f.local_iterations,
        batch=f.batch,
        examples_per_client=f.examples_per_client,
        copies=partition.mean_copies,
        most_copies=partition.most_copies,
        client_sampling=defense.cohorts,
        batch_sampling=defense.batches,
        tensors=len(probe.network.parameters),
        largest=largest,
    )
    done = facts(defense, probe)
    found = _explained(epsilon(done, defense.unit, defense.claim, schedule, delta), done)
    failing = f.dropout if defense.on_dropout == "continue" else 0.0
    return _without_others(found, done, failing) if failing else found


def _explained(found: Epsilon, done: Mapping[str, tuple[Fact, ...]]) -> Epsilon:
    """Add to each valid epsilon what the noises say of themselves."""
    more = dict.fromkeys(fact.reason for station in done.values() for fact in station if fact.kind == "noise")
    said = "".join(f"; {reason}" for reason in more if reason)
    taps = {n: dataclasses.replace(t, reason=t.reason + said * (t.valid is not None)) for n, t in found.by_tap.items()}
    return dataclasses.replace(found, reason=found.reason + said * (found.valid is not None), by_tap=taps)


def _without_others(found: Epsilon, done: Mapping[str, tuple[Fact, ...]], dropout: float) -> Epsilon:
    """Return what holds of released models where clients, and their noise, may be missing from the sum.

    A model is computed from a client's update, so whoever sees models learns no more of it than whoever reads that update.
    """
    own = any(fact.kind == "noise" and fact.each for name in ("client", "server") for fact in done[name])
    if found.unit != "client" or found.valid is None or not own:
        return found
    alone = found.by_tap["type-1"]
    missing = f"clients drop out with probability {dropout:g}, so only a client's own noise counts"
    reason = f"{missing}: {alone.reason}" if alone.valid is not None else f"none: {missing}, and it has none"
    return dataclasses.replace(
        found,
        valid=alone.valid,
        accountant=None if alone.valid is None else found.accountant,
        reason=reason,
        steps=alone.steps,
        q=alone.q,
        sigma_effective=alone.sigma_effective,
    )
