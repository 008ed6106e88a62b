"""Grids and strategies of a Flower server: runs without an engine, and the taps at type-0."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, TypeAlias

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.core.typed import typed_arguments
from leakbench.core.types import Clock, Network, Signal
from leakbench.core.working_copy import copied
from leakbench.defense import Defense
from leakbench.engine.side_by_side import pieces_of, side_by_side
from leakbench.federated.client import Examples, client_update, runs_apart
from leakbench.federated.simulate import lanes_per_chunk
from leakbench.flower.leaks import Leak, write_leak
from leakbench.flower.messages import (
    Arrays,
    arrays_of,
    client_of,
    is_parameter,
    is_train,
    record_of,
    round_in,
    round_of,
    warn_of_zeros,
)
from leakbench.flower.mods import check_stations, resolve_defense
from leakbench.models import one_hot
from leakbench.models.conversion import convert_parts

__all__ = ["Batches", "InProcessGrid", "Probe", "ProbeStrategy", "TapGrid", "VectorisedGrid", "context_of_server"]


PATIENCE = 5
"""Number of times that an app may ask for the nodes without a message in between; more means that it waits for others."""

SERVER, RUN, TASK = 1, 1, 1
"""Flower's ids of the server's node, the run and the task."""


@typed_arguments
class InProcessGrid(Grid):
    """Answer messages by calling a ClientApp in this process, one client after another, without Ray and polling.

    The clients' contexts live as long as the grid, so that their states last over rounds. Exceptions of a client are
    raised, while an engine sends an error instead. Nodes are numbered from 2, partitions from 0.

    Args:
        client_app: The app.
        clients: Number of nodes, N.
        run_config: What the app reads from `context.run_config`.

    Raises:
        InputError: For fewer than one client.
    """

    def __init__(
        self, client_app: ClientApp, clients: int, run_config: Mapping[str, bool | float | int | str] = {}
    ) -> None:
        if clients < 1:
            raise InputError(f"clients: got {clients}, expected at least 1")
        if TaskIdentity._task_id is None:  # Flower makes no message without a task. An engine's own task stays.
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = TASK, RUN, SERVER
        self.client_app = client_app
        self.contexts = {
            SERVER + 1 + i: Context(
                RUN, SERVER + 1 + i, {"partition-id": i, "num-partitions": clients}, RecordDict(), dict(run_config)
            )
            for i in range(clients)
        }
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(RUN)
        self._asked = 0
        self._lock = RLock()  # Older strategies of Flower call their clients from several threads.

    def set_run(self, run: Run) -> None:
        """Set the run of the server's process."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message from the server to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes.

        Raises:
            InputError: For an app that waits for more nodes.
        """
        self._asked += 1
        if self._asked > PATIENCE:
            raise InputError(
                f"clients: got {len(self.contexts)}, fewer than the app waits for (a strategy's min_available_nodes, 2 by default)"
            )
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer the messages now, and return the ids for which `pull_messages` returns the replies."""
        ids = []
        for reply in self.send_and_receive(messages):
            ids.append(f"reply-{len(self._replies)}")
            self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies with these ids, each once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the clients' replies in the order of the messages; `timeout` has no effect."""
        self._asked = 0
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        """Return one client's reply.

        Raises:
            InputError: For an unknown node.
        """
        node = int(message.metadata.dst_node_id)
        if node not in self.contexts:
            raise InputError(f"dst_node_id: got {node}, expected one of {len(self.contexts)} nodes from {SERVER + 1}")
        with self._lock:
            return self.client_app(_apart(message), self.contexts[node])


def context_of_server(run_config: Mapping[str, bool | float | int | str]) -> Context:
    """Return the context of a ServerApp."""
    return Context(RUN, SERVER, {}, RecordDict(), dict(run_config))


