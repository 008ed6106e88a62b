"""Sensitivities of matrix mechanisms against all patterns of participation, closed forms and each other."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.core.errors import InputError
from leakbench.privacy.factorization import Tree
from leakbench.privacy.participation import (
    EVERY,
    SINGLE,
    Participation,
    Reals,
    sensitivity,
    toeplitz,
    toeplitz_sensitivity,
)


def patterns(rounds: int, participation: Participation) -> Iterator[tuple[int, ...]]:
    """All sets of rounds of one unit, by the definition."""
    for size in range(1, rounds + 1):
        if participation.most is None or size <= participation.most:
            for chosen in itertools.combinations(range(rounds), size):
                if all(b - a >= participation.separation for a, b in itertools.pairwise(chosen)):
                    yield chosen


def with_signs(matrix: Reals, participation: Participation) -> float:
    """The largest ||C u|| over scalar contributions of 1 and -1: attained, so at most the sensitivity."""
    best = 0.0
    for chosen in patterns(len(matrix), participation):
        for signs in itertools.product((1, -1), repeat=len(chosen) - 1):
            best = max(best, float(np.linalg.norm(matrix[:, list(chosen)] @ np.array([1, *signs]))))
    return best


def absolute(matrix: Reals, participation: Participation) -> float:
    """The largest root of a sum of |C^T C| over the rounds of one unit: at least the sensitivity."""
    gram = np.abs(matrix.T @ matrix)
    return math.sqrt(max(gram[np.ix_(c, c)].sum() for c in patterns(len(matrix), participation)))


PARTICIPATIONS = st.builds(Participation, st.integers(1, 7), st.none() | st.integers(1, 4))
ENTRIES = st.sampled_from([-1.0, -0.5, 0.0, 0.0, 0.25, 0.5, 1.0, 1.5])


@given(rounds=st.integers(1, 9), participation=PARTICIPATIONS)
def test_count_is_the_size_of_the_largest_pattern(rounds: int, participation: Participation) -> None:
    assert participation.count(rounds) == max(map(len, patterns(rounds, participation)))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rounds=st.integers(1, 6), participation=PARTICIPATIONS)
def test_any_matrix_has_a_bound_above_all_patterns_and_exact_means_equal(
    data: st.DataObject, rounds: int, participation: Participation
) -> None:
    entries = data.draw(st.lists(ENTRIES, min_size=rounds**2, max_size=rounds**2))
    matrix = np.tril(np.array(entries).reshape(rounds, rounds)) + 2 * np.eye(rounds)
    computed = sensitivity(matrix, participation)
    assert computed.value >= absolute(matrix, participation) * (1 - 1e-12)
    if computed.exact:
        assert computed.value == pytest.approx(with_signs(matrix, participation), rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0]), min_size=1, max_size=8), participation=PARTICIPATIONS)
def test_falling_coefficients_have_the_exact_sensitivity(steps: list[float], participation: Participation) -> None:
    column = np.cumsum(steps[::-1])[::-1] + 0.05
    computed = toeplitz_sensitivity(column, participation)
    assert computed.exact
    assert computed.value == pytest.approx(absolute(toeplitz(column), participation), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(coefficients=st.lists(ENTRIES, min_size=1, max_size=3), rounds=st.integers(3, 9), most=st.integers(1, 4))
def test_bands_within_the_separation_have_the_exact_sensitivity(
    coefficients: list[float], rounds: int, most: int
) -> None:
    column = np.pad([1.0, *coefficients[1:]], (0, rounds - len(coefficients)))
    participation = Participation(len(coefficients), most)
    computed = toeplitz_sensitivity(column, participation)
    assert computed.exact
    assert computed.value == pytest.approx(with_signs(toeplitz(column), participation), rel=1e-12)


def test_rising_coefficients_are_worst_at_another_separation() -> None:
    # The rounds 0 and 3 share an entry of the sum, which becomes 2; the rounds 0 and 2 do not.
    column = np.array([1.0, 0, 0, 1, 0, 0])
    computed = toeplitz_sensitivity(column, Participation(2, most=2))
    assert absolute(toeplitz(column), Participation(2, most=2)) == pytest.approx(math.sqrt(5))
    assert computed.value >= math.sqrt(5) * (1 - 1e-12)


def test_one_band_more_than_the_separation_is_not_orthogonal() -> None:
    # Contributions of opposite signs add up where the coefficients have opposite signs.
    column = np.array([1.0, 0, -1, 0, 0, 0])
    computed = toeplitz_sensitivity(column, Participation(2))
    assert computed.value >= with_signs(toeplitz(column), Participation(2)) == pytest.approx(3)


def test_columns_that_differ_are_chosen_at_the_separation() -> None:
    matrix = np.diag([1.0, 3, 3, 1, 2, 2])
    assert sensitivity(matrix, Participation(2)).value == pytest.approx(math.sqrt(9 + 1 + 4))
    assert sensitivity(matrix, Participation(2, most=2)).value == pytest.approx(math.sqrt(9 + 4))
    assert sensitivity(matrix, Participation(1, most=2)).value == pytest.approx(math.sqrt(9 + 9))
    assert sensitivity(matrix, Participation(5)).value == pytest.approx(3)


def test_an_upper_bound_that_no_pattern_attains_is_not_exact() -> None:
    tree = Tree(11, 4)
    computed = tree.sensitivity(Participation(3))
    assert not computed.exact
    assert computed.value == pytest.approx(math.sqrt(11))
    assert absolute(tree.matrix(), Participation(3)) == pytest.approx(math.sqrt(10))


@pytest.mark.parametrize("rounds_per_tree", [None, 4, 6])
@pytest.mark.parametrize("participation", [SINGLE, Participation(2), Participation(4), Participation(6), EVERY])
def test_trees_have_the_exact_sensitivity(rounds_per_tree: int | None, participation: Participation) -> None:
    tree = Tree(11, rounds_per_tree)
    computed = tree.sensitivity(participation)
    assert computed.exact
    assert computed.value == pytest.approx(absolute(tree.matrix(), participation), rel=1e-12)


def test_trees_of_an_epoch_cover_an_order_of_each_epoch() -> None:
    tree = Tree(12, 4)
    once_per_tree = itertools.product(range(4), range(4, 8), range(8, 12))
    largest = max(np.linalg.norm(tree.matrix()[:, rounds].sum(axis=1)) for rounds in once_per_tree)
    assert tree.sensitivity(Participation(4)).value == pytest.approx(largest)


def test_participation_in_every_round_adds_all_columns() -> None:
    matrix = np.random.default_rng(0).random((20, 20))
    assert sensitivity(matrix, EVERY).exact
    assert sensitivity(matrix, EVERY).value == pytest.approx(np.linalg.norm(matrix.sum(axis=1)))


def test_independent_noise_has_the_root_of_the_participations() -> None:
    identity = np.eye(1, 20)[0]
    assert toeplitz_sensitivity(identity, SINGLE).value == 1
    assert toeplitz_sensitivity(identity, EVERY).value == pytest.approx(math.sqrt(20))
    assert toeplitz_sensitivity(identity, Participation(6)).value == pytest.approx(2)
    assert toeplitz_sensitivity(identity, Participation(6, most=3)).value == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize(("numbers", "field"), [((0,), "separation"), ((1, 0), "most")])
def test_a_participation_without_rounds_is_refused(numbers: tuple[int, ...], field: str) -> None:
    with pytest.raises(InputError, match=f"{field}: got 0, expected a whole number >= 1"):
        Participation(*numbers)
