"""Accountants against printed tables, closed forms and each other."""

import logging
import math
import time
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from leakbench.auditing.family import gaussian_epsilon
from leakbench.core.errors import InputError
from leakbench.privacy.accountants import ACCOUNTANTS, _divergence, best, moments_2017, pld, rdp
from leakbench.privacy.mechanism import Mechanism, Mechanisms
from leakbench.privacy.pairs import _of_fixed_size, _repeated, gaussian_delta, sum_of, visible_epsilon
from leakbench.privacy.renyi import by_quadrature, divergences

DELTA = 1e-5

# q, sigma, steps: old conversion, tight conversion, privacy loss distributions; by TensorFlow Privacy 0.5.1's formula,
# dp-accounting 0.6 and prv-accountant 0.2.
POISSON = [
    (0.1, 6.0, 100, 0.849353, 0.678267, 0.615678),
    (0.1, 6.0, 101, 0.853553, 0.681852, 0.618949),
    (0.1, 6.0, 60, 0.662354, 0.519276, 0.469588),
    (0.1, 6.0, 61, 0.667664, 0.523804, 0.473705),
    (0.1, 6.0, 10, 0.291895, 0.208966, 0.185456),
    (0.1, 6.0, 11, 0.302515, 0.219024, 0.194649),
    (0.1, 6.0, 3, 0.177541, 0.117806, 0.102155),
    (0.1, 6.0, 4, 0.206503, 0.134533, 0.117460),
    (0.01, 6.0, 300, 0.146748, 0.100585, 0.089851),
    (0.01, 6.0, 10000, 0.822734, 0.659151, 0.600856),
    (0.01, 6.0, 6000, 0.635563, 0.500551, 0.455157),
    (0.01, 6.0, 1000, 0.275978, 0.191386, 0.172365),
    (0.01, 6.0, 1100, 0.285006, 0.201394, 0.181491),
    (0.01, 6.0, 6700, 0.671929, 0.531147, 0.483273),
    (0.01, 6.0, 3400, 0.477644, 0.368803, 0.334442),
    (0.01, 6.0, 500, 0.184144, 0.132110, 0.118450),
    (0.01, 6.0, 100, 0.084058, 0.056128, 0.049620),
    (1 / 120, 6.0, 10000, 0.683606, 0.541168, 0.492481),
    (0.008, 6.0, 10000, 0.655941, 0.517770, 0.471044),
    # dp-accounting gives 8.972869: its series for orders that are not integers, here 3.6, ends early.
    (300 / 2267, 6.0, 6000, 9.794204, 8.963832, 8.336943),
    (300 / 36631, 6.0, 1000, 0.215226, 0.154201, 0.138585),
    (400 / 426, 6.0, 300, 16.812392, 15.671342, 14.658513),
    (0.01, 3.464102, 10000, 1.468220, 1.219318, 1.116291),
    (0.01, 1.732051, 10000, 3.270701, 2.837418, 2.610570),
    (0.1, 3.464102, 100, 1.552288, 1.283287, 1.165799),
    (0.1, 3.0, 100, 1.831511, 1.527991, 1.387843),
    (0.01, 3.464102, 6000, 1.132196, 0.924915, 0.844725),
    (0.01, 1.732051, 6000, 2.510222, 2.145073, 1.968181),
    (0.1, 3.464102, 60, 1.216962, 0.988048, 0.893397),
    (0.1, 3.0, 60, 1.439399, 1.179817, 1.065428),
    (0.01, 3.464102, 1000, 0.462013, 0.354827, 0.320944),
    (0.01, 1.732051, 1000, 1.027432, 0.828334, 0.752643),
    (0.1, 3.464102, 10, 0.554686, 0.417011, 0.366844),
    (0.1, 3.0, 10, 0.668860, 0.507137, 0.443947),
    (0.01, 3.464102, 300, 0.272604, 0.188128, 0.168684),
    (0.01, 1.732051, 300, 0.634635, 0.465090, 0.403280),
    (0.1, 3.464102, 3, 0.361000, 0.252806, 0.213362),
    (0.1, 3.0, 3, 0.448972, 0.316740, 0.263468),
    (0.01, 17.320508, 10000, 0.291080, 0.207813, 0.187597),
    (0.01, 7.745967, 10000, 0.632419, 0.498098, 0.453066),
]

