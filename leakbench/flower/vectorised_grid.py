"""A Flower run without an engine in which leakbench's vectorised trainer answers the train messages of all clients at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from leakbench.defense import Defense
from leakbench.engine.side_by_side import pieces_of, side_by_side
from leakbench.errors import InputError
from leakbench.federated.client import Examples, client_update, runs_apart
from leakbench.federated.simulate import lanes_per_chunk
from leakbench.flower.arrays import Arrays, arrays_of, is_parameter, record_of
from leakbench.flower.defense_mod import check_stations, resolved
from leakbench.flower.in_process_grid import InProcessGrid
from leakbench.flower.whereabouts import client_of, is_train, round_of
from leakbench.models import one_hot
from leakbench.rng import generators
from leakbench.types import Clock, Network, Signal

__all__ = ["Batches", "VectorisedGrid"]

Batches: TypeAlias = Callable[[int, int], tuple[Tensor, Tensor]]
"""(client, round from 1) -> the batches of its local steps, inputs (L, B, *s) and labels (L, B)."""


class VectorisedGrid(InProcessGrid):
    """Answer train messages by L steps of SGD each, all clients of a round side by side, through a recipe's stations.

    The strategy stays Flower's; what a client's train function would do is done by the trainer of `leakbench run`, so that defenses
    inside the local steps (the `example` and `batch` stations) can be tried on a Flower strategy too. Other messages go to the
    ClientApp. Metrics of a reply: `num-examples`, L * B.

    model: with parameters named as in the arrays that the server sends.  batches: what clients train on.
    learning_rate: of the clients.  clients: N.  classes: of the labels.  recipe, seed: as of `DefenseMod`; noise is the same.
    Raises InputError for a recipe with a server station, and for a model with PyTorch's own batch normalisation in train mode.
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
        self.defense = resolved(recipe) if isinstance(recipe, str) else recipe
        check_stations(self.defense, recipe if isinstance(recipe, str) else recipe.title, ("server",))
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules()):
            raise InputError(
                "model: PyTorch's batch normalisation in train mode cannot be vectorised; expected model.eval(), group"
                " normalisation, or leakbench.models.batch_norm.BatchNorm"
            )
        self.model, self.batches, self.learning_rate = model, batches, learning_rate
        self.classes, self.seed = classes, seed

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the replies in the order of the messages."""
        messages, self._asked = list(messages), 0
        found: dict[int, Message] = {}
        for alike in _alike([i for i, message in enumerate(messages) if is_train(message)], messages):
            found.update(zip(alike, self._trained([messages[i] for i in alike]), strict=True))
        return [found[i] if i in found else self.answer(message) for i, message in enumerate(messages)]

    def _trained(self, messages: list[Message]) -> Iterator[Message]:
        """Yield the replies to messages that send the same arrays."""
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
        for piece, update in zip(pieces, done, strict=True):
            for lane, message in enumerate(messages[piece]):
                [key] = message.content.array_records.keys()
                content = RecordDict({key: self._record(sent, network, update, lane, steps)})
                content["metrics"] = MetricRecord({"num-examples": steps * batch})
                yield Message(content, reply_to=message)

    def _examples(self, lanes: list[tuple[int, int]]) -> Examples:
        """Return what the clients (round from 0, client) train on; raises InputError where their batches are of several shapes."""
        held = [self.batches(client, number + 1) for number, client in lanes]
        shapes = {tuple(x.shape) for x, _ in held}
        if len(shapes) > 1:
            raise InputError(
                f"batches: got the shapes {sorted(shapes)} in one round, expected one (L, B, *s) for all clients"
            )
        inputs, labels = (torch.stack(each) for each in zip(*held, strict=True))
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
        return Network(self.model, {n: tensors[n] for n in names}, memory={n: tensors[n] for n in statistics})

    def _record(self, sent: Arrays, network: Network, update: Signal, lane: int, steps: int) -> ArrayRecord:
        """Return the arrays that one client answers with, in the order in which they were sent."""
        arrays: Arrays = {}
        for name, array in sent.items():
            if name in update.grads:
                arrays[name] = (network.parameters[name] + update.grads[name][lane, 0]).numpy()
            elif name in update.memory and not is_parameter(name, array):
                arrays[name] = update.memory[name][lane, 0].numpy()
            else:
                arrays[name] = array + steps if name.rpartition(".")[2] == "num_batches_tracked" else array
        return record_of(arrays)


def _alike(where: list[int], messages: list[Message]) -> Iterator[list[int]]:
    """Yield the positions of messages that send the very same arrays; strategies send one content to all, but some do not."""
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for i in where:
        records = messages[i].content.array_records.values()
        groups.setdefault(tuple(array.data for record in records for array in record.values()), []).append(i)
    yield from groups.values()
