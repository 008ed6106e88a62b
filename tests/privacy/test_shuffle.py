"""Amplification by shuffling: slow sums over all outcomes, the authors' figures, and shuffled reports that are enumerated."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

import leakbench
from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.privacy.accountants import best
from leakbench.privacy.epsilon import PointEpsilon
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.pairs import gaussian_delta
from leakbench.privacy.shuffle import (
    Shuffled,
    largest_local_epsilon,
    shuffled_delta,
    shuffled_epsilon,
    shuffled_epsilon_closed,
)


def slow_delta(epsilon: float, local: float, clients: int) -> float:
    """Return delta by Theorem 3.2, as a sum over all pairs of counts."""
    p = math.exp(local) / (1 + math.exp(local))
    first: dict[tuple[int, int], float] = {}
    second: dict[tuple[int, int], float] = {}
    for c in range(clients):
        for a in range(c + 1):
            chance = stats.binom.pmf(c, clients - 1, math.exp(-local)) * stats.binom.pmf(a, c, 0.5)
            for pair, like in (((a + 1, c - a), p), ((a, c - a + 1), 1 - p)):
                first[pair] = first.get(pair, 0.0) + chance * like
                second[pair] = second.get(pair, 0.0) + chance * (1 - like)
    return sum(max(0.0, first[pair] - math.exp(epsilon) * second[pair]) for pair in first)


@pytest.mark.parametrize("local", [0.3, 2.0, 4.0])
@pytest.mark.parametrize("clients", [1, 2, 7, 25])
def test_the_delta_is_the_sum_over_all_outcomes(local: float, clients: int) -> None:
    for epsilon in (0.0, 0.1, 0.29, 1.5):
        if epsilon < local:
            expected = slow_delta(epsilon, local, clients)
            assert shuffled_delta(epsilon, local, clients) == pytest.approx(expected, rel=1e-9)
            assert -1e-12 <= shuffled_delta(epsilon, local, clients, 1e-6) - expected <= 2.1e-6
        else:
            assert shuffled_delta(epsilon, local, clients) == 0


@pytest.mark.parametrize(
    ("clients", "local", "delta", "lower", "upper"),
    [
        # The authors' program (apple/ml-shuffling-amplification) with 30 iterations and steps of 10 clones.
        (100_000, 4.0, 1e-6, 0.16954507, 0.17512132),
        (10_000, 1.0, 1e-6, 0.05297001, 0.05496796),
        (100_000, 2.0, 1e-8, 0.05875260, 0.06026353),
    ],
)
def test_the_epsilon_is_between_the_bounds_of_the_authors_program(
    clients: int, local: float, delta: float, lower: float, upper: float
) -> None:
    assert lower < shuffled_epsilon(local, clients, delta) < upper


def test_the_closed_form_is_that_of_the_theorem() -> None:
    local, clients, delta = 2.0, 10_000, 1e-6
    factor = (math.exp(2) - 1) / (math.exp(2) + 1)
    more = 8 * math.sqrt(math.exp(2) * math.log(4 / delta)) / 100 + 8 * math.exp(2) / 10_000
    assert shuffled_epsilon_closed(local, clients, delta) == pytest.approx(math.log(1 + factor * more), rel=1e-12)


def test_the_range_of_the_closed_form() -> None:
    limit = largest_local_epsilon(10_000, 1e-6)
    assert math.exp(limit) * 16 * math.log(2 / 1e-6) == pytest.approx(10_000)
    assert shuffled_epsilon_closed(limit * (1 - 1e-9), 10_000, 1e-6) < limit
    assert shuffled_epsilon_closed(limit * (1 + 1e-9), 10_000, 1e-6) == limit * (1 + 1e-9)
    assert largest_local_epsilon(100, 1e-6) < 0
    assert shuffled_epsilon_closed(0.5, 100, 1e-6) == 0.5


@pytest.mark.parametrize("clients", [1_000, 30_000])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-8])
def test_the_numerical_bound_is_below_the_closed_form(clients: int, share: float, delta: float) -> None:
    local = share * largest_local_epsilon(clients, delta)
    assert 0 < shuffled_epsilon(local, clients, delta) < shuffled_epsilon_closed(local, clients, delta) <= local


def test_the_epsilon_has_the_requested_delta() -> None:
    found = shuffled_epsilon(1.0, 500, 1e-5)
    assert shuffled_delta(found, 1.0, 500) <= 1e-5 < shuffled_delta(found * 0.998, 1.0, 500)


@pytest.mark.parametrize("local", [0.5, 1.5, 3.0])
def test_reports_of_randomised_response_are_covered(local: float) -> None:
    # The number of ones among n reports of bits, for neighbours that differ in one bit, over all other bits.
    clients, epsilon = 12, 0.4 * local
    p = 1 / (1 + math.exp(local))
    bound = shuffled_delta(epsilon, local, clients)
    for others in range(clients):
        rest = np.convolve(
            stats.binom.pmf(np.arange(others + 1), others, 1 - p),
            stats.binom.pmf(np.arange(clients - others), clients - 1 - others, p),
        )
        zero, one = np.convolve(rest, [1 - p, p]), np.convolve(rest, [p, 1 - p])
        for first, second in itertools.permutations((zero, one)):
            exact = np.maximum(first - math.exp(epsilon) * second, 0).sum()
            assert exact <= bound * (1 + 1e-12)


def test_few_clients_are_not_amplified_much() -> None:
    assert shuffled_epsilon(2.0, 1, 1e-6) == pytest.approx(2.0, abs=1e-4)
    assert shuffled_epsilon(2.0, 1, 1e-6) <= 2.0
    # Without clones, delta is p (1 - exp(epsilon - local)), even where exp(-local) is below the rounding of 1.
    assert shuffled_epsilon(50.0, 100, 1e-6) == pytest.approx(50 - 1e-6, abs=1e-8)
    assert shuffled_epsilon(800.0, 100, 1e-6) == 800.0
    assert shuffled_epsilon(0.0, 100, 1e-6) == 0.0
    assert shuffled_epsilon(1e-3, 10_000, 0.01) == 0.0


def test_more_clients_amplify_more() -> None:
    found = [shuffled_epsilon(3.0, n, 1e-6) for n in (10, 100, 1_000, 10_000, 100_000)]
    assert found == sorted(found, reverse=True)
    # By ten times as many clients, the epsilon falls by about sqrt(10).
    assert found[-2] / found[-1] == pytest.approx(math.sqrt(10), rel=0.15)


@pytest.mark.parametrize(
    ("local", "clients", "delta", "message"),
    [
        (-1.0, 10, 1e-5, "local_epsilon: got -1.0, expected a finite number >= 0"),
        (math.inf, 10, 1e-5, "local_epsilon: got inf, expected a finite number >= 0"),
        (1.0, 0, 1e-5, "clients: got 0, expected a whole number >= 1"),
        (1.0, 10, 1.0, "delta: got 1.0, expected a number in"),
    ],
)
def test_wrong_numbers_are_refused(local: float, clients: int, delta: float, message: str) -> None:
    for function in (shuffled_epsilon, shuffled_epsilon_closed):
        with pytest.raises(InputError, match=message):
            function(local, clients, delta)
    with pytest.raises(InputError, match="epsilon: got nan, expected a number >= 0"):
        shuffled_delta(math.nan, 1.0, 10)


def test_reports_with_gaussian_noise_are_hidden_only_by_many_others() -> None:
    """One round of 1,000 reports proves less than the report alone; the bound is that of the best local epsilon."""
    found = Shuffled(6.0, 1000, 1).epsilon(1e-5)
    alone = best((Mechanism(6.0, 1.0, 1),), 1e-5)[0]
    assert 0.4 < found < alone
    assert Shuffled(6.0, 100, 1).epsilon(1e-5) > alone


@pytest.mark.parametrize(("multiplier", "clients"), [(6.0, 1000), (4.0, 10_000)])
def test_the_bound_is_that_of_a_local_epsilon_with_its_own_delta(multiplier: float, clients: int) -> None:
    delta, found = 1e-5, Shuffled(multiplier, clients, 1).epsilon(1e-5)

    def spent(local: float) -> float:
        rest = float(gaussian_delta(local, np.array(2 / multiplier)))
        return (
            shuffled_delta(found, local, clients) + clients * (math.exp(found) + 1) * (1 + math.exp(-local) / 2) * rest
        )

    # Some local epsilon proves the printed one, and none proves much less.
    assert min(spent(local) for local in np.geomspace(0.01, 10, 200)) <= delta
    assert found == pytest.approx(_least(multiplier, clients, delta), rel=0.1)


def _least(multiplier: float, clients: int, delta: float) -> float:
    found = []
    for local in np.geomspace(0.05, 10, 120):
        rest = float(gaussian_delta(local, np.array(2 / multiplier)))

        def excess(epsilon: float, local: float = local, rest: float = rest) -> float:
            more = clients * (math.exp(epsilon) + 1) * (1 + math.exp(-local) / 2) * rest
            return shuffled_delta(epsilon, local, clients) + more - delta

        if excess(0.0) > 0 > excess(local):
            found.append(float(brentq(excess, 0.0, local)))
    return min(found)


def test_rounds_compose_to_at_most_their_sum_and_to_more_than_one() -> None:
    one, several = Shuffled(6.0, 1000, 1), Shuffled(6.0, 1000, 20)
    assert one.epsilon(1e-6) < several.epsilon(1e-5) <= 20 * one.epsilon(1e-5 / 80)
    assert Shuffled(6.0, 1000, 0).epsilon(1e-5) == 0.0
    assert Shuffled(0.1, 10, 1).epsilon(1e-5) == math.inf


@pytest.mark.parametrize(("clients", "smaller"), [(1000, True), (100, False)])
def test_the_ledger_says_whether_shuffling_proves_more(clients: int, smaller: bool) -> None:
    given = {"clients": clients, "clients_per_round": clients, "train_rounds": 1, "dataset": "mnist"}
    plain = leakbench.epsilon("fed_sdp_client_valid", **given).epsilon  # type: ignore[arg-type]
    shuffled = leakbench.epsilon("shuffled_gaussian", **given).epsilon  # type: ignore[arg-type]
    assert shuffled.valid == plain.valid
    assert shuffled.by_tap["type-1"] == plain.by_tap["type-1"]
    before, after = plain.by_tap["type-0"].valid, shuffled.by_tap["type-0"].valid
    assert before is not None
    assert after is not None
    assert (after < before) == smaller
    assert ("trusts whoever shuffles them" in shuffled.by_tap["type-0"].reason) == smaller


def test_the_ledger_counts_all_rounds_with_a_turn_of_the_client() -> None:
    given = {"clients": 2000, "clients_per_round": 2000, "train_rounds": 2, "dataset": "mnist"}
    found = leakbench.epsilon("shuffled_gaussian", **given).epsilon.by_tap["type-0"]  # type: ignore[arg-type]
    expected = Shuffled(6.0, 2000, 2).epsilon(1e-5)
    assert found.valid == found.without_draw == pytest.approx(expected, rel=1e-9)
    assert Shuffled(6.0, 2000, 1).epsilon(1e-5) < expected
    assert expected == pytest.approx(0.724754, rel=1e-4)
    assert Shuffled(6.0, 20_000, 20).epsilon(1e-5) == pytest.approx(
        2.53331, rel=1e-3
    )  # Less than 20 times that of one round.


def test_a_random_number_of_reports_and_noise_at_the_server_prove_nothing_more() -> None:
    cell = plan(
        Request(dataset="digits", defense="shuffled_gaussian", clients=1000, clients_per_round=1000, train_rounds=1),
        None,
    )

    def server_side(**changes: object) -> PointEpsilon:
        defense = dataclasses.replace(cell.defense, **changes)  # type: ignore[arg-type]
        return cell_epsilon(defense, cell.data, cell.settings, hand_out(cell), None, 1e-5).by_tap["type-0"]

    plain, shuffled = server_side(aggregation="plain").valid, server_side().valid
    assert plain is not None
    assert shuffled is not None
    assert shuffled < plain
    random_size = server_side(cohorts="poisson")
    assert random_size.valid == server_side(cohorts="poisson", aggregation="plain").valid
    assert "the number of reports in a round is random" in random_size.reason
    later = {"client": cell.defense.client[:1], "server": cell.defense.client[1:]}
    assert server_side(**later).valid == server_side(**later, aggregation="plain").valid
