"""The epsilons of one cell: what its defense does over its federation, handed to the ledger."""

from __future__ import annotations

from leakbench.cell import Settings, probe_of
from leakbench.data.dataset import Dataset
from leakbench.defense import Defense, Probe, phases
from leakbench.federated.partition import Partition
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Schedule

__all__ = ["cell_epsilon", "schedule_of"]


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
    probe = probe_of(defense, data, settings)
    schedule = schedule_of(defense, probe, partition.mean_copies, partition.most_copies, largest)
    return epsilon(phases(defense, probe), defense.unit, defense.claim, schedule, delta)


def schedule_of(
    defense: Defense, probe: Probe, copies: float, most_copies: int, largest: dict[str, int] | None = None
) -> Schedule:
    """Return how a federation trains under a defense; copies, most_copies: at how many clients one example lies."""
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
        batch_sampling=defense.batches,
        tensors=len(probe.network.parameters),
        largest=largest,
        secure_aggregation=defense.aggregation == "secure",
    )
