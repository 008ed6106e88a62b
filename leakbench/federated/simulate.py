"""FedAvg: rounds of K_t clients as lanes, the four stations of a defense, and what Geyer et al. watch over the rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakbench.data.dataset import Dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.transform import apply
from leakbench.federated.client import Examples, Network, mean_update
from leakbench.federated.partition import Partition
from leakbench.federated.sampling import draw_batches, draw_clients
from leakbench.models import one_hot
from leakbench.rng import generator, generators
from leakbench.types import Clock, Parameters, Signal

__all__ = ["Counts", "Round", "accuracy", "from_tensors", "lanes_per_chunk", "to_tensors", "train"]


@dataclass(frozen=True)
class Counts:
    """What the privacy ledger needs of the rounds so far.

    updates: (n,) in how many clients' updates each training example took part.  uses: (n,) in how many batches.
    rounds: (N,) in how many rounds each client took part.
    """

    updates: Tensor
    uses: Tensor
    rounds: Tensor


@dataclass(frozen=True)
class Round:
    """What one round left behind.

    round: 0-based.  parameters: {p: (*p)} of the global model after it.  counts: who has taken part how often.
    accuracy, loss: on the test split.  between_client_variance: V_c, the mean over coordinates of the variance between the
    clients' updates; update_scale: U_s, the mean squared coordinate of their mean (Geyer et al. 2017, section 3).
    """

    round: int
    parameters: Parameters
    counts: Counts
    accuracy: float
    loss: float
    between_client_variance: float
    update_scale: float


def lanes_per_chunk(parameters: Parameters, batch: int, per_example: bool, budget: int = 16_000_000) -> int:
    """Return how many clients to run side by side so that their gradients stay within `budget` bytes (about the cache)."""
    size = 4 * sum(p.numel() for p in parameters.values()) * (batch if per_example else 3)
    return max(1, min(64, budget // max(size, 1)))


def train(
    model: nn.Module,
    start: Parameters,
    data: Dataset,
    partition: Partition,
    federation: Federation,
    defense: Defense,
    seed: int,
    device: torch.device,
    done: Round | None = None,
) -> Iterator[Round]:
    """Train from `start` (or go on after the round `done`), yielding every round; the same seed gives the same rounds."""
    inputs, targets = data.train_inputs.to(device), data.train_targets.to(device)
    parameters = {n: p.to(device) for n, p in (done.parameters if done else start).items()}
    counts = (
        done.counts
        if done
        else Counts(*(torch.zeros(n, dtype=torch.int64) for n in (*[len(targets)] * 2, federation.clients)))
    )
    for index in range(done.round + 1 if done else 0, federation.rounds):
        clock = Clock(index, 0, federation.rounds, federation.local_iterations)
        rng = generator(seed, "clients", index)
        clients = draw_clients(federation.clients, federation.clients_per_round, defense.cohorts, rng)
        held = partition.indices[clients]
        updates, uses = _updates(
            model, parameters, (inputs, targets), data.classes, clients, held, federation, defense, seed, clock
        )
        signal = apply(defense.server, Signal(updates), clock, generators(seed, "server noise", [(index,)]))
        spread = _spread(updates)
        step = signal.mean(federation.clients_per_round)
        parameters = {n: p + step.grads[n][0, 0] for n, p in parameters.items()}
        right, loss = accuracy(model, parameters, data.test_inputs, data.test_targets)
        counts = Counts(
            counts.updates + torch.bincount(held.flatten(), minlength=len(targets)),
            counts.uses + uses,
            counts.rounds + torch.bincount(clients, minlength=federation.clients),
        )
        yield Round(index, parameters, counts, right, loss, *spread)


def _updates(
    model: nn.Module,
    parameters: Parameters,
    examples: tuple[Tensor, Tensor],
    classes: int,
    clients: Tensor,
    held: Tensor,
    federation: Federation,
    defense: Defense,
    seed: int,
    clock: Clock,
) -> tuple[Parameters, Tensor]:
    """Return the updates of one round's clients after the `client` station, and how often each example (n,) was used.

    The updates are members of one lane, {p: (1, K, *p)}.
    """
    inputs, targets = examples
    uses = torch.zeros(len(targets), dtype=torch.int64)
    chunk = lanes_per_chunk(parameters, federation.batch, bool(defense.example))
    parts: list[Parameters] = []
    for ids, lists in zip(torch.split(clients, chunk), torch.split(held, chunk), strict=True):
        lanes = [(clock.round, int(i)) for i in ids]
        batches = draw_batches(
            defense.batches,
            lists.shape[1],
            federation.local_iterations,
            federation.batch,
            generators(seed, "batches", lanes),
        )
        chosen = lists.gather(1, batches.positions.flatten(1)).reshape(batches.positions.shape)
        uses += torch.bincount(chosen.flatten(), batches.weights.flatten().double(), minlength=len(targets)).long()
        chosen = chosen.to(inputs.device)
        with torch.no_grad():
            mean = mean_update(
                Network(model, parameters),
                Examples(
                    inputs[chosen],
                    one_hot(targets[chosen], classes),
                    batches.weights.to(inputs.device),
                    federation.batch,
                ),
                federation.learning_rate,
                defense,
                clock,
                generators(seed, "client noise", lanes),
            )
        scale = -federation.learning_rate * federation.local_iterations
        signal = Signal({n: g.unsqueeze(1) * scale for n, g in mean.items()})
        parts.append(apply(defense.client, signal, clock, generators(seed, "update noise", lanes)).grads)
    # A Poisson cohort can be empty; one update of zeros adds nothing to the sum, and the server still adds its noise.
    if not parts:
        return {n: p.new_zeros(1, 1, *p.shape) for n, p in parameters.items()}, uses
    return {n: torch.cat([p[n] for p in parts]).transpose(0, 1) for n in parameters}, uses


def _spread(updates: Parameters) -> tuple[float, float]:
    """Return (V_c, U_s) of updates {p: (1, K, *p)}."""
    count = sum(u[0, 0].numel() for u in updates.values())
    variance = sum(float(u[0].var(0, correction=0).sum()) for u in updates.values())
    scale = sum(float(u[0].mean(0).square().sum()) for u in updates.values())
    return variance / count, scale / count


@torch.no_grad()
def accuracy(model: nn.Module, parameters: Parameters, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return (share of right answers, mean cross-entropy) on inputs (n, *s) and targets (n,)."""
    device = next(iter(parameters.values())).device
    right, loss = 0, 0.0
    for x, y in zip(torch.split(inputs, 500), torch.split(targets, 500), strict=True):
        logits = functional_call(model, parameters, (x.to(device),))
        right += int((logits.argmax(1).cpu() == y).sum())
        loss += float(nn.functional.cross_entropy(logits, y.to(device), reduction="sum"))
    return right / len(targets), loss / len(targets)


def to_tensors(now: Round) -> dict[str, Tensor]:
    """Return what a checkpoint of a round holds beside its row of figures."""
    counts = {f"counts.{f.name}": getattr(now.counts, f.name) for f in dataclasses.fields(Counts)}
    return {**{f"model.{n}": p for n, p in now.parameters.items()}, **counts}


def from_tensors(held: dict[str, Tensor], row: dict[str, float]) -> Round:
    """Return the round of a checkpoint and its row of figures."""
    parameters = {n.removeprefix("model."): t for n, t in held.items() if n.startswith("model.")}
    counts = Counts(*(held[f"counts.{f.name}"] for f in dataclasses.fields(Counts)))
    figures = [row[name] for name in ("accuracy", "loss", "between_client_variance", "update_scale")]
    return Round(int(row["round"]), parameters, counts, *figures)
