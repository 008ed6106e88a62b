"""FedAvg: rounds of K_t clients as lanes, the four stations of a defense, and the statistics of Geyer et al. in each round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakbench.core.progress import unticked
from leakbench.core.rng import generator, generators
from leakbench.core.task import is_classification, task_of
from leakbench.core.types import Clock, Kind, Local, Network, Parameters, Signal, joined, sent_memory
from leakbench.core.working_copy import copied
from leakbench.data.availability import UNIFORM, available_clients
from leakbench.data.dataset import Dataset
from leakbench.data.partition import Partition
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.augmentation import copies_of
from leakbench.defense.transform import apply
from leakbench.engine.budget import ALL_CACHES, CORE_CACHE, lanes_within
from leakbench.engine.room import Room, Say, unsaid
from leakbench.engine.side_by_side import pieces_of, side_by_side
from leakbench.federated.canaries import Canaries
from leakbench.federated.client import Examples, augmented, client_update, runs_apart
from leakbench.federated.sampling import draw_batches, draw_clients, drawn, drop_out
from leakbench.federated.scaffold import controls_after, corrections, first_controls

__all__ = [
    "CANARY_SCORES",
    "MEMBERS",
    "Counts",
    "Round",
    "accuracy",
    "counts_in",
    "from_sent",
    "from_tensors",
    "lanes_per_chunk",
    "sent_tensors",
    "to_tensors",
    "train",
]

GPU_CLIENTS = 128
"""Number of clients per computation on a GPU, whose kernels are not busy with fewer; `Room` halves it if memory is too small."""

LOWER = "lower --batch or --local-iterations, or take a smaller --model"
"""Advice against too little memory."""


@dataclass(frozen=True)
class Counts:
    """Counts of the rounds so far, for the privacy ledger.

    Args:
        updates: (n,), the number of clients' updates with each training example.
        uses: (n,), the number of batches with each training example.
        rounds: (N,), the number of rounds of each client.
    """

    updates: Tensor
    uses: Tensor
    rounds: Tensor

    @classmethod
    def none(cls, examples: int, clients: int) -> Counts:
        """Return the counts before the first round."""
        return cls(*(torch.zeros(n, dtype=torch.int64) for n in (examples, examples, clients)))

    def plus(self, held: Tensor, uses: Tensor, clients: Tensor) -> Counts:
        """Return the counts after one more round.

        Args:
            held: (K, |D_i|), the examples of the clients that took part.
            uses: (n,), the number of batches with each training example in this round.
            clients: (K,), the ids of the clients that took part.
        """
        return Counts(
            self.updates + torch.bincount(held.flatten(), minlength=len(self.updates)),
            self.uses + uses,
            self.rounds + torch.bincount(clients, minlength=len(self.rounds)),
        )


PLURALS: dict[Kind, str] = {"example": "examples", "batch": "batches", "update": "updates"}

MEMBERS = tuple(column for kinds in PLURALS.values() for column in (kinds, f"{kinds}_zeroed"))
"""Columns of a round: the members of each kind, and how many of them were not finite and counted as zero (`Signal.finite`)."""


@dataclass(frozen=True)
class Round:
    """The result of one round.

    Args:
        round: Index of the round, from 0.
        parameters: {p: (*p)}, the global model after the round.
        memory: {name: (*m)}, the memory of the defense.
        counts: Participations of clients and examples so far.
        accuracy: Accuracy on the test split, in [0, 1].
        loss: Mean cross-entropy on the test split.
        between_client_variance: V_c, the mean over coordinates of the variance between the clients' updates.
        update_scale: U_s, the mean squared coordinate of their mean (Geyer et al. 2017, section 3). Both are NaN if the round was
            aborted. Canaries do not count.
        canary_scores: (m,), the sums of the canaries' inner products with all released updates so far; None without canaries.
        members: {column of `MEMBERS`: number in this round}, the members and those that were not finite and counted as zero.
    """

    round: int
    parameters: Parameters
    memory: Parameters
    counts: Counts
    accuracy: float
    loss: float
    between_client_variance: float
    update_scale: float
    canary_scores: Tensor | None = None
    members: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class _Task:
    """What is the same in every round of a training: the data, the federation, its defense, the seed, and canaries."""

    data: Dataset
    federation: Federation
    defense: Defense
    seed: int
    canaries: Canaries | None = None


@dataclass(frozen=True)
class _Cohort:
    """The clients (K,) of one round, the examples (K, |D_i|) that they hold, and SCAFFOLD's memory."""

    clock: Clock
    clients: Tensor
    held: Tensor
    controls: Parameters = dataclasses.field(default_factory=dict)

    def some(self, where: slice) -> _Cohort:
        """Return some of the clients."""
        return _Cohort(self.clock, self.clients[where], self.held[where], self.controls)


