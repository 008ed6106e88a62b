"""Who is attacked, and what an attacker at each leakage point sees of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakbench.attack.public import FEW
from leakbench.cell import Cell, knowledge, leak_clock, looks_at
from leakbench.data.columns import columns_of
from leakbench.data.partition import Partition
from leakbench.errors import InputError
from leakbench.experiment.leak_noise import aware
from leakbench.federated.leakage import leak, logits_of, rounded
from leakbench.federated.sampling import draw_batches
from leakbench.federated.view import Public, View
from leakbench.models import one_hot
from leakbench.rng import generator, generators
from leakbench.types import Network, Parameters

__all__ = [
    "Sent",
    "Victims",
    "aware",
    "candidate_examples",
    "candidates",
    "draw_victims",
    "public_examples",
    "truth",
    "view_of",
    "views_of",
]


@dataclass(frozen=True)
class Sent:
    """The network as the server sent it, and the secret with which it built it."""

    network: Network
    secret: Any = None


@dataclass(frozen=True)
class Victims:
    """indices: (V, K, L, B) int64 into the training split, in the order in which the victims' clients use them."""

    indices: Tensor


def draw_victims(cell: Cell, tap: str, round_number: int, partition: Partition) -> Victims:
    """Draw the victims of one tap by seed; the same V victims stand first in their batches at every tap.

    `paper`: V distinct examples, each with B - 1 fellows (and, where only a sum is seen, K_t - 1 other clients), L = 1.
    `live`: V clients with the batches that they use in that round.
    """
    s = cell.settings
    cohort = cell.defense.clock(s.federation, round_number).cohort if cell.defense.shows_sum(tap) else 1
    if s.protocol == "live":
        return _live_victims(cell, round_number, cohort, partition)
    pool = cell.data.victims
    needed = cohort * s.leak_batch
    if needed > len(pool):
        raise InputError(
            f"leak-batch: {needed} examples behind one update, but the set holds only {len(pool)} to attack"
        )
    chosen = pool[torch.randperm(len(pool), generator=generator(s.seed, "victims"))[: s.victims]]
    batches = []
    for victim in chosen:
        others = pool[pool != victim]
        order = torch.randperm(len(others), generator=generator(s.seed, "fellows", int(victim)))
        batches.append(torch.cat([victim[None], others[order[: needed - 1]]]))
    return Victims(torch.stack(batches).reshape(s.victims, cohort, 1, s.leak_batch))


def _live_victims(cell: Cell, round_number: int, cohort: int, partition: Partition) -> Victims:
    s = cell.settings
    f = s.federation
    order = torch.randperm(f.clients, generator=generator(s.seed, "victims"))[: s.victims * cohort]
    # The victims come first, then those who stand beside them in a sum: the same victims at every tap.
    beside = order[s.victims :].reshape(s.victims, cohort - 1)
    clients = torch.cat([order[: s.victims, None], beside], 1).flatten()
    lanes = [(round_number, int(c)) for c in clients]
    # A leaked Poisson batch is shown at its expected size, which the attacker is told.
    kind = "fixed" if cell.defense.batches == "poisson" else cell.defense.batches
    rngs = generators(s.seed, "batches", lanes)
    held = partition.of(clients)
    drawn = draw_batches(kind, held.shape[1], f.local_iterations, s.leak_batch, rngs).positions
    indices = held.gather(1, drawn.flatten(1)).reshape(s.victims, cohort, f.local_iterations, s.leak_batch)
    return Victims(indices)


def truth(cell: Cell, tap: str, victims: Victims) -> tuple[Tensor, Tensor, Tensor]:
    """Return (inputs (V, M, *s), labels (V, M), indices (V, M)) behind what leaked; for scoring, outside any attacker."""
    flat = victims.indices[:, :1, :1, :1] if tap == "type-2" else victims.indices
    indices = flat.flatten(1)
    return cell.data.train_inputs[indices], cell.data.train_targets[indices], indices


def public_examples(cell: Cell, most: int = FEW) -> Public:
    """Return some of the public examples, which are of the test split and, of faces, of people who are no victims.

    Fewer of them are the first of more.
    """
    inputs, labels = cell.data.public_inputs, cell.data.public_targets
    chosen = torch.randperm(len(labels), generator=generator(cell.settings.seed, "public"))[:most]
    return _public(cell, inputs[chosen], labels[chosen])


