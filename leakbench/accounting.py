"""The epsilons of one cell: its defense's facts and its federation's schedule, handed to the ledger."""

from __future__ import annotations

from leakbench.cell import Settings, probe_of
from leakbench.data.dataset import Dataset
from leakbench.defense import Defense, facts
from leakbench.federated.partition import Partition
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Schedule

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
    probe = probe_of(defense, data, settings)
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
    return epsilon(facts(defense, probe), defense.unit, defense.claim, schedule, delta)