def _apart(message: Message) -> Message:
    """Return the message with a copy of its records: a strategy sends the same to all clients, which may change it."""
    content = RecordDict()
    for key, record in message.content.items():
        content[key] = _copied(record)
    make: Any = Message  # Flower's types do not list `metadata`, with which its own engine makes messages.
    copied: Message = make(content, metadata=copy.copy(message.metadata))
    return copied


def _copied(record: ArrayRecord | MetricRecord | ConfigRecord) -> ArrayRecord | MetricRecord | ConfigRecord:
    if isinstance(record, ArrayRecord):
        return ArrayRecord(dict(record))  # The bytes of an array are never changed.
    values: dict[str, Any] = {key: list(v) if isinstance(v, list) else v for key, v in record.items()}
    return type(record)(values)


Batches: TypeAlias = Callable[[int, int], tuple[Tensor, Tensor]]
"""(client, round from 1) -> the batches of the local steps, inputs (L, B, *s) and labels (L, B)."""


@typed_arguments
class VectorisedGrid(InProcessGrid):
    """Answer train messages by L steps of SGD, for all clients of a round at once, through a recipe's stations.

    The strategy is Flower's. The trainer of `leakbench run` replaces the client's train function, so that defenses inside the
    local steps (the `example` and `batch` stations) can be tested under a Flower strategy. Other messages go to the
    ClientApp. A reply has the metric `num-examples`, L * B.

    Args:
        model: Network whose parameters have the names of the arrays that the server sends.
        batches: What the clients train on.
        learning_rate: Learning rate of the clients.
        clients: Number of clients, N.
        classes: Number of classes.
        recipe: Name, path or `Defense`, as for `DefenseMod`.
        seed: Seed of the noise, as for `DefenseMod`.
        client_app: The app for other messages.
        run_config: What the app reads from `context.run_config`.

    Raises:
        InputError: For a recipe with a server station, and for a model with PyTorch's own batch normalisation in train mode.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        learning_rate: float,
        clients: int,
        classes: int,
        recipe: str | Defense = "none",
        seed: int = 0,
        client_app: ClientApp | None = None,
        run_config: Mapping[str, bool | float | int | str] = {},
    ) -> None:
        super().__init__(client_app or ClientApp(), clients, run_config)
        self.defense = resolve_defense(recipe) if isinstance(recipe, str) else recipe
        check_stations(self.defense, recipe if isinstance(recipe, str) else recipe.title, ("server",))
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules()):
            raise InputError(
                "model: PyTorch's batch normalisation in train mode cannot be vectorised; expected model.eval(), group"
                " normalisation, or leakbench.models.batch_norm.BatchNorm"
            )
        self.model, self.batches, self.learning_rate = convert_parts(copied(model)), batches, learning_rate
        self.classes, self.seed = classes, seed

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the replies in the order of the messages.

        Warns:
            UserWarning: If gradients or updates are not finite and count as zero.
        """
        messages, self._asked = list(messages), 0
        found: dict[int, Message] = {}
        for alike in _alike([i for i, message in enumerate(messages) if is_train(message)], messages):
            found.update(zip(alike, self._trained([messages[i] for i in alike]), strict=True))
        return [found[i] if i in found else self.answer(message) for i, message in enumerate(messages)]

    def _trained(self, messages: list[Message]) -> Iterator[Message]:
        """Yield the replies to messages with the same arrays."""
        sent = arrays_of(messages[0], "message")
        contexts = [self.contexts[int(message.metadata.dst_node_id)] for message in messages]
        rounds = [round_of(message, context) for context, message in zip(contexts, messages, strict=True)]
        lanes = [(number - 1, client_of(context)) for context, number in zip(contexts, rounds, strict=True)]
        network, examples = self._network(sent), self._examples(lanes)
        apart = runs_apart(network, self.defense.stations, tuple(examples.inputs.shape[3:]))
        most = lanes_per_chunk(network.parameters, examples.batch, bool(self.defense.example), apart)
        count = len(lanes)
        pieces = pieces_of(count, most) if apart else [slice(i, min(i + most, count)) for i in range(0, count, most)]
        work = [partial(self._updates, network, examples.of_lanes(piece), lanes[piece], count) for piece in pieces]
        done = side_by_side(work) if apart else [one() for one in work]
        steps, batch = examples.weights.shape[1:]
        warn_of_zeros(done, rounds[0])
        for piece, update in zip(pieces, done, strict=True):
            for lane, message in enumerate(messages[piece]):
                [key] = message.content.array_records.keys()
                content = RecordDict({key: self._record(sent, network, update, lane, steps)})
                content["metrics"] = MetricRecord({"num-examples": steps * batch})
                yield Message(content, reply_to=message)

    def _examples(self, lanes: list[tuple[int, int]]) -> Examples:
        """Return the examples of lanes (round from 0, client), whose batches must have one shape."""
        pairs = [self.batches(client, number + 1) for number, client in lanes]
        shapes = {tuple(x.shape) for x, _ in pairs}
        if len(shapes) > 1:
            raise InputError(
                f"batches: got the shapes {sorted(shapes)} in one round, expected one (L, B, *s) for all clients"
            )
        inputs, labels = (torch.stack(each) for each in zip(*pairs, strict=True))
        weights = inputs.new_ones(labels.shape)
        return Examples(inputs, one_hot(labels, self.classes), weights, labels.shape[2], padded=False, alone=False)

    @torch.no_grad()
    def _updates(self, network: Network, examples: Examples, lanes: list[tuple[int, int]], cohort: int) -> Signal:
        number, steps = lanes[0][0], examples.weights.shape[1]
        clock = Clock(number, 0, number + 1, steps, cohort=cohort, clients=len(self.contexts))
        rngs = generators(self.seed, "noise", lanes)
        return client_update(network, examples, self.learning_rate, self.defense.stations, clock, rngs)

    def _network(self, sent: Arrays) -> Network:
        names = [name for name, _ in self.model.named_parameters()]
        if absent := [name for name in names if name not in sent]:
            raise InputError(
                f"model: its parameters {absent} are not among the arrays that the server sends, {list(sent)}"
            )
        statistics = [name for name, _ in self.model.named_buffers() if name in sent]
        tensors = {name: torch.from_numpy(sent[name]) for name in (*names, *statistics)}
        tensors |= {name: tensors[name].reshape(p.shape) for name, p in self.model.named_parameters()}
        return Network(self.model, {n: tensors[n] for n in names}, memory={n: tensors[n] for n in statistics})

    def _record(self, sent: Arrays, network: Network, update: Signal, lane: int, steps: int) -> ArrayRecord:
        """Return the arrays of one client's reply, in the order in which they were sent."""
        arrays: Arrays = {}
        for name, array in sent.items():
            if name in update.grads:
                trained = network.parameters[name] + update.grads[name][lane, 0]
                arrays[name] = trained.numpy().reshape(array.shape)
            elif name in update.memory and not is_parameter(name, array):
                arrays[name] = update.memory[name][lane, 0].numpy()
            else:
                arrays[name] = array + steps if name.rpartition(".")[2] == "num_batches_tracked" else array
        return record_of(arrays)