# Gaussian, q = 1, steps = 1, delta = .01 (NbAFL's calibration): sigma, tight conversion, analytic Gaussian.
GAUSSIAN = [(3.107511, 0.641510, 0.508632), (0.388439, 9.823197, 8.598043), (0.06215, 175.529279, 165.942715)]

# A visible use: q = .1, sigma = 6; steps, epsilon (exact mixture over the number of uses).
VISIBLE = [(100, 2.415728), (800, 7.225094), (60, 1.910234), (7920, 30.501930), (10, 0.946031), (3, 0.649730)]

SIGMAS = st.floats(1.5, 20.0)


def one(*fields: Any) -> Mechanisms:
    """Return a training in which every step is the same."""
    return (Mechanism(*fields),)


@pytest.mark.slow
@pytest.mark.parametrize("row", POISSON)
def test_reference_table(row: tuple[float, float, int, float, float, float]) -> None:
    q, sigma, steps, old, tight, loss = row
    mechanism = one(sigma, q, steps)
    assert moments_2017(mechanism, DELTA) == pytest.approx(old, abs=5e-4)
    assert rdp(mechanism, DELTA) == pytest.approx(tight, abs=1e-3)
    assert pld(mechanism, DELTA) == pytest.approx(loss, abs=2e-3)


@pytest.mark.parametrize(
    ("q", "sigma", "order", "expected"),
    [
        # By mpmath, 40 digits.
        (0.03528336374233686, 1.289407336543292, 2.5, 0.00130532306134),
        (0.1789, 109.47, 1.1, 1.46894617698e-6),
        (0.512, 160.25, 1.1, 5.61447265945e-6),
        (0.01, 0.5, 1.5, 0.00262989120816),
        (0.3, 1.0, 3.3, 0.377484851739),
        (5e-5, 10.0, 300, 3.76937900258496e-9),
        (1e-7, 1.0, 20.5, 1.761247679618404e-13),
        (1e-4, 3.0, 10.5, 6.170391570853692e-9),
        (0.01, 0.95, 3.5, 0.0003735884158722785),
        # A huge number next to one that is too small for a float.
        (1e-6, 2.0, 100.5, 1.427271429839389e-11),
        (1e-6, 0.03, 1.01, 0.02371250485257509),
        # Closed forms: an integer order, and a large distance, at which one certain use would have revealed everything.
        (0.2, 0.01, 2, 2 * math.log(0.2) + 1e4),
        (1e-3, 1e6, 3, 1.5e-18),
    ],
)
def test_divergences_of_all_orders_equal_references(q: float, sigma: float, order: float, expected: float) -> None:
    assert by_quadrature(q, sigma, order) == pytest.approx(expected, rel=1e-9, abs=0.0)


def test_fixed_size_sampling_has_the_same_cost_at_whole_orders() -> None:
    """That of a Poisson sample at half of the noise, or of a unit in every sample where this is less."""
    orders = [2, 3, 8, 64]
    [fixed, half] = divergences([Mechanism(2.0, 0.1, 1, "fixed"), Mechanism(1.0, 0.1, 1)], orders)
    assert fixed.tolist() == pytest.approx(np.minimum(half, np.array(orders) / 8).tolist())
    assert fixed[0] == half[0] and fixed[-1] == 64 / 8


@pytest.mark.parametrize("order", [1.1, 1.5, 7.5])
def test_fixed_size_sampling_costs_a_replacement_and_at_most_full_participation(order: float) -> None:
    fixed, poisson = Mechanism(2.0, 0.1, 1, "fixed"), Mechanism(2.0, 0.1, 1)
    assert _divergence(poisson, order) == by_quadrature(0.1, 2.0, order)
    assert _divergence(fixed, order) == min(by_quadrature(0.1, 1.0, order), order / 8)
    often = _divergence(Mechanism(0.1, 0.999, 1, "fixed"), order)
    assert often == pytest.approx(order / 0.02) and often < by_quadrature(0.999, 0.05, order)


