"""The noise that protects one unit at a leakage point, from which the bounds follow.

A bound belongs to the leak, not to the training: to the network that leaked, with all releases of one unit that the attack
observed.
In the `paper` protocol this is one release. Sampling does not amplify it, since the victim is in the leaked batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from leakbench.cell import Cell, leak_federation, probe_of
from leakbench.cell.accounting import schedule_of
from leakbench.core.types import Network
from leakbench.data.partition import Iid, Partition
from leakbench.defense import FactProbe, phases
from leakbench.defense.facts import doubts_of_inputs
from leakbench.experiment.leak_noise import leak_facts
from leakbench.experiment.victims import epochs_of
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.ledger import Phase, Schedule, Unit, first_rounds
from leakbench.privacy.mechanism import LEAST_NOISE, Mechanisms
from leakbench.privacy.observers import observations

__all__ = ["Guard", "guards", "together"]


@dataclass(frozen=True)
class Guard:
    """The noise that protects one unit at one leakage point.

    Args:
        sigma: Noise divided by one unit's bound, in each release; None without a guarantee, for `reason`.
        before: The training of the model that leaked; empty for a model without training.
        commonest: The largest share of one label among public examples, or among the possible victims.
        related: Why the other examples give information about the victim; empty if they do not.
        views: Number of times that the same examples leak to one attack.
        labels_given: Whether the attacker knows the labels.
    """

    sigma: float | None
    reason: str
    unit: Unit
    before: Mechanisms
    commonest: float
    related: str
    views: int = 1
    labels_given: bool = False


def guards(cell: Cell, network: Network, rounds: int, partition: Partition) -> dict[str, Guard]:
    """Return {leakage point: its guard} for a leak from a network after `rounds` rounds of training.

    Args:
        rounds: Number of rounds; 0 in the `paper` protocol, whose network is not trained.
    """
    before = _training(cell, rounds, partition) if rounds else ()
    leak = _leak(cell, len(network.parameters))
    doubts = doubts_of_inputs(
        cell.defense, FactProbe(network, cell.data.shape, cell.data.outputs, leak_federation(cell))
    )
    facts = {name: (*doubts, *done) if done else done for name, done in leak_facts(cell, network, rounds).items()}
    phase = Phase(facts, 1, 1, True, leak.clients_per_round)
    public, pool = cell.data.test_targets, cell.data.train_targets[cell.data.victims]
    commonest = max(float(torch.bincount(labels).max()) / len(labels) for labels in (public, pool))
    by_tap = {}
    for tap, seen in observations((phase,), cell.defense.unit, leak).items():
        sigma, reason = (None, seen) if isinstance(seen, str) else (seen.parts[0].one[0].noise_multiplier, "")
        if not isinstance(seen, str) and isinstance(seen.parts[0].one[0], DiscreteMechanism):
            sigma, reason = None, "none: the bound of a leak assumes Gaussian noise"
        if sigma is not None and sigma < LEAST_NOISE:
            sigma, reason = None, "none: no finite epsilon"
        if isinstance(before, str):
            sigma, reason = None, reason or before
        if sigma is not None and cell.defense.unit == "example" and tap != "type-2":
            sigma /= math.sqrt(epochs_of(cell))  # An update of several epochs has so many releases of each example.
        if cell.attack.needs.logits:
            sigma, reason = None, "none: the attacker is told the victims' logits"
        trained = () if isinstance(before, str) else before
        related, labels = _related(cell, tap, rounds), cell.attack.needs.labels
        by_tap[tap] = Guard(sigma, reason, cell.defense.unit, trained, commonest, related, labels_given=labels)
    return by_tap


def together(several: Sequence[Guard], looks: int = 1) -> Guard:
    """Return the guard of several leaks of the same examples: all releases count, at the least noise.

    Args:
        several: The guards of the rounds, in order.
        looks: Number of observations in each round.
    """
    last, views = several[-1], looks * len(several)
    missing = next((guard for guard in several if guard.sigma is None), None)
    if missing is not None:
        return dataclasses.replace(last, sigma=None, reason=missing.reason, views=views)
    return dataclasses.replace(last, sigma=min(guard.sigma or 0.0 for guard in several), views=views)


def _leak(cell: Cell, tensors: int) -> Schedule:
    """Return the leak as a schedule in which every example and client of the leaked batch and cohort certainly takes part."""
    f, batch = cell.settings.federation, cell.settings.leak_batch
    return Schedule(
        clients=f.clients,
        clients_per_round=f.clients_per_round,
        rounds=1,
        local_iterations=1,
        batch=batch,
        examples_per_client=max(batch, f.examples_per_client),
        copies=1.0,
        most_copies=1,
        client_sampling="in_turn" if cell.defense.cohorts == "in_turn" else "fixed",
        batch_sampling="fixed",
        tensors=tensors,
    )


def _training(cell: Cell, rounds: int, partition: Partition) -> Mechanisms | str:
    """Return the releases of one unit in the rounds before the leak to an observer of their models, or why none are known."""
    probe = probe_of(cell.defense, cell.data, cell.settings)
    whole = schedule_of(cell.defense, probe, partition.mean_copies, partition.most_copies)
    first = first_rounds(phases(cell.defense, probe), rounds)
    seen = observations(first, cell.defense.unit, dataclasses.replace(whole, rounds=rounds))["global"]
    return seen if isinstance(seen, str) else seen.mechanisms


def _related(cell: Cell, tap: str, rounds: int) -> str:
    f, alone = cell.settings.federation, tap == "type-2" and not rounds
    if cell.defense.unit == "client" or cell.settings.protocol == "paper" or isinstance(f.partition, Iid) or alone:
        return ""
    return "none: a client's examples are alike here (partition), so that its others tell of the victim"