def lanes_per_chunk(parameters: Parameters, batch: int, per_example: bool, apart: bool = False) -> int:
    """Return the number of clients per computation: on a CPU such that their gradients approximately fit into the cache.

    Args:
        batch: B, the number of examples in a batch.
        per_example: Whether single examples' gradients are computed.
        apart: Whether each core computes separate lanes, and so has only its own cache.
    """
    if any(p.device.type == "cuda" for p in parameters.values()):
        return GPU_CLIENTS
    size = 4 * sum(p.numel() for p in parameters.values()) * (batch if per_example else 3)
    return lanes_within(CORE_CACHE if apart else ALL_CACHES, size, most=64)


def train(
    network: Network,
    data: Dataset,
    partition: Partition,
    federation: Federation,
    defense: Defense,
    seed: int,
    done: Round | None = None,
    stop_after: int | None = None,
    say: Say = unsaid,
    tick: Callable[[], None] = unticked,
    canaries: Canaries | None = None,
) -> Iterator[Round]:
    """Train a network and yield every round; the same seed gives the same rounds.

    Args:
        network: Network before the first round.
        done: Round after which to resume; None to start with the first one.
        stop_after: Number of rounds after which to stop, with the federation's schedule; None for all.
        say: Called with a message if memory is too small for the clients of one computation, whose number is then halved.
        tick: Called after some clients of a round.
        canaries: Canaries in addition to the clients of the federation, or to their examples, as the defense's unit is.

    Raises:
        InputError: If memory is too small for one client.
    """
    device = next(iter(network.parameters.values())).device
    parameters = {n: (done.parameters if done else network.parameters)[n].to(device) for n in network.parameters}
    memory = {n: m.to(device) for n, m in (done.memory if done else network.memory).items()}
    counts = done.counts if done else Counts.none(len(data.train_targets), federation.clients)
    scores = None if canaries is None else torch.zeros(len(canaries.included), dtype=torch.float64)
    scores = done.canary_scores if done else scores
    judged = copied(network.model).eval()
    room = Room("clients", federation.clients, LOWER, say)
    data = data.to(device)
    task = _Task(data, federation, defense, seed, canaries)
    of_clients, scaffold = defense.unit == "client", federation.algorithm == "scaffold"
    if scaffold and not done:
        memory |= first_controls(parameters, federation.clients)
    for index in range(done.round + 1 if done else 0, federation.rounds if stop_after is None else stop_after):
        clock = defense.clock(federation, index)
        clients, complete = _clients_of(clock, federation, defense, seed)
        spread, members = (math.nan, math.nan), dict.fromkeys(MEMBERS, 0.0)
        if complete or defense.on_dropout == "continue":
            cohort = _Cohort(clock, clients, partition.of(clients), memory if scaffold else {})
            network = dataclasses.replace(network, parameters=parameters, memory=sent_memory(memory))
            updates, uses = _updates(task, network, cohort, room, tick)
            spread = _spread(updates.grads)
            own = {n: m[None, None] for n, m in memory.items() if n not in network.memory}
            updates = dataclasses.replace(updates, memory={**updates.memory, **own})
            if canaries is not None and of_clients:
                nothing = _no_examples(task, network, len(canaries.participants(clock)))
                updates = canaries.joined_to(updates, network, nothing, defense.stations, clock)
            signal = apply(
                defense.stations.server, updates, clock.at_the_end(), generators(seed, "server noise", [(index,)])
            )
            members = _members(signal, uses, len(clients), clock, defense, _canaries_in(task, cohort))
            step = signal.mean(clock.cohort)
            before, memory = memory, {n: m[0, 0] for n, m in step.memory.items()}
            if scaffold:
                moved, length = (
                    {n: g[0, 0] for n, g in step.grads.items()},
                    federation.learning_rate * clock.local_iterations,
                )
                # An update that is not finite would make all later ones of its client so.
                sent = updates.finite().grads
                memory |= controls_after(before, sent, moved, clients, clock.cohort, length)
            parameters = {n: p + step.grads[n][0, 0] for n, p in parameters.items()}
            counts = counts.plus(cohort.held, uses, clients)
            if canaries is not None and scores is not None:
                # An example moves the model against its gradient.
                weights = 1.0 if of_clients else -canaries.contrasts(clients, clock)
                scores = scores + weights * canaries.products({n: g[0, 0] for n, g in step.grads.items()})
        state = {**parameters, **Network(judged, parameters, memory=memory).statistics}
        asked = data.test_targets if data.targets is None else data.targets.test
        right, loss = accuracy(judged, state, data.test_inputs, asked)
        yield Round(index, parameters, memory, counts, right, loss, *spread, scores, members)