def candidates(cell: Cell, victims: Victims) -> tuple[Public, Tensor]:
    """Return (k candidate examples in an order that says nothing, the position (V,) of each victim's first example among them).

    The others are drawn from among those who could have been victims; who stands behind a leaked batch is none of them, since it
    would be a right answer too.
    """
    listed, own = _listed(cell, victims)
    return _public(cell, cell.data.train_inputs[listed], cell.data.train_targets[listed]), own


def candidate_examples(cell: Cell, victims: Victims) -> Tensor:
    """Return which training examples (k,) int64 the candidates are; for scoring, outside any attacker."""
    return _listed(cell, victims)[0]


def _listed(cell: Cell, victims: Victims) -> tuple[Tensor, Tensor]:
    s, data, first = cell.settings, cell.data, victims.indices[:, 0, 0, 0]
    others = data.victims[~torch.isin(data.victims, victims.indices.flatten())]
    rng = generator(s.seed, "candidates")
    drawn = others[torch.randperm(len(others), generator=rng)[: max(0, s.candidates - len(first))]]
    pool = torch.cat([first, drawn])
    order = torch.randperm(len(pool), generator=rng)
    return pool[order], order.argsort()[: len(first)]


def _public(cell: Cell, inputs: Tensor, labels: Tensor) -> Public:
    return Public(inputs.to(cell.settings.device), labels.to(cell.settings.device))


def view_of(cell: Cell, tap: str, round_number: int, victims: Victims, lanes: Tensor, sent: Sent) -> View:
    """Return what the attacker sees of the victims in `lanes` (their positions among all)."""
    device = torch.device(cell.settings.device)
    cohort, steps, batch = victims.indices.shape[1:]
    real, labels, _ = (t[lanes].to(device) for t in truth(cell, tap, victims))
    blind = View(
        tap=tap,
        network=sent.network,
        update=_leaked(cell, tap, round_number, victims, lanes, sent),
        batch=batch,
        shape=cell.data.shape,
        classes=cell.data.classes,
        learning_rate=cell.settings.federation.learning_rate,
        cohort=cohort,
        local_steps=steps,
        knowledge=knowledge(cell, tap),
        clock=leak_clock(cell, round_number),
        public=public_examples(cell, max(FEW, cell.attack.needs.public)),
        labels=labels if cell.attack.needs.labels else None,
        logits=logits_of(sent.network, real) if cell.attack.needs.logits else None,
        secret=sent.secret,
        columns=columns_of(cell.data),
    )
    return aware(blind, cell) if blind.knowledge.defense else blind


def views_of(cell: Cell, tap: str, round_number: int, victims: Victims, lanes: Tensor, sent: Sent) -> tuple[View, ...]:
    """Return all looks at the victims in `lanes`, the first of which is `view_of`: they differ in what was drawn at random."""
    first = view_of(cell, tap, round_number, victims, lanes, sent)
    more = (_leaked(cell, tap, round_number, victims, lanes, sent, look) for look in range(1, looks_at(cell, tap)))
    return (first, *(dataclasses.replace(first, update=update) for update in more))


def _leaked(
    cell: Cell, tap: str, round_number: int, victims: Victims, lanes: Tensor, sent: Sent, look: int = 0
) -> Parameters:
    """Return what leaks of the victims in `lanes` at one look, {p: (V, *p)}."""
    s, indices = cell.settings, victims.indices[lanes]
    inputs = cell.data.train_inputs[indices].to(s.device)
    targets = one_hot(cell.data.train_targets[indices], cell.data.classes).to(s.device)
    again = (look,) if look else ()  # The first look draws as a single one does.
    whose = [(round_number, int(v), k, *again) for v in lanes for k in range(indices.shape[1])]
    rngs, draws = generators(s.seed, "leak noise", whose), generators(s.seed, "leak draws", whose)
    clock, rate = leak_clock(cell, round_number), s.federation.learning_rate
    with torch.no_grad():
        update = leak(tap, sent.network, inputs, targets, rate, cell.defense.stations, clock, rngs, draws)
        if s.reads == "weights" and tap != "type-2":
            update = rounded(update, sent.network.parameters, rate * indices.shape[2])
    return update
