"""The victims of an attack, and the attacker's views of them at each leakage point."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakbench.attack.fit_store import FitStore, fit_folder
from leakbench.attack.public import FEW
from leakbench.attack.servers.server import Honest, Learns
from leakbench.cell import Cell, knowledge, leak_clock, leak_federation, looks_at
from leakbench.core.errors import InputError
from leakbench.core.rng import generator, generators
from leakbench.core.types import Network, Parameters
from leakbench.data.columns import columns_of
from leakbench.data.partition import Partition
from leakbench.experiment.leak_noise import aware
from leakbench.experiment.statistics import attacker_network, attacker_statistics
from leakbench.federated.leakage import leak, logits_of, rounded
from leakbench.federated.optimizer import linear_steps
from leakbench.federated.sampling import draw_batches
from leakbench.federated.simulate import accuracy
from leakbench.federated.view import Public, View

__all__ = [
    "Sent",
    "Victims",
    "aware",
    "candidate_examples",
    "candidates",
    "draw_victims",
    "epochs_of",
    "public_examples",
    "sent_to_clients",
    "truth",
    "view_of",
    "views_of",
]


@dataclass(frozen=True)
class Sent:
    """The network that the server sent, and a malicious server's record of its change of the network."""

    network: Network
    secret: Any = None


def sent_to_clients(cell: Cell, honest: Network, tap: str) -> Sent:
    """Return what the cell's server sends: the honest network, or its change by a malicious server for a leakage point."""
    public = public_examples(cell, max(FEW, cell.attack.needs.public))
    server = cell.attack.server
    if not isinstance(server, Honest):
        state = {**honest.parameters, **honest.statistics}
        # A diverged network leaks values that are not finite, so a malicious server has nothing to gain from a change.
        asked = public.labels if public.answers is None else public.answers
        finite = math.isfinite(accuracy(honest.model, state, public.inputs, asked)[1])
        server = server if finite else Honest()
    given = (honest, public, knowledge(cell, tap), generator(cell.settings.seed, "server"))
    return Sent(*(server.learn(*given, FitStore(fit_folder())) if isinstance(server, Learns) else server(*given)))


@dataclass(frozen=True)
class Victims:
    """The examples of the victims' updates.

    Args:
        indices: (V, K, L, B) int64, indices into the training split in the order of use by the clients.
    """

    indices: Tensor