def _canaries_in(task: _Task, cohort: _Cohort) -> Mapping[Kind, int]:
    """Return how many members of a round are canaries."""
    canaries, f = task.canaries, task.federation
    if canaries is None:
        return {}
    if task.defense.unit == "client":
        return {"update": len(canaries.participants(cohort.clock))}
    rate = f.batch / cohort.held.shape[1]
    return {"example": int(canaries.examples(cohort.clients, cohort.clock, f.local_iterations, rate).uses.sum())}


def _members(
    signal: Signal, uses: Tensor, clients: int, clock: Clock, defense: Defense, canaries: Mapping[Kind, int]
) -> dict[str, float]:
    """Return `Round.members` of a round whose signal passed all stations, with so many canaries of each kind."""
    batches = clients * clock.local_iterations
    most: dict[Kind, int] = {
        "example": copies_of(defense.inputs) * int(uses.sum()),
        "batch": batches,
        "update": clients,
    }
    zeroed = {kind: int(count.sum()) for kind, count in signal.zeroed.items()}
    counts = ((most[kind] + canaries.get(kind, 0), zeroed.get(kind, 0)) for kind in PLURALS)
    return dict(zip(MEMBERS, (float(n) for pair in counts for n in pair), strict=True))


def _clients_of(clock: Clock, federation: Federation, defense: Defense, seed: int) -> tuple[Tensor, bool]:
    """Return the ids of a round's clients that did not fail, and whether none failed."""
    uniform = federation.availability == UNIFORM
    available = None if uniform else available_clients(federation.availability, clock.clients, seed, clock.round)
    drawn = draw_clients(clock.clients, clock.cohort, defense.cohorts, seed, clock.round, clock.groups, available)
    left = drop_out(drawn, federation.dropout, generator(seed, "dropout", clock.round))
    return left, len(left) == len(drawn)


def _updates(
    task: _Task, network: Network, cohort: _Cohort, room: Room, tick: Callable[[], None]
) -> tuple[Signal, Tensor]:
    """Return the updates of one round's clients, as members of one lane, and the uses (n,) of each example."""
    defense, count = task.defense, len(cohort.clients)
    uses = torch.zeros(len(task.data.train_targets), dtype=torch.int64)
    if not count:
        return _no_updates(task, network, cohort.clock), uses
    apart = runs_apart(network, defense.stations, task.data.shape)
    most = lanes_per_chunk(network.parameters, task.federation.batch, bool(defense.example), apart)
    pieces = pieces_of(count, most) if apart else [slice(i, i + most) for i in range(0, count, most)]

    def trained(where: slice) -> tuple[Signal, Tensor]:
        return _some_updates(task, network, cohort.some(where))

    def piece(lanes: slice) -> list[tuple[Signal, Tensor]]:
        results = []
        for _, result in room(slice(lanes.start, min(lanes.stop, count)), trained):
            tick()
            results.append(result)
        return results

    work = [partial(piece, lanes) for lanes in pieces]
    done = [some for each in (side_by_side(work) if apart else [one() for one in work]) for some in each]
    for _, used in done:
        uses += used
    return joined([updates for updates, _ in done]).gathered(count), uses


