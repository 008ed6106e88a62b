"""Partitions of the training examples among the clients, as lists of indices without copies of the data.

If N * |D_i| exceeds the number of examples, examples are handed out again. Every method works in *passes*: within a pass,
clients get disjoint lists as long as the examples suffice, then the next pass begins. So no client holds an example twice. Each
pass first takes the examples that were handed out least, so the counts of two examples differ by at most 1.

The lists of many clients are not stored. Each pass stores only its start, and its lists are computed again when one of its
clients is drawn. So memory does not grow with the clients' lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.recipe import Slot
from leakbench.core.words import partition_words

__all__ = ["PARTITION", "ByGroup", "Dirichlet", "Iid", "Partition", "Partitioner", "Shards", "partition_of"]

Integers = np.ndarray[Any, np.dtype[np.int64]]


Deal: TypeAlias = Callable[["Integers", int, np.random.Generator], "Integers"]
"""(the examples of a pass in random order, number of clients, a generator) -> their lists (clients, |D_i|)."""

MOST_STORED = 8_000_000
"""Largest total length of the clients' lists that are stored: 64 MB."""


@dataclass(frozen=True)
class Partition:
    """The examples of each client.

    Args:
        clients: N.
        examples_per_client: |D_i|.
        copies: (n,) int64, the number of clients that hold each of the n training examples.
        dealt: Maps the number of a pass to its lists (clients of the pass, |D_i|).
        group: Number of clients of each pass; the last one may have fewer.
    """

    clients: int
    examples_per_client: int
    copies: Tensor
    dealt: Callable[[int], Tensor]
    group: int

    def of(self, clients: Tensor) -> Tensor:
        """Return the examples (K, |D_i|) of some clients (K,), int64 into the training split."""
        lists = torch.empty(len(clients), self.examples_per_client, dtype=torch.int64)
        numbers = clients // self.group
        for number in torch.unique(numbers).tolist():
            mine = numbers == number
            lists[mine] = self.dealt(number)[clients[mine] % self.group]
        return lists

    @property
    def indices(self) -> Tensor:
        """The lists of all clients, (N, |D_i|)."""
        return self.of(torch.arange(self.clients))

    @property
    def examples(self) -> int:
        """n, the size of the training split."""
        return len(self.copies)

    @property
    def most_copies(self) -> int:
        """Largest number of clients that hold one example."""
        return int(self.copies.max())

    @property
    def mean_copies(self) -> float:
        """Mean number of clients that hold an example, N * |D_i| / n."""
        return self.clients * self.examples_per_client / self.examples


@runtime_checkable
class Partitioner(Protocol):
    """The slot `partition`."""

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Hand out examples to the clients.

        The number of copies of the examples may depend on the counts of the labels, but not on their order: epsilons are computed
        from recorded counts before the data are loaded.

        Args:
            targets: (n,), the labels of the examples; their groups for a part with the class variable `by_groups = True`.

        Raises:
            InputError: If a client would need an example twice.
        """


@part("partition.iid")
class Iid:
    """Each client's examples are drawn at random from all."""

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Return the partition; see `Partitioner`."""
        return _dealt(targets, clients, examples_per_client, rng, _as_it_comes(examples_per_client))


def _as_it_comes(examples_per_client: int) -> Deal:
    return lambda chosen, group, draw: chosen.reshape(group, examples_per_client)


@part("partition.shards")
class Shards:
    """Each client gets a few random slices of the examples sorted by label, and so few labels (McMahan et al. 2017).

    The Fed-alphaCDP simulator cuts the sorted examples (repeated N / 100 times) into 2N shards and gives each client two. Here both
    shards come from the same pass over the data, so that they do not overlap.
    """

    shards_per_client: Annotated[
        Count, Field(description="Number of shards per client, a divisor of `examples_per_client`.")
    ] = 2

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Return the partition; see `Partitioner`."""
        if examples_per_client % self.shards_per_client:
            raise InputError(
                f"examples_per_client: got {examples_per_client}, expected a multiple of shards_per_client"
                f" ({self.shards_per_client})"
            )
        labels = targets.cpu().numpy()

        def deal(chosen: Integers, group: int, draw: np.random.Generator) -> Integers:
            by_label = chosen[labels[chosen].argsort(kind="stable")]
            shards = draw.permutation(by_label.reshape(group * self.shards_per_client, -1))
            return draw.permuted(shards.reshape(group, examples_per_client), axis=1)

        return _dealt(targets, clients, examples_per_client, rng, deal)


