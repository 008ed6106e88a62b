"""The epsilons of one cell: its defense's facts and its federation's schedule, handed to the ledger."""

from __future__ import annotations

import torch

from leakbench.cell import Settings
from leakbench.data.dataset import Dataset
from leakbench.defense import Defense, facts
from leakbench.federated.partition import Partition
from leakbench.models import build, parameters
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Schedule
from leakbench.types import Fact

__all__ = ["cell_epsilon", "cell_facts", "cell_schedule"]


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
    schedule = cell_schedule(defense, data, settings, partition, largest)
    return epsilon(cell_facts(defense, settings, schedule), defense.unit, defense.claim, schedule, delta)


def cell_facts(defense: Defense, settings: Settings, schedule: Schedule) -> dict[str, tuple[Fact, ...]]:
    """Return what each station of a defense does, for a model of as many tensors as the schedule's."""
    return facts(defense, schedule.tensors, settings.federation)


def cell_schedule(
    defense: Defense, data: Dataset, settings: Settings, partition: Partition, largest: dict[str, int] | None
) -> Schedule:
    """Return how the federation of a cell trains and samples, as the ledger takes it."""
    f = settings.federation
    weights = parameters(build(settings.model, data.shape, data.classes, torch.Generator().manual_seed(0)))
    return Schedule(
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
        tensors=len(weights),
        largest=largest,
    )
