"""Integer-order Rényi divergences of thousands of noise levels: against dp-accounting, and epsilon after every round."""

import dataclasses
import math
import time

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from scipy import stats

from leakbench.core.errors import InputError
from leakbench.core.types import Fact
from leakbench.privacy.accountants import ORDERS_2017, moments_2017, pld, rdp
from leakbench.privacy.curve import epsilon_curve, rounds_within, spent, step_divergences
from leakbench.privacy.ledger import Phase, Schedule
from leakbench.privacy.mechanism import Mechanism, gathered, merged
from leakbench.privacy.renyi import INTEGER_ORDERS, delta_at, divergences, epsilon_at, without_replacement

DELTA = 1e-5
CLIP = Fact("clip", norm=4.0)
# Every client takes part in every round, as the papers count.
MNIST = Schedule(
    clients=100,
    clients_per_round=100,
    rounds=100,
    local_iterations=100,
    batch=5,
    examples_per_client=500,
    copies=1.0,
    most_copies=1,
    client_sampling="poisson",
    batch_sampling="poisson",
    tensors=3,
)


def by_rounds(sigmas: list[float], rounds: int = 1) -> tuple[Phase, ...]:
    """Return a training whose noise changes after every `rounds` rounds."""
    return tuple(
        Phase({"example": (CLIP,), "batch": (Fact("noise", std=4 * s),)}, rounds, 100, True, 100) for s in sigmas
    )


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 6.0), (0.1, 1.0), (0.5, 0.4), (0.9, 20.0), (1.0, 2.0)])
def test_divergences_equal_those_of_dp_accounting(q: float, sigma: float, sampling: str) -> None:
    mechanism = Mechanism(sigma, q, 1, sampling)  # type: ignore[arg-type]
    accountant = RdpAccountant(INTEGER_ORDERS)
    accountant.compose(mechanism.event())
    expected = np.asarray(accountant.rdp)
    if sampling == "fixed":  # No unit pays more than one in every sample.
        expected = np.minimum(expected, np.array(INTEGER_ORDERS) / (2 * sigma**2))
    assert divergences((mechanism,))[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_visible_use_is_the_mixture_of_its_presence() -> None:
    q, sigma, order = 0.2, 1.5, 4
    moment = (1 - q) + q * math.exp(order * (order - 1) / (2 * sigma**2))
    found = divergences((Mechanism(sigma, q, 1, "visible"),), (order,))[0, 0]
    assert found == pytest.approx(math.log(moment) / (order - 1), rel=1e-12)


@pytest.mark.parametrize(("q", "sigma"), [(0.1, 1.0), (0.01, 3.0), (0.3, 0.5), (1.0, 1.0)])
def test_sampling_without_replacement_equals_dp_accounting(q: float, sigma: float) -> None:
    orders = range(2, 33)
    accountant = RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(1000, int(1000 * q), dp_accounting.GaussianDpEvent(sigma))
    )
    assert without_replacement(q, sigma, orders) == pytest.approx(np.asarray(accountant.rdp), rel=1e-9)


def test_conversions_equal_those_of_their_papers() -> None:
    orders = (2, 3, 5, 17, 64)
    total = np.array([0.02, 0.03, 0.06, 0.2, 0.9])
    for delta in (1e-5, 0.3):
        tight = rdp_privacy_accountant.compute_epsilon(orders, list(total), delta)[0]
        assert epsilon_at(orders, total, delta, "tight") == pytest.approx(tight, rel=1e-12)
    for epsilon in (0.1, 1.0, 8.0):
        tight = rdp_privacy_accountant.compute_delta(orders, list(total), epsilon)[0]
        assert delta_at(orders, total, epsilon, "tight") == pytest.approx(tight, rel=1e-9)
        old = min(math.exp((a - 1) * (r - epsilon)) for a, r in zip(orders, total, strict=True))
        assert delta_at(orders, total, epsilon, "old") == pytest.approx(min(old, 1.0), rel=1e-12)
        assert epsilon_at(orders, total, float(delta_at(orders, total, epsilon, "old")), "old") <= epsilon + 1e-9