@part("partition.dirichlet")
class Dirichlet:
    """Each client's labels follow its own draw from a symmetric Dirichlet(alpha) over the classes (Hsu et al. 2019).

    A label without examples left in the pass is skipped, and the client's other labels share its weight. So the last clients of
    a pass take the rest, as in the paper.
    """

    alpha: Annotated[
        Positive,
        Field(
            description="Concentration: small values give clients with one label, large ones nearly the iid partition."
        ),
    ]

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Return the partition; see `Partitioner`."""
        labels = targets.cpu().numpy()

        def deal(chosen: Integers, group: int, draw: np.random.Generator) -> Integers:
            by_label = chosen[labels[chosen].argsort(kind="stable")]
            stock = np.bincount(labels[chosen])
            ends = stock.cumsum()
            lists = np.empty((group, examples_per_client), dtype=np.int64)
            for row in lists:
                taken = _labels(self.alpha, stock, examples_per_client, draw)
                slices = [by_label[e - s : e - s + t] for e, s, t in zip(ends, stock, taken, strict=True) if t]
                row[:] = np.concatenate(slices)
                stock = stock - taken
            # Earlier clients choose from more examples, so the clients are shuffled.
            return draw.permuted(draw.permutation(lists), axis=1)

        return _dealt(targets, clients, examples_per_client, rng, deal)


def _labels(alpha: float, stock: Integers, examples: int, draw: np.random.Generator) -> Integers:
    """Return the number of examples of each class for one client: at most `stock` of each, `examples` in total."""
    weights = draw.dirichlet(np.full(len(stock), alpha))
    taken = np.zeros_like(stock)
    while missing := examples - int(taken.sum()):
        left = stock - taken
        share = np.where(left > 0, weights, 0.0)
        if share.sum() < 1e-12:  # No class with a weight has examples left, so the client takes from the others.
            share = left.astype(float)
        taken = taken + np.minimum(draw.multinomial(missing, share / share.sum()), left)
    return taken


@part("partition.by_group")
class ByGroup:
    """Each client has random examples of one group, such as the images of one writer (FEMNIST) or the photographs of one person.

    Each group is at most one client, so no example has two copies. Groups with too few examples, and further examples of a
    group, are left out. An epsilon of one client is then one of a person.
    """

    by_groups: ClassVar[bool] = True

    def __call__(self, targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator) -> Partition:
        """Return the partition; see `Partitioner`.

        Raises:
            InputError: If there are fewer groups with enough examples than clients.
        """
        groups = targets.cpu().numpy()
        _check(len(groups), clients, examples_per_client)
        draw, sizes = _numpy(rng), np.bincount(groups)
        large = np.flatnonzero(sizes >= examples_per_client)
        if clients > len(large):
            raise InputError(
                f"clients: got {clients}, expected at most {len(large)}, the number of groups with at least"
                f" {examples_per_client} examples (partition by_group); lower --clients, or examples_per_client in the recipe"
            )
        order = draw.permutation(len(groups))
        order = order[groups[order].argsort(kind="stable")]  # By group, and at random within each.
        starts = sizes.cumsum() - sizes
        chosen = draw.permutation(large)[:clients]
        lists = order[starts[chosen, None] + np.arange(examples_per_client)]
        copies = np.bincount(lists.ravel(), minlength=len(groups))
        whole = torch.from_numpy(lists)
        return Partition(clients, examples_per_client, torch.from_numpy(copies), lambda _: whole, clients)


@dataclass(frozen=True)
class _Start:
    """The start of a pass.

    Args:
        state: State of the generator.
        group: Number of clients of the pass.
        ahead: Packed bits of the examples that were handed out once more than the others; None without such examples.
    """

    state: Any
    group: int
    ahead: np.ndarray[Any, np.dtype[np.uint8]] | None


def _dealt(targets: Tensor, clients: int, examples_per_client: int, rng: torch.Generator, deal: Deal) -> Partition:
    """Compute all passes once, and store their lists, or only the start of each pass if the lists are too long."""
    examples = len(targets)
    _check(examples, clients, examples_per_client)
    draw, most = _numpy(rng), examples // examples_per_client
    keep, starts, stored = clients * examples_per_client <= MOST_STORED, list[_Start](), list[Tensor]()
    counts = np.zeros(examples, dtype=np.int64)
    for first in range(0, clients, most):
        ahead = counts > counts.min()
        start = _Start(
            draw.bit_generator.state, min(most, clients - first), np.packbits(ahead) if ahead.any() else None
        )
        lists, chosen = _pass(start, ahead, examples_per_client, deal, draw)
        counts[chosen] += 1
        if keep:
            stored.append(torch.from_numpy(lists))
        else:
            starts.append(start)

    def again(number: int) -> Tensor:
        start, restored = starts[number], np.random.default_rng(0)
        restored.bit_generator.state = start.state
        ahead = np.zeros(examples, dtype=bool)
        if start.ahead is not None:
            ahead = np.unpackbits(start.ahead, count=examples).astype(bool)
        return torch.from_numpy(_pass(start, ahead, examples_per_client, deal, restored)[0])

    dealt = stored.__getitem__ if keep else again
    return Partition(clients, examples_per_client, torch.from_numpy(counts), dealt, most)


def _pass(
    start: _Start,
    ahead: np.ndarray[Any, np.dtype[np.bool_]],
    examples_per_client: int,
    deal: Deal,
    draw: np.random.Generator,
) -> tuple[Integers, Integers]:
    """Return (the lists of one pass, its examples)."""
    order = draw.permutation(len(ahead))
    # The examples with fewer copies come first.
    order = np.concatenate([order[~ahead[order]], order[ahead[order]]])[: start.group * examples_per_client]
    # Without this permutation, the first clients of a pass would get all of them.
    lists = deal(draw.permutation(order), start.group, draw)
    return lists, order


def _check(examples: int, clients: int, examples_per_client: int) -> None:
    if clients < 1:
        raise InputError(f"clients: got {clients}, expected at least 1")
    if not 1 <= examples_per_client <= examples:
        raise InputError(
            f"examples_per_client: got {examples_per_client}, expected 1 to {examples}, the number of training"
            " examples, since no client holds an example twice"
        )


def _numpy(rng: torch.Generator) -> np.random.Generator:
    """Return a NumPy generator seeded by the next number of `rng`: NumPy sorts and shuffles rows without threads."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))


PARTITION = Slot("partition", ("leakbench.data.partition",))


def partition_of(words: str) -> Partitioner:
    """Return the partition of an option: `iid`, `shards`, `shards:N` or `dirichlet:A`.

    Raises:
        InputError: For other words, and for a number out of its range.
    """
    name, number = partition_words(words)
    if name == "shards":
        return Shards() if number is None else Shards(int(number))
    return Iid() if number is None else Dirichlet(number)
