"""The epsilons of one cell: its defense's facts and its federation's schedule, handed to the ledger."""

from __future__ import annotations

import torch

from leakbench.cell import Settings
from leakbench.data.dataset import Dataset
from leakbench.defense import Defense, facts
from leakbench.federated.partition import Partition
from leakbench.models import build, parameters
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Phase, Schedule

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
    weights = parameters(build(settings.model, data.shape, data.classes, torch.Generator().manual_seed(0)))
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
        tensors=len(weights),
        largest=largest,
    )
    # Where a fact changes over the rounds, its weakest form stands for all of them.
    found = facts(defense, len(weights), f)
    phases = (Phase(found, f.rounds, f.local_iterations, True, f.clients_per_round),) if f.rounds else ()
    return epsilon(phases, defense.unit, defense.claim, schedule, delta)