def test_ten_thousand_noise_levels_are_quick() -> None:
    mechanisms = tuple(Mechanism(15 - 10.15 * i / 10000, 0.01, 1) for i in range(10000))
    start = time.process_time()
    after = step_divergences(mechanisms)
    tight, old = (epsilon_at(INTEGER_ORDERS, after, DELTA, which) for which in ("tight", "old"))  # type: ignore[arg-type]
    assert time.process_time() - start < 3.0
    assert after.shape == (10000, len(INTEGER_ORDERS))
    assert tight[-1] == pytest.approx(0.44975, abs=1e-4)
    assert old[-1] == pytest.approx(0.57482, abs=1e-4)
    assert (np.diff(tight) >= 0).all()
    assert (np.diff(old) >= 0).all()


def test_the_curve_ends_at_the_epsilons_of_the_accountants() -> None:
    tight, old = (epsilon_curve(by_rounds([6.0], 100), "example", MNIST, DELTA, which) for which in ("tight", "old"))  # type: ignore[arg-type]
    mechanism = (Mechanism(6.0, 0.01, 10000),)
    assert tight.shape == (100,)
    assert tight[-1] == pytest.approx(rdp(mechanism, DELTA), abs=1e-3)
    assert old[-1] == pytest.approx(moments_2017(mechanism, DELTA), abs=5e-4)
    printed = epsilon_curve(by_rounds([6.0], 100), "example", MNIST, DELTA, "old", (*range(2, 64), 128, 256, 512))
    assert printed[10] == pytest.approx(0.285, abs=5e-4)  # Wei et al., TPDS 2023, Table 7, whose orders are sparser.
    assert old[10] < printed[10]


def test_the_cost_of_a_round_follows_from_its_noise() -> None:
    sigmas = [15 - 0.1015 * t for t in range(100)]
    after = spent(by_rounds(sigmas), "example", MNIST)
    each = divergences([Mechanism(s, 0.01, 1) for s in sigmas])
    assert after == pytest.approx(np.cumsum(100 * each, axis=0), rel=1e-9)
    assert spent(by_rounds([8.0, 6.0], 50), "example", MNIST)[[49, 99]] == pytest.approx(
        np.cumsum(5000 * divergences([Mechanism(8.0, 0.01, 1), Mechanism(6.0, 0.01, 1)]), axis=0), rel=1e-9
    )


def test_phases_inside_a_round_alternate() -> None:
    """Two halves of every round: after each round both have been counted, not the first half of all rounds."""
    first, second = ({"example": (CLIP,), "batch": (Fact("noise", std=4 * s),)} for s in (12.0, 6.0))
    halves = (Phase(first, 100, 50, False, 100), Phase(second, 100, 50, True, 100))
    after = spent(halves, "example", MNIST)
    one_round = 50 * divergences([Mechanism(12.0, 0.01, 1), Mechanism(6.0, 0.01, 1)]).sum(0)
    assert after == pytest.approx(np.arange(1, 101)[:, None] * one_round, rel=1e-9)


def test_a_random_participation_costs_the_mean_of_its_moments() -> None:
    """Order 2: log of the mean over the draw of exp(participations * D), the same in every round."""
    copied = dataclasses.replace(MNIST, clients=1000, copies=15.0, most_copies=20, client_sampling="fixed")
    after = spent(by_rounds([6.0], 100), "example", copied, (2,))[:, 0]
    one = 100 * divergences((Mechanism(6.0, 0.01, 1),), (2,))[0, 0]
    moment = sum(stats.hypergeom(1000, 20, 100).pmf(n) * math.exp(n * one) for n in range(21))
    assert after == pytest.approx(np.arange(1, 101) * math.log(moment), rel=1e-9)


@pytest.mark.parametrize("conversion", ["old", "tight"])
def test_rounds_within_a_budget(conversion: str) -> None:
    epsilons = epsilon_curve(by_rounds([6.0], 100), "example", MNIST, DELTA, conversion)  # type: ignore[arg-type]
    fit = rounds_within(epsilons, 0.5)
    assert epsilons[fit - 1] <= 0.5 < epsilons[fit]
    after = spent(by_rounds([6.0], 100), "example", MNIST)
    deltas = delta_at(INTEGER_ORDERS, after, 0.5, conversion)  # type: ignore[arg-type]
    assert rounds_within(deltas, DELTA) == fit
    assert rounds_within(epsilons, 1e9) == 100
    assert rounds_within(epsilons, 0.0) == 0
    assert rounds_within(np.array([0.1, math.nan, 0.2]), 1.0) == 1


