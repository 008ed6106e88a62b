"""Factorizations of prefix sums: noise streams against matrices, trees against their nodes, and epsilons."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.core.errors import InputError
from leakbench.privacy.accountants import ORDERS, pld, rdp
from leakbench.privacy.factorization import (
    Banded,
    Buffered,
    Factorization,
    Tree,
    amplified,
    squared_error,
    unamplified,
)
from leakbench.privacy.factorization_search import Dense, banded, buffered, dense, independent, square_root
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.participation import EVERY, SINGLE, Participation, Reals, sensitivity

DELTA = 1e-5

KINDS: dict[str, tuple[Factorization, int]] = {
    # With the number of tensors in the state before the first round.
    "independent": (independent(13), 0),
    "square root": (square_root(13, 5), 4),
    "banded": (banded(13, 4), 3),
    "all bands": (banded(13, 13), 12),
    "negative band": (Banded(13, (1.0, -0.5, 0.25)), 2),
    "buffered": (buffered(13, 2), 2),
    "no buffer": (Buffered(13, (), ()), 0),
    "fast buffers": (Buffered(13, (0.7, 2.5), (0.9, 0.0)), 2),
    "tree": (Tree(13), 4),
    "trees": (Tree(13, 6), 3),
    "trees of one round": (Tree(13, 1), 1),
    "dense": (dense(13), 0),
    "any": (Dense(np.tril(np.random.default_rng(0).random((13, 13))) + np.eye(13)), 0),
}


def noises(factorization: Factorization, z: torch.Tensor) -> torch.Tensor:
    state, released = factorization.start(z[0]), []
    for index, independent_noise in enumerate(z):
        noise, state = factorization.correlate(independent_noise, state, index)
        released.append(noise)
    return torch.stack(released)


def normals(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("factorization", "memory"), KINDS.values(), ids=KINDS)
def test_the_stream_is_the_inverse_times_all_noises(factorization: Factorization, memory: int) -> None:
    z = normals(13, 2, 3)
    released = noises(factorization, z)
    expected = np.linalg.solve(factorization.matrix(), z.reshape(13, 6).numpy())
    np.testing.assert_allclose(released.reshape(13, 6).numpy(), expected, rtol=1e-9, atol=1e-10)
    assert factorization.start(z[0]).shape == (memory, 2, 3)


@pytest.mark.parametrize(("factorization", "memory"), KINDS.values(), ids=KINDS)
def test_the_state_stays_as_large_as_it_starts_and_is_not_changed(factorization: Factorization, memory: int) -> None:
    z = normals(13, 3)
    state = factorization.start(z[0])
    for index, noise in enumerate(z):
        given = (noise.clone(), state.clone())
        _, after = factorization.correlate(noise, state, index)
        assert torch.equal(noise, given[0]) and torch.equal(state, given[1])
        assert len(after) == (index + 1 if isinstance(factorization, Dense) else memory)
        state = after


@pytest.mark.parametrize(("factorization", "memory"), KINDS.values(), ids=KINDS)
def test_a_lane_has_the_same_noise_alone(factorization: Factorization, memory: int) -> None:
    z = normals(13, 5, 33).float()
    together, alone = noises(factorization, z), noises(factorization, z[:, 2:3])
    assert together.dtype == torch.float32
    assert torch.equal(together[:, 2:3], alone)


@pytest.mark.parametrize(("factorization", "memory"), KINDS.values(), ids=KINDS)
def test_deviations_are_the_norms_of_the_rows(factorization: Factorization, memory: int) -> None:
    inverse = np.linalg.inv(factorization.matrix())
    prefix = np.tri(13) @ inverse
    assert factorization.rounds == 13
    np.testing.assert_allclose(factorization.round_deviations(), np.linalg.norm(inverse, axis=1), rtol=1e-10)
    np.testing.assert_allclose(factorization.prefix_deviations(), np.linalg.norm(prefix, axis=1), rtol=1e-10)
    scale = factorization.sensitivity(Participation(5)).value ** 2
    error = squared_error(factorization, Participation(5))
    assert error.mean == pytest.approx(scale * (prefix**2).sum() / 13)
    assert error.largest == pytest.approx(scale * (prefix**2).sum(axis=1).max())


@settings(deadline=None)
@given(data=st.data(), rounds=st.integers(1, 30), buffers=st.integers(1, 5))
def test_the_inverse_of_buffers_has_buffers(data: st.DataObject, rounds: int, buffers: int) -> None:
    weights = data.draw(st.lists(st.floats(0, 0.5), min_size=buffers, max_size=buffers))
    decays = data.draw(st.lists(st.floats(0, 0.999), min_size=buffers, max_size=buffers))
    made = Buffered(rounds, tuple(weights), tuple(decays))
    expected = np.linalg.solve(made.matrix(), np.eye(1, rounds)[0])
    np.testing.assert_allclose(made.inverse_column(), expected, atol=1e-7 * max(1, np.abs(expected).max()))
    assert (made.inverse()[0] <= 0).all()


def nodes(position: int) -> list[tuple[int, int]]:
    """The nodes (first, last) of the binary decomposition of the rounds 1 ... position, by definition."""
    found, first = [], 1
    for level in reversed(range(position.bit_length())):
        if position >> level & 1:
            found.append((first, first + 2**level - 1))
            first += 2**level
    return found


@pytest.mark.parametrize(("rounds", "rounds_per_tree"), [(1, None), (16, None), (21, None), (21, 8), (21, 5)])
def test_a_prefix_sum_on_a_tree_has_the_noise_of_its_nodes(rounds: int, rounds_per_tree: int | None) -> None:
    z = normals(rounds)
    sums = torch.cumsum(noises(Tree(rounds, rounds_per_tree), z), 0)
    length = rounds_per_tree or rounds
    for index in range(rounds):
        trees, position = divmod(index + 1, length)
        # A node is completed in its last round, whose z it takes.
        used = [tree * length + last - 1 for tree in range(trees) for _, last in nodes(length)]
        used += [trees * length + last - 1 for _, last in nodes(position)]
        assert sums[index].item() == pytest.approx(z[used].sum().item(), abs=1e-12)
        assert Tree(rounds, rounds_per_tree).prefix_deviations()[index] == pytest.approx(math.sqrt(len(used)))


def tree_epsilon(event: dp_accounting.DpEvent) -> float:
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    return float(RdpAccountant(ORDERS, relation).compose(event).get_epsilon(DELTA))


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7, 8, 100, 127, 128, 2047, 100_000])
@pytest.mark.parametrize("node_noise", [1.5, 12.0])
def test_a_tree_has_the_epsilon_of_dp_accounting(rounds: int, node_noise: float) -> None:
    sigma = node_noise / Tree(rounds).sensitivity(SINGLE).value
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(node_noise, rounds)
    assert rdp((unamplified(sigma),), DELTA) == pytest.approx(tree_epsilon(event), rel=1e-9)


@pytest.mark.parametrize(("epochs", "rounds"), [(3, 10), (4, 16), (2, 31)])
def test_a_tree_for_each_epoch_has_the_epsilon_of_composed_trees(epochs: int, rounds: int) -> None:
    tree = Tree(epochs * rounds, rounds)
    sigma = 9.0 / tree.sensitivity(Participation(rounds)).value
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.SingleEpochTreeAggregationDpEvent(9.0, rounds), epochs)
    assert rdp((unamplified(sigma),), DELTA) == pytest.approx(tree_epsilon(event), rel=1e-9)


def test_sampled_groups_of_banded_noise_have_the_epsilon_of_sampled_releases() -> None:
    mechanism = amplified(banded(100, 8), 2.0, rate=0.01)
    assert mechanism == Mechanism(2.0, 0.08, 13)
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.08, dp_accounting.GaussianDpEvent(2.0)), 13
    )
    expected = RdpAccountant(ORDERS).compose(event).get_epsilon(DELTA)
    assert rdp((mechanism,), DELTA) == pytest.approx(expected, rel=1e-6)
    assert amplified(banded(100, 8), 2.0, 0.01, groups=10) == Mechanism(2.0, 0.1, 10)


def test_one_band_is_sampled_as_in_dp_sgd() -> None:
    assert amplified(independent(100), 1.1, rate=0.02) == Mechanism(1.1, 0.02, 100)


def test_full_groups_have_no_amplification() -> None:
    # Every unit of the group is in the round: k Gaussian releases, as without sampling at k participations.
    made = banded(96, 8)
    everyone = amplified(made, 2.0, rate=1 / 8)
    ratio = made.sensitivity(Participation(8)).value / made.sensitivity(SINGLE).value
    assert everyone == Mechanism(2.0, 1.0, 12) and ratio == pytest.approx(math.sqrt(12))
    assert pld((everyone,), DELTA) == pytest.approx(pld((unamplified(2.0 / ratio),), DELTA), rel=1e-6)


@pytest.mark.parametrize("workload", [np.tri(6), np.tri(6)[-1:], np.random.default_rng(1).random((3, 6))])
def test_no_correlation_helps_a_unit_that_takes_part_in_every_round(workload: Reals) -> None:
    """|A C^-1| sens(C) >= the sum of the norms of A's columns, by contributions along these columns; a diagonal C attains it.

    So noise that each client correlates over its own updates gains nothing against an observer of all of them. The last sum alone
    has least error with independent noise of one scale.
    """
    norms = np.linalg.norm(workload, axis=0)
    contributions = (workload / norms).T
    best = np.diag(np.sqrt(norms))
    scaled = sensitivity(best, EVERY)
    assert scaled.exact and np.linalg.norm(workload @ np.linalg.inv(best)) * scaled.value == pytest.approx(norms.sum())
    rng = np.random.default_rng(0)
    for spread in (0.01, 0.3, 1.0) * 20:
        c = best @ (np.eye(6) + spread * np.tril(rng.normal(size=(6, 6))))
        least = np.linalg.norm(workload @ np.linalg.inv(c)) * np.linalg.norm(c @ contributions)
        assert least >= norms.sum() * (1 - 1e-9)
        assert np.linalg.norm(c @ contributions) <= sensitivity(c, EVERY).value * (1 + 1e-9)


def test_independent_noise_has_the_error_of_dp_sgd() -> None:
    error = squared_error(independent(40), EVERY)
    assert error.largest == pytest.approx(40 * 40) and error.mean == pytest.approx(40 * 41 / 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Banded(3, ()), "coefficients: got 0, expected between 1 and 3"),
        (lambda: Banded(1, (1.0, 0.5)), "coefficients: got 2, expected between 1 and 1"),
        (lambda: Banded(3, (2.0, 0.5)), "expected finite numbers, the first one 1"),
        (lambda: Banded(3, (1.0, math.nan)), "expected finite numbers, the first one 1"),
        (lambda: Buffered(0, (), ()), "rounds: got 0"),
        (lambda: Buffered(3, (0.1,), ()), "weights: got 1, expected one for each of 0 decays"),
        (lambda: Buffered(3, (-0.1,), (0.5,)), r"weights: got \(-0.1,\), expected finite numbers >= 0"),
        (lambda: Buffered(3, (0.1,), (1.0,)), r"decays: got \(1.0,\), expected numbers in \[0, 1\)"),
        (lambda: Tree(0), "rounds: got 0"),
        (lambda: Tree(3, 0), "rounds_per_tree: got 0"),
        (lambda: Dense(np.ones((2, 2))), r"strategy: got \(2, 2\), expected a lower-triangular"),
        (lambda: Dense(np.zeros((2, 2))), "positive diagonal"),
        (lambda: Dense(np.ones((2, 1))), r"strategy: got \(2, 1\)"),
        (lambda: amplified(banded(9, 3), 1.0, 0.1, groups=2), "groups: got 2, expected at least 3"),
        (lambda: amplified(banded(9, 3), 1.0, 0.34), r"rate: got 0.34, expected a number in \[0, 1 / 3\]"),
        (lambda: amplified(banded(9, 3), 1.0, -0.1), "rate: got -0.1"),
    ],
)
def test_wrong_numbers_are_refused_by_name(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
