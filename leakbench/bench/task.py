"""The federation that is timed: the papers' CNN on 28 x 28 pictures, 34,720 parameters, batches of 5, the paper's Fed-CDP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.bench.pictures import made_up
from leakbench.data.dataset import Dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.federated.partition import Partition, Shards
from leakbench.federated.simulate import train
from leakbench.models import build, parameters
from leakbench.recipe import resolve
from leakbench.rng import generator
from leakbench.types import Network, Parameters

__all__ = ["BATCH", "CLASSES", "CLIP", "HELD", "RATE", "SHAPE", "SIGMA", "Task", "defense", "fresh_model", "task"]

SHAPE, CLASSES, BATCH, HELD, RATE = (1, 28, 28), 10, 5, 500, 0.05
"""MNIST's pictures; B, |D_i| and the learning rate of the Fed-alphaCDP paper's federation."""

CLIP, SIGMA = 4.0, 6.0
"""Of `fed_cdp`: each tensor of each example is clipped at 4 and gets noise of 6 times that."""


@dataclass(frozen=True)
class Task:
    """A federation at its first round."""

    model: nn.Module
    start: Parameters
    data: Dataset
    partition: Partition
    federation: Federation

    def round(self, mechanism: Defense) -> Parameters:
        """Train one round of all K_t clients and return the parameters after it, as a cell does."""
        made = train(Network(self.model, self.start), self.data, self.partition, self.federation, mechanism, 0)
        return next(made).parameters

    def held(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the examples of one client, inputs (|D_i|, *s) and labels (|D_i|,), in an order of its own."""
        order = torch.randperm(HELD, generator=generator(0, "bench order", client))
        [held] = self.partition.of(torch.tensor([client]))
        mine = held[order]
        return self.data.train_inputs[mine], self.data.train_targets[mine]


def fresh_model() -> nn.Module:
    """Return the CNN at its first weights."""
    return build("cnn", SHAPE, CLASSES, generator(0, "model"), "default")


def task(clients: int, iterations: int, population: int = 1000, examples: int = 60_000) -> Task:
    """Return the federation of `population` clients of which `clients` train for so many local iterations.

    examples: of the training split; the test split has one, since measuring accuracy is no part of a round.
    """
    data = made_up(examples, 1, SHAPE, CLASSES)
    federation = Federation(
        rounds=1,
        batch=BATCH,
        examples_per_client=HELD,
        clients=max(population, clients),
        clients_per_round=clients,
        local_iterations=iterations,
        learning_rate=RATE,
        partition=Shards(),
    )
    rng = generator(0, "partition")
    partition = federation.partition(data.train_targets, federation.clients, HELD, rng)
    model = fresh_model()
    return Task(model, parameters(model), data, partition, federation)


def defense(name: str) -> Defense:
    """Return a defense of the catalog."""
    return resolve("defenses", Defense, name)[1]
