"""The federation of the measurements: the papers' CNN on 28 x 28 pictures, 34,720 parameters, batches of 5, Fed-CDP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.core.recipe import resolve
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network, Parameters
from leakbench.data.dataset import Dataset, everyone
from leakbench.data.partition import Partition, Shards
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.transform import Stations, Transform
from leakbench.federated.client import Examples, client_update
from leakbench.federated.simulate import train
from leakbench.models import build, one_hot, parameters

__all__ = [
    "BATCH",
    "CHECKED",
    "CHECKED_CLIP",
    "CLASSES",
    "CLIP",
    "HELD",
    "RATE",
    "SHAPE",
    "SIGMA",
    "BenchTask",
    "check_same",
    "defense",
    "fresh_model",
    "made_up",
    "our_update",
    "task",
]

SHAPE, CLASSES, BATCH, HELD, RATE = (1, 28, 28), 10, 5, 500, 0.05
"""MNIST's pictures; B, |D_i| and the learning rate of the Fed-alphaCDP paper's federation."""

CLIP, SIGMA = 4.0, 6.0
"""Clip and noise of `fed_cdp`: each tensor of each example is clipped at 4 and gets noise of 6 times that."""


@dataclass(frozen=True)
class BenchTask:
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
        """Return the examples of one client, inputs (|D_i|, *s) and labels (|D_i|,), in a random order."""
        order = torch.randperm(HELD, generator=generator(0, "bench order", client))
        [held] = self.partition.of(torch.tensor([client]))
        mine = held[order]
        return self.data.train_inputs[mine], self.data.train_targets[mine]


def fresh_model() -> nn.Module:
    """Return the CNN at its first weights."""
    return build("cnn", SHAPE, CLASSES, generator(0, "model"), "default")


def task(clients: int, iterations: int, population: int = 1000, examples: int = 60_000) -> BenchTask:
    """Return the federation of `population` clients, `clients` of them in a round of `iterations` local iterations.

    Args:
        examples: Number of training examples. The test split has one, since a round does not include a measurement of accuracy.
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
    return BenchTask(model, parameters(model), data, partition, federation)


def defense(name: str) -> Defense:
    """Return a defense of the catalog."""
    return resolve("defenses", Defense, name)[1]


def made_up(train: int, test: int, shape: tuple[int, int, int], classes: int = 10) -> Dataset:
    """Return pictures of a shape (C, H, W), enlarged from uniform noise with a fourth of the side, with labels in turn."""
    drawn = {n: _smooth(n, count, shape) for n, count in (("train", train), ("test", test))}
    targets = {n: torch.arange(len(x)) % classes for n, x in drawn.items()}
    return Dataset(
        name="made up",
        kind="image",
        train_inputs=drawn["train"],
        train_targets=targets["train"],
        test_inputs=drawn["test"],
        test_targets=targets["test"],
        class_names=tuple(map(str, range(classes))),
        victims=everyone(targets["train"]),
        content="made up",
    )


def _smooth(split: str, count: int, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    coarse = torch.rand(count, channels, -(-height // 4), -(-width // 4), generator=generator(0, f"bench {split}"))
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear").clamp_(0, 1)


CHECKED, CHECKED_CLIP = 5, 1.0
"""Local iterations and clip of the comparison of updates: this clip reduces some tensors, that of `fed_cdp` none."""

TOLERANCE = 1e-5
"""Tolerance of the comparison, as a share of the largest coordinate of an update, in float32."""


def our_update(
    task: BenchTask, station: tuple[Transform, ...], inputs: Tensor, labels: Tensor, iterations: int
) -> Parameters:
    """Return the update of one client with the transforms of `station`, batch after batch, without noise."""
    used = iterations * BATCH
    x = inputs[:used].reshape(1, iterations, BATCH, *inputs.shape[1:])
    y = one_hot(labels[:used], CLASSES).reshape(1, iterations, BATCH, CLASSES)
    examples = Examples(x, y, torch.ones(1, iterations, BATCH), BATCH, alone=False)
    stations = Stations(example=station)
    with torch.no_grad():
        update = client_update(
            Network(task.model, task.start), examples, RATE, stations, Clock(0, 0, 1, iterations), None
        )
    return {n: u[0, 0] for n, u in update.grads.items()}


def check_same(what: str, ours: Parameters, theirs: Parameters) -> None:
    """Raise RuntimeError if a reference's update differs, since its time is then not comparable."""
    for (name, u), v in zip(ours.items(), theirs.values(), strict=True):
        error = float((u - v).abs().max() / u.abs().max().clamp_min(1e-30))
        if not error <= TOLERANCE:
            raise RuntimeError(f"{what} does other work than ours: {name} differs by {error:.1e} of its largest number")