@torch.no_grad()
def _some_updates(task: _Task, network: Network, cohort: _Cohort) -> tuple[Signal, Tensor]:
    """Return the updates of clients that train side by side, as lanes, and the uses (n,) of each example."""
    f, data, defense, seed, held = task.federation, task.data, task.defense, task.seed, cohort.held
    if cohort.controls:
        correction = corrections(cohort.controls, network.parameters, cohort.clients)
        network = dataclasses.replace(network, correction=correction)
    lanes = [(cohort.clock.round, int(i)) for i in cohort.clients]
    batch_rngs = generators(seed, "batches", lanes)
    batches = draw_batches(defense.batches, held.shape[1], f.local_iterations, f.batch, batch_rngs)
    chosen = held.gather(1, batches.positions.flatten(1)).reshape(batches.positions.shape)
    uses = torch.bincount(
        chosen.flatten(), batches.weights.flatten().double(), minlength=len(data.train_targets)
    ).long()
    chosen = chosen.to(data.train_targets.device)
    targets = data.answers_of(chosen)
    weights = batches.weights.to(targets)
    extra = None
    if task.canaries is not None and defense.unit == "example":
        rate = f.batch / held.shape[1]
        extra = task.canaries.examples(cohort.clients, cohort.clock, f.local_iterations, rate)
    rngs = generators(seed, "noise", lanes)
    examples = Examples(data.train_inputs[chosen], targets, weights, f.batch, alone=False)
    examples, stations = augmented(examples, defense.stations, cohort.clock, rngs)
    draws = drawn(network, examples.weights, generators(seed, "draws", lanes))
    examples = dataclasses.replace(examples, draws=draws, canaries=extra)
    return client_update(network, examples, f.learning_rate, stations, cohort.clock, rngs), uses


def _no_updates(task: _Task, network: Network, clock: Clock) -> Signal:
    """Return one update of zeros for an empty cohort.

    A Poisson cohort can be empty, or all clients can fail; the server still adds its noise.
    """
    zeros = {n: p.new_zeros(1, 1, *p.shape) for n, p in network.parameters.items()}
    memory = {n: m[None, None] for n, m in network.memory.items()}
    nothing = Signal(zeros, memory=memory, local=_no_examples(task, network, 1))
    # The client station sets the scale and the memory for the server; the gradients stay zero, since no client sends any.
    return dataclasses.replace(
        apply(task.defense.stations.client, nothing, clock.at_the_end(), None), grads=zeros, local=None
    )


def _no_examples(task: _Task, network: Network, lanes: int) -> Local:
    """Return the data of clients without examples."""
    inputs, targets = task.data.train_inputs[None, :0], task.data.answers_of(torch.zeros(1, 0, dtype=torch.int64))
    return Local(network, inputs.expand(lanes, *inputs.shape[1:]), targets.expand(lanes, *targets.shape[1:]))


def _spread(updates: Parameters) -> tuple[float, float]:
    """Return (V_c, U_s) of updates {p: (1, K, *p)}."""
    count = sum(u[0, 0].numel() for u in updates.values())
    variance = sum(float(u[0].var(0, correction=0).sum()) for u in updates.values())
    scale = sum(float(u[0].mean(0).square().sum()) for u in updates.values())
    return variance / count, scale / count