def _alike(where: list[int], messages: list[Message]) -> Iterator[list[int]]:
    """Yield the positions of messages with equal arrays; most strategies send the same to all clients, but some do not."""
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for i in where:
        records = messages[i].content.array_records.values()
        groups.setdefault(tuple(array.data for record in records for array in record.values()), []).append(i)
    yield from groups.values()


@typed_arguments
class TapGrid(Grid):
    """Pass all calls to another grid, and write each reply to a train message into a folder (`leakbench.flower.leaks`).

    This is type-0 for any strategy, also Flower's own wrappers of differential privacy: what arrives, before a strategy's
    own clip or noise. `ProbeStrategy` records what an inner strategy gets.

    Args:
        grid: The engine's grid.
        sink: The folder.
        tap: Name of the leakage point, and of the folder within `sink`.
    """

    def __init__(self, grid: Grid, sink: str | Path, tap: str = "type-0") -> None:
        self.grid, self.sink, self.tap = grid, Path(sink), tap
        self._rounds = 0
        self._sent: dict[int, tuple[int, Arrays]] = {}

    def set_run(self, run: Run) -> None:
        """Set the grid's run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """The grid's run."""
        return self.grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Let the grid make a message."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the grid's nodes."""
        found: Iterable[int] = self.grid.get_node_ids()
        return found

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the descriptions of the grid's nodes."""
        found: Iterable[NodeInfo] = self.grid.get_nodes()
        return found

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages and remember the arrays that each node gets."""
        found: Iterable[str] = self.grid.push_messages(self._remembered(messages))
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and write their arrays."""
        return self._written(self.grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, wait for the replies and write their arrays."""
        return self._written(self.grid.send_and_receive(self._remembered(messages), timeout=timeout))

    def _remembered(self, messages: Iterable[Message]) -> list[Message]:
        messages = list(messages)
        train = [message for message in messages if is_train(message)]
        self._rounds += bool(train)
        for message in train:
            number = round_in(message)
            arrays = arrays_of(message, "message")
            self._sent[int(message.metadata.dst_node_id)] = (self._rounds if number is None else number, arrays)
        return messages

    def _written(self, replies: Iterable[Message]) -> list[Message]:
        replies = list(replies)
        for reply in replies:
            node = int(reply.metadata.src_node_id)
            if is_train(reply) and not reply.has_error() and node in self._sent:
                number, sent = self._sent[node]
                write_reply(self.sink, self.tap, number, reply, sent)
        return replies


def write_reply(sink: Path, tap: str, number: int, reply: Message, sent: Arrays) -> None:
    """Write the arrays of one reply of a round."""
    write_leak(sink, Leak(tap, number, int(reply.metadata.src_node_id), None, arrays_of(reply, "reply"), sent))


Probe: TypeAlias = Callable[[int, Arrays, list[Message]], None]
"""Called with (round from 1, {name: array} that was sent, replies without error) before aggregation."""


@typed_arguments
class ProbeStrategy(Strategy):
    """Pass all calls to another strategy, and show a probe the replies before they are aggregated.

    Around a wrapper of differential privacy at the server, the probe gets what arrives; inside it, around the inner
    strategy, it gets what the wrapper clipped.

    Args:
        strategy: The strategy that does the work.
        probe: A function, or a folder (`leakbench.flower.leaks`).
        tap: Name of the leakage point in the folder.
    """

    def __init__(self, strategy: Strategy, probe: Probe | str | Path, tap: str = "type-0") -> None:
        super().__init__()
        self.strategy, self.tap = strategy, tap
        self.probe = _into(Path(probe), tap) if isinstance(probe, str | Path) else probe
        self._sent: Arrays = {}

    def __repr__(self) -> str:
        return f"ProbeStrategy({self.strategy!r})"

    def summary(self) -> None:
        """Let the strategy log its summary."""
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy make its messages, and remember the arrays."""
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        messages: Iterable[Message] = self.strategy.configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Call the probe and let the strategy aggregate."""
        replies = list(replies)
        self.probe(server_round, self._sent, [reply for reply in replies if not reply.has_error()])
        found: tuple[ArrayRecord | None, MetricRecord | None] = self.strategy.aggregate_train(server_round, replies)
        return found

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy make its messages."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let the strategy aggregate."""
        return self.strategy.aggregate_evaluate(server_round, replies)


def _into(folder: Path, tap: str) -> Probe:
    def probe(number: int, sent: Arrays, replies: list[Message]) -> None:
        for reply in replies:
            write_reply(folder, tap, number, reply, sent)

    return probe