@settings(deadline=None)
@given(st.floats(1e-4, 0.999), st.floats(0.015, 50.0), st.integers(2, 12))
def test_quadrature_at_integer_orders_equals_closed_forms(q: float, sigma: float, order: int) -> None:
    """Those lose digits if they add little to 1."""
    closed = float(divergences((Mechanism(sigma, q, 1),), (order,))[0, 0])
    assert by_quadrature(q, sigma, order) == pytest.approx(closed, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(("sigma", "tight", "loss"), GAUSSIAN)
def test_reference_gaussian(sigma: float, tight: float, loss: float) -> None:
    assert rdp(one(sigma, 1.0, 1), 0.01) == pytest.approx(tight, rel=1e-3)
    assert pld(one(sigma, 1.0, 1), 0.01) == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize(("steps", "epsilon"), VISIBLE)
def test_reference_visible(steps: int, epsilon: float) -> None:
    assert pld(one(6.0, 0.1, steps, "visible"), DELTA) == pytest.approx(epsilon, abs=1e-4)


def analytic_gaussian(sigma: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8, by bisection."""

    def excess(epsilon: float) -> float:
        first = stats.norm.cdf(1 / (2 * sigma) - epsilon * sigma)
        return float(first - math.exp(epsilon) * stats.norm.cdf(-1 / (2 * sigma) - epsilon * sigma) - delta)

    return float(optimize.brentq(excess, 0.0, 500.0)) if excess(0.0) > 0 else 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (6.0, 1), (6.0, 100), (0.3, 1), (30.0, 2500), (1e4, 1)])
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "visible"])
def test_without_sampling_all_accountants_equal_the_analytic_gaussian(sigma: float, steps: int, sampling: str) -> None:
    exact = analytic_gaussian(sigma / math.sqrt(steps), DELTA)
    assert pld(one(sigma, 1.0, steps, sampling), DELTA) == pytest.approx(exact, abs=1e-3)
    assert rdp(one(sigma, 1.0, steps, sampling), DELTA) >= exact - 1e-9


def fixed_size_delta(sigma: float, q: float, shift: float, epsilon: float) -> float:
    """Return H of one sum of fixed size by summing densities: the unit at 1, its replacement at `shift`, zero-out."""
    x = np.linspace(-3 - 12 * sigma, 3 + 12 * sigma, 100_001)
    other, unit, zero = (stats.norm.pdf(x, m, sigma) for m in (shift, 1.0, 0.0))
    loss = (1 - q) * other + q * unit - math.exp(epsilon) * ((1 - q) * other + q * zero)
    return float(np.clip(loss, 0, None).sum() * (x[1] - x[0]))


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (6.0, 0.1), (2.0, 0.5), (1.5, 0.01)])
def test_fixed_size_uses_the_worst_neighbour_unlike_the_poisson_pair(sigma: float, q: float) -> None:
    epsilon = pld(one(sigma, q, 1, "fixed"), DELTA)
    assert fixed_size_delta(sigma, q, -1.0, epsilon) == pytest.approx(DELTA, rel=5e-3)
    for shift in (-0.5, 0.0, 0.5, 1.0):
        assert fixed_size_delta(sigma, q, shift, epsilon) <= DELTA * 1.001
    assert fixed_size_delta(sigma, q, -1.0, pld(one(sigma, q, 1), DELTA)) > 1.5 * DELTA


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "q", "steps", "epsilon"), [(6.0, 0.1, 100, 0.7226), (6.0, 0.01, 10000, 0.7039), (1.0, 0.1, 100, 18.055)]
)
def test_fixed_size_is_between_poisson_and_replace_one(sigma: float, q: float, steps: int, epsilon: float) -> None:
    value = pld(one(sigma, q, steps, "fixed"), DELTA)
    assert value == pytest.approx(epsilon, abs=1e-3)
    assert pld(one(sigma, q, steps), DELTA) < value < pld(one(sigma / 2, q, steps), DELTA)
    assert rdp(one(sigma, q, steps, "fixed"), DELTA) == rdp(one(sigma / 2, q, steps), DELTA)


def test_a_missing_probability_of_uses_counts_as_disclosure() -> None:
    """Of .95, the missing .05 adds to delta: no epsilon exists at a smaller delta, and at .06 it is that of .01 for the rest."""
    uses = np.array([0.0, 0.95])
    with pytest.raises(ValueError, match="different signs"):
        visible_epsilon(1.0, uses, 0.04)
    found = visible_epsilon(1.0, uses, 0.06)
    assert 0.95 * float(gaussian_delta(found, 1.0)) + 0.05 == pytest.approx(0.06, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.05, 0.1, 1.0])
def test_a_visible_use_with_hardly_any_noise_is_the_analytic_gaussian(sigma: float) -> None:
    """For a hundred certain uses: the shift is 10 / sigma."""
    assert visible_epsilon(sigma, np.eye(1, 101, 100)[0], DELTA) == pytest.approx(
        gaussian_epsilon(10 / sigma, DELTA), rel=1e-6
    )


def test_a_visible_use_is_not_amplified() -> None:
    assert pld(one(6.0, 0.01, 10000, "visible"), DELTA) > pld(one(6.0, 1.0, 100), DELTA)
    assert gaussian_delta(0.5, np.array([0.0, 0.1, 1.0])).tolist() == sorted(
        gaussian_delta(0.5, np.array([0.0, 0.1, 1.0]))
    )


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(SIGMAS, st.floats(1.05, 3.0), st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.integers(1, 50))
def test_more_noise_never_costs_more(sigma: float, more: float, q: float, steps: int) -> None:
    for name, accountant in ACCOUNTANTS.items():
        little, much = (accountant(one(s, q, steps), DELTA) for s in (sigma, more * sigma))
        assert much <= little + 1e-4, name
    for sampling in ("fixed", "visible"):
        little, much = (best(one(s, q, steps, sampling), DELTA)[0] for s in (sigma, more * sigma))
        assert much <= little + 1e-4, sampling


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(SIGMAS, st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.integers(1, 50), st.integers(1, 50))
def test_more_steps_never_cost_less(sigma: float, q: float, steps: int, more: int) -> None:
    for name, accountant in ACCOUNTANTS.items():
        few, many = (accountant(one(sigma, q, n), DELTA) for n in (steps, steps + more))
        assert many >= few - 1e-4, name
    for sampling in ("fixed", "visible"):
        few, many = (best(one(sigma, q, n, sampling), DELTA)[0] for n in (steps, steps + more))
        assert many >= few - 1e-4, sampling


@settings(max_examples=6, deadline=None)
@given(SIGMAS, st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.integers(1, 100))
def test_the_tight_accountants_are_tighter(sigma: float, q: float, steps: int) -> None:
    mechanism = one(sigma, q, steps)
    assert pld(mechanism, DELTA) <= rdp(mechanism, DELTA) + 1e-3 <= moments_2017(mechanism, DELTA) + 5e-3


@pytest.mark.parametrize("accountant", ACCOUNTANTS.values(), ids=ACCOUNTANTS)
def test_edges(accountant) -> None:  # type: ignore[no-untyped-def]
    assert accountant(one(0.0, 0.1, 10), DELTA) == math.inf
    assert accountant(one(0.0, 0.1, 10) + one(6.0, 0.1, 7), DELTA) == math.inf
    assert accountant(one(0.0, 0.0, 10), DELTA) == 0.0
    assert accountant(one(6.0, 0.0, 10), DELTA) == 0.0
    assert accountant(one(6.0, 0.1, 0), DELTA) == 0.0
    assert accountant(one(math.inf, 0.1, 10), DELTA) == 0.0
    assert 0 <= accountant(one(1e7, 0.1, 10), DELTA) < 0.03
    assert accountant(one(0.0, 0.0, 10) + one(6.0, 0.1, 7), DELTA) == accountant(one(6.0, 0.1, 7), DELTA)
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(InputError, match="delta"):
            accountant(one(6.0, 0.1, 10), delta)


@pytest.mark.parametrize(
    "field", [{"noise_multiplier": -1.0}, {"noise_multiplier": math.nan}, {"sampling_rate": 1.1}, {"steps": -1}]
)
def test_impossible_mechanisms_are_refused(field: dict[str, float]) -> None:
    fields = {"noise_multiplier": 6.0, "sampling_rate": 0.1, "steps": 10, **field}
    with pytest.raises(InputError, match=next(iter(field))):
        Mechanism(**fields)


def test_unsupported_mechanisms_are_refused() -> None:
    with pytest.raises(InputError, match="poisson"):
        moments_2017(one(6.0, 0.1, 10, "fixed"), DELTA)
    with pytest.raises(InputError, match="visible"):
        one(6.0, 0.1, 10, "visible")[0].event()


@pytest.mark.parametrize("q", [0.001, 0.19, 0.3, 0.5, 0.503, 0.999])
@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 400.0, 1e7])
def test_nothing_is_logged(q: float, sigma: float, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for accountant in (moments_2017, rdp):
            assert math.isfinite(accountant(one(sigma, q, 7), DELTA))
    assert not caplog.records


def test_losses_beyond_the_grid_fall_back_to_renyi() -> None:
    epsilon, name = best(one(1e-3, 0.5, 10000), DELTA)
    assert name == "rdp"
    assert 1e9 < epsilon < math.inf


@pytest.mark.parametrize("steps", [1, 10, 11, 90_000])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_many_equal_steps_are_composed_at_once(sampling: Any, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a short list of losses, dp_accounting computes length^steps as an integer: minutes for 45,000,000 steps.

    Epsilons are those of its own accountant, to the last bit.
    """
    listed, own = list[int](), pld_pmf.SparsePLDPmf.self_compose

    def recorded(self: Any, times: int, *rest: Any) -> Any:
        listed.append(times)
        return own(self, times, *rest)

    mechanism, interval = Mechanism(6.0, 0.01, steps, sampling), 1e-4
    if sampling == "poisson":
        accountant = PLDAccountant(value_discretization_interval=interval)
        expected = accountant.compose(mechanism.event()).get_epsilon(DELTA)
    else:
        expected = _of_fixed_size(6.0, 0.01, interval).self_compose(steps).get_epsilon_for_delta(DELTA)
    monkeypatch.setattr(pld_pmf.SparsePLDPmf, "self_compose", recorded)
    found = pld.__wrapped__((mechanism,), DELTA)
    assert found == expected
    assert max(listed, default=0) <= 10


@pytest.mark.slow
def test_45_million_steps_take_seconds() -> None:
    """An example at 9 clients in each of 50,000 rounds of 100 local iterations, which once took six minutes."""
    began = time.process_time()
    assert pld((Mechanism(6.0, 0.01, 45_000_000),), DELTA) == pytest.approx(137.5469625, rel=1e-9)
    assert time.process_time() - began < 60


def _of_one_other(sigma: float, rate: float, other: float, steps: int, removed: bool) -> float:
    """Return the epsilon of a sample of fixed size with a constant other contribution, by plain sums on a grid."""
    shift, grain = 1 / sigma, 5e-3
    z = np.linspace(-12 - 2 * shift, 12 + 2 * shift, 50_001)
    shared = np.log1p(-rate) + stats.norm.logpdf(z, other * shift)
    sides = [np.logaddexp(shared, math.log(rate) + stats.norm.logpdf(z, place)) for place in (shift, 0.0)]
    upper, lower = sides if removed else sides[::-1]
    losses = np.floor((upper - lower) / grain + 0.5).astype(int)
    weights = np.bincount(losses - losses.min(), np.exp(upper))
    total = sum_of(weights / weights.sum(), steps)
    values = (np.arange(total.size) + steps * losses.min()) * grain

    def excess(epsilon: float) -> float:
        above = values > epsilon
        return float(total[above] @ -np.expm1(epsilon - values[above])) - DELTA

    return float(optimize.brentq(excess, 0, values[-1]))


@pytest.mark.parametrize(("steps", "largest"), [(1, 3.7471), (100, 17.435)])
def test_a_sample_of_fixed_size_is_exact_once_and_an_upper_bound_after_composition(steps: int, largest: float) -> None:
    """sigma 1, q = .1: no constant contribution of the other members reaches the bound of 18.05 for 100 releases."""
    bound = pld((Mechanism(1.0, 0.1, steps, "fixed"),), DELTA)
    found = [_of_one_other(1.0, 0.1, y, steps, removed) for y in (-1, 0, 1) for removed in (True, False)]
    assert max(found) == pytest.approx(largest, rel=1e-3)
    assert bound == pytest.approx(largest, rel=1e-3) if steps == 1 else bound > 1.03 * max(found)


@pytest.mark.parametrize("steps", [3, 30])
def test_the_order_of_the_two_data_sets_does_not_matter(steps: int) -> None:
    loss = _of_fixed_size(1.0, 0.3, 1e-3)
    other = PrivacyLossDistribution(loss._pmf_add, loss._pmf_remove)
    found, swapped = (_repeated(each, steps).get_epsilon_for_delta(DELTA) for each in (loss, other))
    assert found == pytest.approx(swapped, rel=1e-9)