@torch.no_grad()
def accuracy(model: nn.Module, state: Parameters, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return (accuracy in [0, 1], mean cross-entropy) on inputs (n, *s) and targets (n,).

    For a network with another task (`leakbench.core.task`), these are the share of right answers to all questions, or of explained
    squares, and the mean loss of an example. A network that explains less than the mean of the targets has the share 0.

    Args:
        targets: (n,) classes, or (n, k) targets of another task.
        state: Parameters, and the running statistics of batch normalisation if the model has them.
    """
    device = next(iter(state.values())).device
    right, loss, asked = 0.0, 0.0, 0.0
    task, classifies = task_of(model), is_classification(model)
    some = 500 if classifies else 50  # The outputs of others can be as many as there are tokens or pixels.
    for x, y in zip(torch.split(inputs, some), torch.split(targets, some), strict=True):
        x, y = x.to(device), y.to(device)  # noqa: PLW2901
        if not classifies:
            outputs = functional_call(model, state, (x,))
            answers, questions = task.answered(outputs, x, y)
            right, asked = right + float(answers.double().sum()), asked + float(questions.double().sum())
            loss += float(task.losses(outputs, x, y).sum())
            continue
        logits = functional_call(model, state, (x,))
        finite = logits.isfinite().all(1)  # The argmax of NaN is class 0, which would count as a prediction.
        right += int(((logits.argmax(1) == y) & finite).sum())
        loss += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
    return max(0.0, right / (asked or len(targets))), loss / len(targets)


def to_tensors(now: Round) -> dict[str, Tensor]:
    """Return the tensors of a round's checkpoint."""
    tensors = sent_tensors(now.parameters, now.memory)
    for field in dataclasses.fields(Counts):
        tensors |= _packed(f"counts.{field.name}", getattr(now.counts, field.name))
    return tensors if now.canary_scores is None else tensors | {CANARY_SCORES: now.canary_scores}


CANARY_SCORES = "canaries.scores"
"""Name of the canaries' scores among the tensors of a checkpoint."""


SPARSE = 10_000
"""Number of clients or examples from which counts are stored without their zeros, if most counts are zero."""


def _packed(name: str, counts: Tensor) -> dict[str, Tensor]:
    places = counts.nonzero()[:, 0]
    # With their zeros, the counts of a million clients would take 8 MB in every round.
    if len(counts) < SPARSE or 2 * len(places) >= len(counts):
        return {name: counts}
    return {f"{name}.size": torch.tensor(len(counts)), f"{name}.places": places, f"{name}.values": counts[places]}


def counts_in(held: dict[str, Tensor]) -> Counts | None:
    """Return the counts in a file of `to_tensors`; None for the file of a network without training."""
    counts_of = []
    for field in dataclasses.fields(Counts):
        name = f"counts.{field.name}"
        if name in held:
            counts_of.append(held[name])
        elif f"{name}.size" in held:
            counts = torch.zeros(int(held[f"{name}.size"]), dtype=torch.int64)
            counts_of.append(counts.index_copy(0, held[f"{name}.places"], held[f"{name}.values"]))
        else:
            return None
    return Counts(*counts_of)


def sent_tensors(parameters: Parameters, memory: Parameters) -> dict[str, Tensor]:
    """Return the tensors of a network's file: its parameters and the memory of the defense."""
    return {**{f"model.{n}": p for n, p in parameters.items()}, **{f"memory.{n}": m for n, m in memory.items()}}


def from_sent(held: dict[str, Tensor]) -> tuple[Parameters, Parameters]:
    """Return (parameters, memory) from the tensors of a network's file."""

    def under(prefix: str) -> Parameters:
        return {n.removeprefix(prefix): t for n, t in held.items() if n.startswith(prefix)}

    return under("model."), under("memory.")


def from_tensors(held: dict[str, Tensor], row: dict[str, float]) -> Round:
    """Return the round of a checkpoint.

    Args:
        held: Tensors of the checkpoint.
        row: Figures of the round.
    """
    counts = counts_in(held)
    if counts is None:
        raise ValueError("the file of a checkpoint has no counts")
    parameters, memory = from_sent(held)
    return Round(
        round=int(row["round"]),
        parameters=parameters,
        memory=memory,
        counts=counts,
        accuracy=row["accuracy"],
        loss=row["loss"],
        between_client_variance=row["between_client_variance"],
        update_scale=row["update_scale"],
        canary_scores=held.get(CANARY_SCORES),
        members={name: row[name] for name in MEMBERS if name in row},
    )
