"""Factorizations with a small error against closed forms, lower bounds and slower searches."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, signal

from leakbench.core.errors import InputError
from leakbench.privacy.factorization import Banded, Buffered, Factorization, Tree, squared_error
from leakbench.privacy.factorization_search import (
    Minimised,
    _log_error,
    banded,
    buffered,
    dense,
    independent,
    square_root,
)
from leakbench.privacy.participation import EVERY, SINGLE, Participation, Reals


def least(rounds: int, count: int = 1) -> float:
    """A lower bound of both errors at k = `count` participations, T / k apart: k (||A||_* / T)^2.

    ||A||_* <= ||B||_F ||C||_F for every A = B C (Henzinger, Upadhyay and Upadhyay, SODA 2023), and the T / k patterns of equally
    spaced rounds hold every column of C once. A has the singular values 1 / (2 sin((2j - 1) pi / (4T + 2))).
    """
    angles = (2 * np.arange(1, rounds + 1) - 1) * math.pi / (4 * rounds + 2)
    return float(count * ((1 / (2 * np.sin(angles))).sum() / rounds) ** 2)


def chosen(factorization: Factorization, participation: Participation, error: Minimised) -> float:
    return float(getattr(squared_error(factorization, participation), error))


def test_the_lower_bound_has_the_trace_norm() -> None:
    assert least(9) == pytest.approx((np.linalg.svd(np.tri(9))[1].sum() / 9) ** 2)


@pytest.mark.parametrize("error", ["mean", "largest"])
@pytest.mark.parametrize("participation", [SINGLE, Participation(5), Participation(4, 3), EVERY])
def test_the_gradient_is_that_of_finite_differences(error: Minimised, participation: Participation) -> None:
    column = np.sort(np.random.default_rng(0).random(17))[::-1] + 0.1

    def loss(c: Reals) -> tuple[float, Reals]:
        return _log_error(c, signal.lfilter([1.0], c, np.eye(1, 17)[0]), participation, error)

    expected = optimize.approx_fprime(column, lambda c: loss(c)[0], 1e-7)
    np.testing.assert_allclose(loss(column)[1], expected, atol=1e-5)
    made = Banded(17, tuple((column / column[0]).tolist()))
    assert math.exp(loss(column)[0]) == pytest.approx(chosen(made, participation, error))


def test_the_square_root_of_the_sums() -> None:
    made = square_root(30, 30)
    np.testing.assert_allclose(made.matrix() @ made.matrix(), np.tri(30), atol=1e-12)
    assert made.coefficients[:4] == (1, 1 / 2, 3 / 8, 5 / 16)
    assert made.coefficients[29] == pytest.approx(math.comb(58, 29) / 4**29)
    assert square_root(30, 7).coefficients == made.coefficients[:7]
    assert square_root(1, 1) == banded(1, 1) == independent(1)
    # B = C, and the last row of B and the first column of C have the same norm.
    assert squared_error(made, SINGLE).largest == pytest.approx(np.square(made.coefficients).sum() ** 2)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), rounds=st.integers(1, 80), error=st.sampled_from(["mean", "largest"]))
def test_a_search_is_not_above_the_closed_form_nor_below_the_lower_bound(
    data: st.DataObject, rounds: int, error: Minimised
) -> None:
    bands = data.draw(st.integers(1, rounds))
    found, closed = banded(rounds, bands, error=error), square_root(rounds, bands)
    assert least(rounds) * (1 - 1e-9) <= chosen(found, SINGLE, error) <= chosen(closed, SINGLE, error) * (1 + 1e-9)
    assert len(found.coefficients) == bands and found.sensitivity(EVERY).exact


@pytest.mark.parametrize("separation", [2, 8, 16, 32])
def test_several_participations_are_within_the_same_bounds(separation: int) -> None:
    participation = Participation(separation)
    lower = least(64, 64 // separation)
    for bands in (4, 16):
        found = squared_error(banded(64, bands, participation), participation).mean
        assert lower <= found <= squared_error(square_root(64, bands), participation).mean * (1 + 1e-9)
    # A search for one participation does not know that participations are nearer than its bands.
    assert lower <= squared_error(buffered(64, 3, participation), participation).mean
    single = squared_error(buffered(64, 3), participation).mean
    assert squared_error(buffered(64, 3, participation), participation).mean < single


def test_bands_within_the_separation_do_not_depend_on_it() -> None:
    np.testing.assert_allclose(
        banded(60, 6, Participation(12)).coefficients, banded(60, 6).coefficients, rtol=1e-6, atol=1e-6
    )


def test_two_rounds_have_the_least_error_of_one_variable() -> None:
    # B has the first column (1, 1 - c).
    found = optimize.minimize_scalar(lambda c: (1 + c**2) * (1 + (1 - c) ** 2 / 2), bounds=(0, 1), method="bounded")
    assert squared_error(banded(2, 2), SINGLE).mean == pytest.approx(found.fun, rel=1e-9)
    assert banded(2, 2).coefficients[1] == pytest.approx(found.x, abs=1e-5)
    assert squared_error(buffered(2, 1), SINGLE).mean == pytest.approx(found.fun, rel=1e-9)


@pytest.mark.parametrize("error", ["mean", "largest"])
def test_a_search_over_all_coefficients_finds_the_same(error: Minimised) -> None:
    def loss(rest: Reals) -> float:
        return math.log(chosen(Banded(24, (1.0, *rest.tolist())), SINGLE, error))

    slow = optimize.minimize(loss, np.full(4, 0.1), tol=1e-10)
    assert chosen(banded(24, 5, error=error), SINGLE, error) == pytest.approx(math.exp(slow.fun), rel=1e-7)


def test_the_square_root_has_the_least_largest_error_of_toeplitz_factorizations() -> None:
    assert squared_error(banded(40, 40, error="largest"), SINGLE).largest == pytest.approx(
        squared_error(square_root(40, 40), SINGLE).largest, rel=1e-7
    )


@pytest.mark.parametrize("rounds", [1, 2, 3, 40, 300])
def test_more_buffers_approach_all_bands_from_above(rounds: int) -> None:
    errors = [squared_error(buffered(rounds, d), SINGLE).mean for d in (1, 2, 3, 4)]
    limit = squared_error(banded(rounds, rounds), SINGLE).mean
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(errors))
    assert limit * (1 - 1e-9) <= errors[-1] <= limit * 1.001


@pytest.mark.parametrize("participation", [SINGLE, Participation(20), Participation(3), EVERY])
@pytest.mark.parametrize("error", ["mean", "largest"])
def test_buffers_have_the_exact_sensitivity(participation: Participation, error: Minimised) -> None:
    made = buffered(100, 3, participation, error)
    assert sum(made.weights) <= 1 and made.sensitivity(participation).exact
    assert list(made.decays) == sorted(made.decays, reverse=True)
    best = chosen(made, participation, error)
    for factor in (0.98, 1.02):  # A local optimum.
        moved = Buffered(100, tuple(factor * w for w in made.weights), made.decays)
        assert chosen(moved, participation, error) >= best * (1 - 1e-9)


def test_noise_against_participation_in_every_round_is_independent() -> None:
    expected = squared_error(independent(50), EVERY).mean
    assert squared_error(banded(50, 8, EVERY), EVERY).mean == pytest.approx(expected, rel=1e-6)
    assert squared_error(buffered(50, 2, EVERY), EVERY).mean == pytest.approx(expected, rel=1e-6)


def test_two_rounds_have_half_the_squared_golden_ratio() -> None:
    # tr(A^T A X^-1) / 2 for X = ((1, x), (x, 1)) is (3 - 2x) / (2 - 2x^2), least at x = (3 - sqrt(5)) / 2.
    assert squared_error(dense(2), SINGLE).mean == pytest.approx(((1 + math.sqrt(5)) / 2) ** 2 / 2, rel=1e-9)


@pytest.mark.parametrize("rounds", [1, 5, 32])
def test_the_dense_factorization_is_the_best(rounds: int) -> None:
    made = dense(rounds)
    np.testing.assert_allclose(np.linalg.norm(made.matrix(), axis=0), 1, rtol=1e-9)
    best = squared_error(made, SINGLE).mean
    assert least(rounds) * (1 - 1e-9) <= best
    for other in (banded(rounds, rounds), buffered(rounds, 2), Tree(rounds), independent(rounds)):
        assert best <= squared_error(other, SINGLE).mean * (1 + 1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: banded(5, 6), "bands: got 6, expected between 1 and 5, the rounds"),
        (lambda: square_root(5, 0), "bands: got 0, expected between 1 and 5, the rounds"),
        (lambda: buffered(5, 0), "buffers: got 0, expected a whole number >= 1"),
        (lambda: buffered(0, 1), "rounds: got 0"),
        (lambda: dense(513), "rounds: got 513, expected between 1 and 512"),
    ],
)
def test_wrong_sizes_are_refused_by_name(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