def draw_victims(cell: Cell, tap: str, round_number: int, partition: Partition) -> Victims:
    """Draw the victims of one leakage point by seed; the same V victims are first in their batches at every leakage point.

    In the `paper` protocol, the victims are V distinct examples, each with B - 1 others in its batch (and K_t - 1 other clients if
    the attacker sees only a sum), and L = 1. In the `live` protocol, they are V clients with their batches in the round.

    Raises:
        InputError: If the set has too few examples for one update.
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
    f = leak_federation(cell)
    order = torch.randperm(f.clients, generator=generator(s.seed, "victims"))[: s.victims * cohort]
    # The victims come first, so they are the same at every leakage point; then the other clients of a sum.
    others = order[s.victims :].reshape(s.victims, cohort - 1)
    clients = torch.cat([order[: s.victims, None], others], 1).flatten()
    lanes = [(round_number, int(c)) for c in clients]
    # A leaked Poisson batch has its expected size, which the attacker knows.
    kind = "fixed" if cell.defense.batches == "poisson" else cell.defense.batches
    rngs = generators(s.seed, "batches", lanes)
    held = partition.of(clients)
    drawn = draw_batches(kind, held.shape[1], f.local_iterations, s.leak_batch, rngs).positions
    indices = held.gather(1, drawn.flatten(1)).reshape(s.victims, cohort, f.local_iterations, s.leak_batch)
    return Victims(indices)


def truth(cell: Cell, tap: str, victims: Victims) -> tuple[Tensor, Tensor, Tensor]:
    """Return the true (inputs (V, M, *s), labels (V, M), indices (V, M)) of the leaked updates, for scoring.

    Of clients that pass several times over their examples, each example counts once, in the order of the first pass.
    """
    once = victims.indices[:, :, : victims.indices.shape[2] // epochs_of(cell)]
    flat = victims.indices[:, :1, :1, :1] if tap == "type-2" else once
    indices = flat.flatten(1)
    return cell.data.train_inputs[indices], cell.data.train_targets[indices], indices


def epochs_of(cell: Cell) -> int:
    """Return the number of passes of a leaking client over its examples: 1 in the `paper` protocol, whose clients take one step."""
    return cell.settings.federation.epochs or 1 if cell.settings.protocol == "live" else 1


def public_examples(cell: Cell, most: int = FEW) -> Public:
    """Return some of the public examples, which are from the test split, and for faces show other people than the victims.

    A smaller number returns the first ones of a larger number.
    """
    inputs, labels, answers = cell.data.public_inputs, cell.data.public_targets, cell.data.public_answers
    chosen = torch.randperm(len(labels), generator=generator(cell.settings.seed, "public"))[:most]
    return _public(cell, inputs[chosen], labels[chosen], None if answers is None else answers[chosen])


def candidates(cell: Cell, victims: Victims) -> tuple[Public, Tensor]:
    """Return (k candidate examples in random order, the position (V,) of each victim's first example among them).

    The other candidates are drawn from the possible victims, without the examples of leaked batches, which would be correct too.
    """
    listed, own = _listed(cell, victims)
    answers = None if cell.data.targets is None else cell.data.targets.train[listed]
    return _public(cell, cell.data.train_inputs[listed], cell.data.train_targets[listed], answers), own


def candidate_examples(cell: Cell, victims: Victims) -> Tensor:
    """Return the indices (k,) int64 of the candidates in the training split, for scoring."""
    return _listed(cell, victims)[0]


def _listed(cell: Cell, victims: Victims) -> tuple[Tensor, Tensor]:
    s, data, first = cell.settings, cell.data, victims.indices[:, 0, 0, 0]
    others = data.victims[~torch.isin(data.victims, victims.indices.flatten())]
    rng = generator(s.seed, "candidates")
    drawn = others[torch.randperm(len(others), generator=rng)[: max(0, s.candidates - len(first))]]
    pool = torch.cat([first, drawn])
    order = torch.randperm(len(pool), generator=rng)
    return pool[order], order.argsort()[: len(first)]


def _public(cell: Cell, inputs: Tensor, labels: Tensor, answers: Tensor | None) -> Public:
    device = cell.settings.device
    return Public(inputs.to(device), labels.to(device), None if answers is None else answers.to(device))


def view_of(cell: Cell, tap: str, round_number: int, victims: Victims, lanes: Tensor, sent: Sent) -> View:
    """Return the attacker's view of the victims in `lanes`, positions among all victims."""
    device = torch.device(cell.settings.device)
    cohort, steps, batch = victims.indices.shape[1:]
    real, labels, _ = (t[lanes].to(device) for t in truth(cell, tap, victims))
    public, choice = public_examples(cell, max(FEW, cell.attack.needs.public)), cell.settings.statistics
    blind = View(
        tap=tap,
        network=attacker_network(sent.network, choice),
        update=_leaked(cell, tap, round_number, victims, lanes, sent),
        batch=batch,
        shape=cell.data.shape,
        classes=cell.data.outputs,
        learning_rate=cell.settings.federation.learning_rate,
        cohort=cohort,
        local_steps=steps,
        epochs=epochs_of(cell),
        knowledge=knowledge(cell, tap),
        clock=leak_clock(cell, round_number),
        public=public,
        statistics=attacker_statistics(sent.network, choice, real, public),
        labels=labels if cell.attack.needs.labels else None,
        logits=logits_of(sent.network, real) if cell.attack.needs.logits else None,
        secret=sent.secret,
        columns=columns_of(cell.data),
        vocabulary=cell.data.vocabulary,
    )
    return aware(blind, cell) if blind.knowledge.defense else blind


def views_of(cell: Cell, tap: str, round_number: int, victims: Victims, lanes: Tensor, sent: Sent) -> tuple[View, ...]:
    """Return the views of all observations of the victims in `lanes`, first `view_of`; they differ in their random numbers."""
    first = view_of(cell, tap, round_number, victims, lanes, sent)
    more = (_leaked(cell, tap, round_number, victims, lanes, sent, look) for look in range(1, looks_at(cell, tap)))
    return (first, *(dataclasses.replace(first, update=update) for update in more))


def _leaked(
    cell: Cell, tap: str, round_number: int, victims: Victims, lanes: Tensor, sent: Sent, look: int = 0
) -> Parameters:
    """Return the update of the victims in `lanes` at one observation, {p: (V, *p)}."""
    s, indices = cell.settings, victims.indices[lanes]
    inputs = cell.data.train_inputs[indices].to(s.device)
    targets = cell.data.answers_of(indices).to(s.device)
    again = (look,) if look else ()  # The first observation has the seed of a single one.
    whose = [(round_number, int(v), k, *again) for v in lanes for k in range(indices.shape[1])]
    rngs, draws = generators(s.seed, "leak noise", whose), generators(s.seed, "leak draws", whose)
    clock, rate = leak_clock(cell, round_number), s.federation.learning_rate
    with torch.no_grad():
        update = leak(tap, sent.network, inputs, targets, rate, cell.defense.stations, clock, rngs, draws)
        if s.reads == "weights" and tap != "type-2":
            how = linear_steps(clock, rate, indices.shape[2])
            update = rounded(update, sent.network.parameters, rate * how.length, how.kept)
    return update