def test_without_a_guarantee_there_is_no_curve() -> None:
    bare = (Phase({"example": (CLIP,)}, 100, 100, True, 100),)
    with pytest.raises(InputError, match="no epsilon after any round: none: no noise"):
        epsilon_curve(bare, "example", MNIST)
    with pytest.raises(InputError, match=r"^delta: got 1\.0"):
        epsilon_curve(by_rounds([6.0], 100), "example", MNIST, 1.0)
    with pytest.raises(InputError, match="orders"):
        divergences((Mechanism(6.0, 0.1, 1),), (1, 2))  # type: ignore[arg-type]


# Sequences of mechanisms


def test_the_order_of_mechanisms_does_not_matter_and_equal_ones_add_up() -> None:
    a, b = Mechanism(6.0, 0.1, 30), Mechanism(3.0, 0.05, 20)
    halves = (dataclasses.replace(a, steps=15), b, dataclasses.replace(a, steps=15))
    for accountant in (moments_2017, rdp, pld):
        assert accountant((a, b), DELTA) == pytest.approx(accountant(halves, DELTA), rel=1e-12)
        assert accountant((b, a), DELTA) == pytest.approx(accountant((a, b), DELTA), rel=1e-6)
        assert accountant((a, dataclasses.replace(a, steps=70)), DELTA) == accountant(
            (Mechanism(6.0, 0.1, 100),), DELTA
        )
    assert merged(halves) == halves
    assert merged((a, a, b)) == (Mechanism(6.0, 0.1, 60), b)
    assert merged((*halves[::2], dataclasses.replace(a, steps=70), b)) == (Mechanism(6.0, 0.1, 100), b)
    assert gathered(halves) == (a, b)


def test_two_gaussians_equal_one_with_less_noise() -> None:
    together = Mechanism(1 / math.hypot(1 / 3, 1 / 4), 1.0, 1)
    several = (Mechanism(3.0, 1.0, 1), Mechanism(4.0, 1.0, 1))
    assert pld(several, DELTA) == pytest.approx(pld((together,), DELTA), abs=1e-3)
    assert rdp(several, DELTA) == pytest.approx(rdp((together,), DELTA), rel=1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "visible"])
def test_two_halves_with_almost_equal_noise_cost_as_much_as_the_whole(sampling: str) -> None:
    whole = pld((Mechanism(6.0, 0.1, 100, sampling),), DELTA)  # type: ignore[arg-type]
    halves = tuple(Mechanism(s, 0.1, 50, sampling) for s in (6.0, 6.0 + 1e-9))  # type: ignore[arg-type]
    assert pld(halves, DELTA) == pytest.approx(whole, abs=2e-3)
    assert rdp(halves, DELTA) == pytest.approx(rdp((Mechanism(6.0, 0.1, 100, sampling),), DELTA), abs=1e-6)  # type: ignore[arg-type]


def test_different_samplings_compose() -> None:
    mixed = (Mechanism(6.0, 0.1, 50, "fixed"), Mechanism(8.0, 0.1, 50, "visible"), Mechanism(6.0, 0.1, 50))
    least, most = Mechanism(6.0, 0.1, 150), Mechanism(6.0, 0.1, 150, "visible")
    assert pld((least,), DELTA) < pld(mixed, DELTA) < pld((most,), DELTA)


@pytest.mark.slow
def test_many_noise_levels_are_an_upper_bound() -> None:
    """200 levels go to a grid of 1 %, never above them: between the exact value and that of 1 % less noise."""
    sigmas = np.linspace(1.0, 1.4, 200)
    exact = pld((Mechanism(1 / math.sqrt((1 / sigmas**2).sum()), 1.0, 1),), DELTA)
    found = pld(tuple(Mechanism(float(s), 1.0, 1) for s in sigmas), DELTA)
    assert exact - 1e-3 <= found <= 1.03 * exact
    for mechanism in gathered([Mechanism(float(s), 1.0, 1) for s in sigmas], 1.01):
        below = [s for s in sigmas if mechanism.noise_multiplier <= s < 1.01 * mechanism.noise_multiplier]
        assert len(below) == mechanism.steps


def test_one_step_without_noise_makes_epsilon_infinite() -> None:
    quiet = (Mechanism(6.0, 0.1, 100), Mechanism(0.0, 0.1, 1))
    assert all(accountant(quiet, DELTA) == math.inf for accountant in (moments_2017, rdp, pld))
    assert divergences(quiet, (2,))[1, 0] == math.inf
    assert set(ORDERS_2017) >= {1.25, 512}
