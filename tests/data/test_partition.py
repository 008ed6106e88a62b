"""Partitions: no client gets an example twice, examples are distributed evenly, labels as each method says."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.data.partition import PARTITION, ByGroup, Dirichlet, Iid, Partition, Shards


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labels(n: int, classes: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, classes, (n,), generator=seeded(seed))


@pytest.mark.parametrize("method", [Iid(), Shards(), Dirichlet(alpha=0.3)], ids=lambda method: type(method).__name__)
def test_how_many_clients_hold_an_example_does_not_depend_on_the_order_of_labels(method):
    targets = labels(101, 5)
    counts = [method(ordered, 13, 30, seeded()).copies.sort().values for ordered in (targets, targets.sort().values)]
    assert torch.equal(*counts)


methods = st.sampled_from([Iid(), Shards(), Shards(shards_per_client=1), Dirichlet(alpha=0.1), Dirichlet(alpha=10.0)])


@settings(deadline=None, max_examples=150)
@given(
    methods, st.tuples(st.integers(2, 60), st.integers(1, 6)), st.integers(1, 40), st.integers(1, 20), st.integers(0, 9)
)
def test_every_method_is_even_and_repeats_nothing_within_a_client(method, sizes, clients, half, seed):
    n, classes = sizes
    each = min(2 * half, n - n % 2)
    partition = method(labels(n, classes, seed), clients, each, seeded(seed))
    assert partition.indices.shape == (clients, each) and partition.indices.dtype == torch.int64
    assert all(len(set(row.tolist())) == each for row in partition.indices)
    copies = partition.copies
    assert copies.shape == (n,) and int(copies.sum()) == clients * each
    assert int(copies.max() - copies.min()) <= 1
    assert partition.most_copies == -(-clients * each // n)
    assert partition.mean_copies == pytest.approx(clients * each / n)


@pytest.mark.parametrize("method", [Iid(), Shards(), Dirichlet(alpha=0.5)])
def test_partitions_depend_on_the_generator(method):
    targets = labels(500, 10)
    same = [method(targets, 30, 40, seeded(1)).indices for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(same[0], method(targets, 30, 40, seeded(2)).indices)


def test_copies_of_a_written_partition():
    partition = Partition(2, 2, torch.tensor([1, 2, 1, 0]), lambda _: torch.tensor([[0, 1], [1, 2]]), 2)
    assert (partition.most_copies, partition.mean_copies) == (2, 1.0)


def test_shards_give_the_simulators_labels():
    """50,000 examples of 10 equal classes, 100 clients of 500: 200 shards of one label each, two for each client."""
    targets = torch.arange(10).repeat(5000)
    partition = Shards()(targets, 100, 500, seeded())
    kinds = [len(set(targets[row].tolist())) for row in partition.indices]
    assert set(kinds) == {1, 2}
    # Two of 200 shards have the same label with probability 19 / 199: about 10 of 100 clients.
    assert 2 <= kinds.count(1) <= 20
    assert partition.copies.tolist() == [1] * 50_000


def test_shards_per_client_bounds_the_labels():
    targets = torch.arange(10).repeat_interleave(100)
    for shards in (1, 4):
        partition = Shards(shards_per_client=shards)(targets, 10, 100, seeded())
        assert max(len(set(targets[row].tolist())) for row in partition.indices) <= shards


def test_iid_and_large_alpha_follow_the_population_small_alpha_does_not():
    targets = torch.arange(10).repeat(600)

    def skew(method):
        held = targets[method(targets, 60, 100, seeded()).indices]
        return torch.stack([(held == c).float().mean(1) for c in range(10)]).max(0).values.mean()

    assert skew(Iid()) < 0.2
    assert skew(Dirichlet(alpha=1000.0)) < 0.2
    assert skew(Dirichlet(alpha=0.01)) > 0.7


def test_iid_is_uniform():
    """Each of 20 examples is assigned to client 0 (4 of 20) in a fifth of 2,000 draws; also in a later pass."""
    hits = torch.zeros(2, 20)
    for seed in range(2000):
        rows = Iid()(torch.zeros(20, dtype=torch.int64), 7, 4, seeded(seed)).indices
        hits[0, rows[0]] += 1
        hits[1, rows[6]] += 1
    # 400 expected, standard deviation 18.
    assert float((hits - 400).abs().max()) < 5 * 18


@pytest.mark.slow
@pytest.mark.parametrize("method", [Iid(), Shards(), Dirichlet(alpha=0.5)])
def test_ten_thousand_clients_of_500_in_seconds(method):
    start = time.perf_counter()
    partition = method(labels(60_000, 10), 10_000, 500, seeded())
    assert partition.most_copies == 84
    assert time.perf_counter() - start < 20  # 0.3 to 1 s on one quiet core.


def test_paper_copies_of_lfw_and_cancer():
    lfw = Iid()(labels(2267, 62), 1000, 300, seeded())
    assert lfw.most_copies == 133 and lfw.mean_copies == pytest.approx(132.33, abs=0.01)
    cancer = Iid()(labels(426, 2), 1000, 400, seeded())
    assert cancer.most_copies == 939


@settings(deadline=None, max_examples=60)
@given(
    methods, st.tuples(st.integers(2, 60), st.integers(1, 6)), st.integers(1, 40), st.integers(1, 20), st.integers(0, 9)
)
def test_recomputed_partitions_equal_the_stored_ones(method, sizes, clients, half, seed):
    n, classes = sizes
    each = min(2 * half, n - n % 2)
    kept = method(labels(n, classes, seed), clients, each, seeded(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leakbench.data.partition.MOST_STORED", 0)
        again = method(labels(n, classes, seed), clients, each, seeded(seed))
    assert torch.equal(again.indices, kept.indices) and torch.equal(again.copies, kept.copies)
    some = torch.randint(clients, (5,), generator=seeded(seed))
    assert torch.equal(again.of(some), kept.indices[some])
    assert torch.equal(kept.of(some), kept.indices[some])


@pytest.mark.parametrize("method", [Iid(), Shards(), Dirichlet(alpha=0.5)])
def test_wrong_numbers_are_refused_by_name(method):
    with pytest.raises(InputError, match="examples_per_client: got 12, expected 1 to 10"):
        method(labels(10, 2), 3, 12, seeded())
    with pytest.raises(InputError, match="clients: got 0"):
        method(labels(10, 2), 0, 2, seeded())


def test_shards_must_divide():
    with pytest.raises(InputError, match="got 7, expected a multiple of shards_per_client"):
        Shards()(labels(100, 2), 3, 7, seeded())


@pytest.mark.parametrize(("name", "fields"), [("dirichlet", {}), ("dirichlet", {"alpha": 0.0}), ("shards", {"n": 2})])
def test_wrong_fields_are_refused(name, fields):
    with pytest.raises(InputError, match=r"alpha|'n'"):
        construct(PARTITION.parts[name], fields)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(1, 6), st.integers(0, 9))
def test_by_group_gives_each_client_one_group_and_each_example_at_most_one_copy(sizes, each, seed):
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[
        torch.randperm(sum(sizes), generator=seeded())
    ]
    large = [group for group, size in enumerate(sizes) if size >= each]
    if not large:
        return
    partition = ByGroup()(groups, len(large), each, seeded(seed))
    held = groups[partition.indices]
    assert bool((held == held[:, :1]).all()) and sorted(held[:, 0].tolist()) == large
    assert partition.copies.tolist() == torch.bincount(partition.indices.flatten(), minlength=len(groups)).tolist()
    assert partition.most_copies == 1
    assert torch.equal(partition.of(torch.tensor([0])), partition.indices[:1])
    with pytest.raises(InputError, match=rf"clients: got {len(large) + 1}, expected at most {len(large)}"):
        ByGroup()(groups, len(large) + 1, each, seeded(seed))


def test_by_group_draws_groups_and_their_examples_at_random():
    """3 of 6 groups of 4 examples, 2 of each: over 2,000 seeds each example is drawn in a quarter of them."""
    groups = torch.arange(6).repeat(4)
    hits = torch.zeros(24)
    for seed in range(2000):
        hits[ByGroup()(groups, 3, 2, seeded(seed)).indices.flatten()] += 1
    # 500 expected, standard deviation 19.
    assert float((hits - 500).abs().max()) < 5 * 19
