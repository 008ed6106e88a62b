"""How the training examples are handed out to the clients: lists of indices, never copies of the data.

Where N * |D_i| is more than there are examples, examples are handed out again. Every method deals in *passes*: as many
clients as the examples suffice for get disjoint lists, then the next pass begins. So no client ever holds an example
twice, and since each pass takes the examples that were handed out least, no two examples' counts differ by more than 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from leakbench.errors import InputError
from leakbench.part import Count, Positive, part

__all__ = ["PARTITIONS", "Dirichlet", "Iid", "Partition", "Partitioner", "Shards"]

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Partition:
    """Which examples each client holds.

    indices: (clients, examples_per_client) int64 into the training split, no index twice in a row.
    examples: n, the size of the training split.
    """

    indices: Tensor
    examples: int

    @property
    def copies(self) -> Tensor:
        """(n,) int64: how many clients hold each example."""
        return torch.bincount(self.indices.flatten(), minlength=self.examples)

    @property
    def most_copies(self) -> int:
        """The most clients that hold one example."""
        return int(self.copies.max())

    @property
    def mean_copies(self) -> float:
        """Mean over all n examples of how many clients hold it: N * |D_i| / n."""
        return self.indices.numel() / self.examples


@runtime_checkable
class Partitioner(Protocol):
    """The slot `partition`."""

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Hand out examples with labels `targets` (n,); raise InputError where a client would need an example twice."""


@part
class Iid:
    """Each client's examples are drawn at random from all."""

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Return the partition; see `Partitioner`."""
        draw = _numpy(rng)
        dealt = [chosen for chosen, _ in _passes(len(targets), clients, examples_per_client, draw)]
        return _partition(dealt, targets, examples_per_client)


@part
class Shards:
    """Each client gets a few random slices of the examples sorted by label, so few labels (McMahan et al. 2017).

    The Fed-alphaCDP simulator cuts the sorted examples (repeated N / 100 times) into 2N shards and gives each client
    two; here the two are drawn from the same pass over the data, so that they never overlap.

    shards_per_client: must divide examples_per_client.
    """

    shards_per_client: Count = 2

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Return the partition; see `Partitioner`."""
        if examples_per_client % self.shards_per_client:
            raise InputError(
                f"examples_per_client: got {examples_per_client}, expected a multiple of shards_per_client"
                f" ({self.shards_per_client})"
            )
        draw, labels = _numpy(rng), targets.cpu().numpy()
        dealt = []
        for chosen, group in _passes(len(labels), clients, examples_per_client, draw):
            by_label = chosen[labels[chosen].argsort(kind="stable")]
            shards = draw.permutation(by_label.reshape(group * self.shards_per_client, -1))
            dealt.append(draw.permuted(shards.reshape(group, examples_per_client), axis=1))
        return _partition(dealt, targets, examples_per_client)


@part
class Dirichlet:
    """Each client's labels follow its own draw from a symmetric Dirichlet(alpha) over the classes (Hsu et al. 2019).

    A label that a pass has used up is left out and the client's other labels share its weight, so the last clients of a
    pass take what is left, as in the paper.  alpha: small gives clients of one label, large nearly the iid partition.
    """

    alpha: Positive

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Return the partition; see `Partitioner`."""
        draw, labels = _numpy(rng), targets.cpu().numpy()
        dealt = []
        for chosen, group in _passes(len(labels), clients, examples_per_client, draw):
            by_label = chosen[labels[chosen].argsort(kind="stable")]
            stock = np.bincount(labels[chosen])
            ends = stock.cumsum()
            lists = np.empty((group, examples_per_client), dtype=np.int64)
            for row in lists:
                taken = _labels(self.alpha, stock, examples_per_client, draw)
                slices = [by_label[e - s : e - s + t] for e, s, t in zip(ends, stock, taken, strict=True) if t]
                row[:] = np.concatenate(slices)
                stock = stock - taken
            # Earlier clients found fuller classes; a client's number must not say so.
            dealt.append(draw.permuted(draw.permutation(lists), axis=1))
        return _partition(dealt, targets, examples_per_client)


def _labels(alpha: float, stock: Integers, examples: int, draw: np.random.Generator) -> Integers:
    """Return how many examples of each class one client takes, at most the `stock` of each, `examples` together."""
    weights = draw.dirichlet(np.full(len(stock), alpha))
    taken = np.zeros_like(stock)
    while missing := examples - int(taken.sum()):
        left = stock - taken
        share = np.where(left > 0, weights, 0.0)
        if share.sum() < 1e-12:  # All that the client likes is used up: it takes what there is.
            share = left.astype(float)
        taken = taken + np.minimum(draw.multinomial(missing, share / share.sum()), left)
    return taken


def _passes(
    examples: int, clients: int, examples_per_client: int, draw: np.random.Generator
) -> Iterator[tuple[Integers, int]]:
    """Yield (the examples of a pass in random order, how many clients share them) until all clients are served."""
    if clients < 1:
        raise InputError(f"clients: got {clients}, expected at least 1")
    if not 1 <= examples_per_client <= examples:
        raise InputError(
            f"examples_per_client: got {examples_per_client}, expected 1 to {examples}, the number of training"
            " examples, since no client holds an example twice"
        )
    counts = np.zeros(examples, dtype=np.int64)
    for first in range(0, clients, examples // examples_per_client):
        group = min(examples // examples_per_client, clients - first)
        order = draw.permutation(examples)
        order = order[counts[order].argsort(kind="stable")][: group * examples_per_client]
        counts[order] += 1
        # Examples that lag behind came first; without this the first clients of a pass would share them.
        yield draw.permutation(order), group


def _numpy(rng: torch.Generator) -> np.random.Generator:
    """Return a NumPy generator seeded by the next number of `rng`: NumPy sorts and shuffles rows without threads."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))


def _partition(dealt: list[Integers], targets: Tensor, examples_per_client: int) -> Partition:
    lists = np.concatenate([d.reshape(-1, examples_per_client) for d in dealt])
    return Partition(torch.from_numpy(lists), len(targets))


PARTITIONS: dict[str, type[Partitioner]] = {"shards": Shards, "iid": Iid, "dirichlet": Dirichlet}
