"""Integer noise: bounds against exact sums over all outputs, dp-accounting and Gaussian noise; accountants and releases."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats
from scipy.special import logsumexp

from leakbench.core.errors import InputError
from leakbench.core.types import Fact, IntegerNoise
from leakbench.privacy.accountants import best, moments_2017, pld, rdp
from leakbench.privacy.bounds import reconstruction_robustness
from leakbench.privacy.claim import NoClaim
from leakbench.privacy.compositions import zcdp
from leakbench.privacy.discrete import (
    DiscreteMechanism,
    Rounding,
    closeness,
    gaussian_divergences,
    skellam_divergences,
)
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Phase, Schedule, Stretch
from leakbench.privacy.mechanism import Mechanism, gathered, merged
from leakbench.privacy.release import Part, Released, drawn, repeated
from leakbench.privacy.renyi import INTEGER_ORDERS, divergences, epsilon_at

DELTA = 1e-5
LOW, HIGH = -1200, 1200
X = np.arange(LOW, HIGH + 1)


def log_gaussian_sum(variance: float, shares: int) -> np.ndarray:
    """Return the log probabilities of a sum of discrete Gaussians on X."""
    if shares == 1:
        logs = -(X**2) / (2 * variance)
        return np.asarray(logs - logsumexp(logs))
    one = np.exp(-(np.arange(-80, 81) ** 2) / (2 * variance))
    one /= one.sum()
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    found = np.full(X.size, -np.inf)
    middle, half = -LOW, total.size // 2
    with np.errstate(divide="ignore"):
        found[middle - half : middle + half + 1] = np.log(total)
    return np.where(found < -600, -np.inf, found)


def log_skellam(variance: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        found = np.log(stats.skellam(variance / 2, variance / 2).pmf(X))
    return np.where(found < -600, -np.inf, found)


def shifted(logs: np.ndarray, by: int) -> np.ndarray:
    return np.roll(logs, by)


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    both = np.isfinite(p) & np.isfinite(q)
    return float(logsumexp(order * p[both] + (1 - order) * q[both]) / (order - 1))


def mixed(q: float, absent: np.ndarray, present: np.ndarray) -> np.ndarray:
    return np.logaddexp(math.log1p(-q) + absent, math.log(q) + present)


def mechanism(**changes: Any) -> DiscreteMechanism:
    noise: dict[str, Any] = {
        "family": "discrete_gaussian",
        "variance": 4.0,
        "l2": 3.0,
        "l1": 3.0,
        "dimension": 1,
        "step": 1.0,
    }
    fields: dict[str, Any] = {"shares": 5, "sampling_rate": 1.0, "steps": 1}
    changed = IntegerNoise(**{name: changes.get(name, value) for name, value in noise.items()})
    return DiscreteMechanism(changed, **fields | {n: v for n, v in changes.items() if n not in noise})


@pytest.mark.parametrize("variance", [0.25, 0.3, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("shares", [1, 2, 3, 10])
@pytest.mark.parametrize("shift", [1, 2])
def test_the_bound_of_a_sum_of_discrete_gaussians_holds_and_is_as_tight_as_the_paper_says(
    variance: float, shares: int, shift: int
) -> None:
    logs, orders = log_gaussian_sum(variance, shares), [2, 3, 5]
    bounds = gaussian_divergences(orders, variance, shares, shift, shift, 1)
    exact = [divergence(shifted(logs, shift), logs, a) for a in orders]
    tau = closeness(variance, shares)
    for bound, value in zip(bounds, exact, strict=True):
        # Log density ratios are at most tau from those of one discrete Gaussian, in both directions.
        assert value <= bound * (1 + 1e-9)
        assert bound <= value + 2 * tau + 1e-9 * bound


def test_the_bound_holds_for_vectors() -> None:
    logs, shift = log_gaussian_sum(0.3, 4), (1, 0, 2)
    exact = sum(divergence(shifted(logs, s), logs, 3) for s in shift)
    assert exact <= gaussian_divergences([3], 0.3, 4, math.sqrt(5), 3, 3)[0]
    assert exact > 0.9 * 3 * 5 / (2 * 4 * 0.3)


def test_closeness_is_the_sum_of_the_paper() -> None:
    assert closeness(2.0, 1) == 0
    assert closeness(0.1, 1) == 0
    expected = 10 * (math.exp(-2 * math.pi**2 * 0.5 / 2) + math.exp(-2 * math.pi**2 * 0.5 * 2 / 3))
    assert closeness(0.5, 3) == pytest.approx(expected, rel=1e-14)
    assert closeness(0.24, 2) == math.inf
    assert closeness(0.25, 2) < 1


@pytest.mark.parametrize(("order", "l1", "smallest"), [(64.0, 1e9, 0), (1.01, 1.0, 1), (1.01, 1e9, 2)])
def test_each_term_of_the_bound_is_used(order: float, l1: float, smallest: int) -> None:
    variance, shares, l2, dimension = 0.25, 3, 1.0, 10
    tau, length = closeness(variance, shares), l2 / math.sqrt(shares * variance)
    terms = [
        order / 2 * length**2 + tau * dimension,
        order / 2 * (length**2 + 2 * l1 / math.sqrt(shares * variance) * tau + tau**2 * dimension),
        order / 2 * (length + tau * math.sqrt(dimension)) ** 2,
    ]
    assert terms.index(min(terms)) == smallest
    bound = gaussian_divergences([order], variance, shares, l2, l1, dimension)[0]
    assert bound == pytest.approx(terms[smallest], rel=1e-12)


@pytest.mark.parametrize("variance", [0.5, 2.0, 10.0, 50.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_the_bound_of_skellam_noise_holds(variance: float, shift: int) -> None:
    logs, orders = log_skellam(variance), [2, 3, 4, 8]
    bounds = skellam_divergences(orders, variance, shift, shift)
    for order, bound in zip(orders, bounds, strict=True):
        exact = divergence(shifted(logs, shift), logs, order)
        assert 0 < exact <= bound
        # Skellam tails are longer than Gaussian ones, so the divergence is below the Gaussian one, and the bound above it.
        assert exact < order * shift**2 / (2 * variance) < bound
        if variance >= 10 and order * shift <= 8:
            assert bound < 1.4 * exact


def test_skellam_noise_of_large_variance_is_as_private_as_gaussian_noise() -> None:
    logs = log_skellam(400.0)
    exact = divergence(shifted(logs, 7), logs, 3)
    bound = skellam_divergences([3], 400.0, 7, 7)[0]
    assert 3 * 49 / 800 * 0.999 < exact <= bound
    assert bound == pytest.approx(3 * 49 / 800 + (5 * 49 + 42) / (4 * 400**2), rel=1e-14)
    assert bound < 1.01 * exact


def test_skellam_noise_of_small_variance_pays_for_the_l1_norm() -> None:
    assert skellam_divergences([64], 1.0, 2.0, 2.0)[0] == pytest.approx(64 * 4 / 2 + 3 * 2 / 2)


@pytest.mark.parametrize("family", ["discrete_gaussian", "skellam"])
@pytest.mark.parametrize("q", [0.02, 0.4])
def test_poisson_sampling_is_covered_in_both_directions(family: str, q: float) -> None:
    # The bound of Skellam noise is loose for a small variance.
    variance = 1.0 if family == "discrete_gaussian" else 10.0
    logs = log_gaussian_sum(1.0, 4) if family == "discrete_gaussian" else log_skellam(40.0)
    one = mechanism(family=family, variance=variance, shares=4, l2=2.0, l1=2.0, sampling_rate=q)
    with_unit = mixed(q, logs, shifted(logs, 2))
    for order in (2, 3, 6):
        exact = divergence(with_unit, logs, order)
        assert divergence(logs, with_unit, order) <= exact
        bound = one.divergences([order])[0]
        assert exact <= bound * (1 + 1e-9)
        assert bound <= exact * (1.02 if family == "discrete_gaussian" else 1.2)


def test_sampling_never_costs_privacy() -> None:
    for family, sampling, q in itertools.product(
        ("discrete_gaussian", "skellam"), ("poisson", "fixed", "visible"), (1e-3, 0.3, 0.99)
    ):
        sampled = mechanism(family=family, sampling=sampling, sampling_rate=q)
        whole = dataclasses.replace(sampled, sampling_rate=1.0)
        orders = np.array(INTEGER_ORDERS)
        assert (sampled.divergences(orders) <= whole.divergences(orders) * (1 + 1e-12)).all()
        assert (sampled.divergences(orders[:8]) > 0).all()


@pytest.mark.parametrize("sampling", ["poisson", "visible"])
@pytest.mark.parametrize("q", [0.01, 0.3, 1.0])
def test_one_share_has_the_divergences_of_gaussian_noise(sampling: Any, q: float) -> None:
    one = mechanism(shares=1, variance=36.0, sampling=sampling, sampling_rate=q)
    gaussian = Mechanism(2.0, q, 1, sampling)
    np.testing.assert_allclose(divergences((one,)), divergences((gaussian,)), rtol=1e-9)


@pytest.mark.parametrize("q", [0.02, 0.2])
def test_samples_of_fixed_size_are_covered(q: float) -> None:
    # The sample contains the unit (shift 1 or 0), or instead another contribution y of any sign.
    one = mechanism(variance=2.0, shares=3, l2=1.0, l1=1.0, sampling="fixed", sampling_rate=q)
    logs = log_gaussian_sum(2.0, 3)
    for other, order in itertools.product((-1, 0, 1), (2, 3, 8)):
        instead = shifted(logs, other)
        present, absent = mixed(q, instead, shifted(logs, 1)), mixed(q, instead, logs)
        worst = max(divergence(present, absent, order), divergence(absent, present, order))
        assert worst <= one.divergences([order])[0] * (1 + 1e-9)
    assert one.divergences([2])[0] < 1.1 * q * mechanism(variance=2.0, shares=3, l2=1.0, l1=1.0).divergences([2])[0]


def test_fixed_sampling_is_the_theorem_of_wang_balle_and_kasiviswanathan() -> None:
    one = mechanism(shares=1, variance=900.0, sampling="fixed", sampling_rate=0.01)
    moved = [j * 4 * 9 / 1800 for j in (2, 3)]
    second = 3 * 0.01**2 * min(4 * math.expm1(moved[0]), 2 * math.exp(moved[0]))
    third = 0.01**3 * 2 * math.exp(2 * moved[1])
    assert one.divergences([3])[0] == pytest.approx(math.log1p(second + third) / 2, rel=1e-12)


def test_the_modulus_costs_no_privacy() -> None:
    logs = log_gaussian_sum(1.0, 3)
    p, q = (np.exp(logs), np.exp(shifted(logs, 2)))
    whole = [divergence(np.log(q, where=q > 0, out=np.full_like(q, -np.inf)), logs, a) for a in (2, 5)]
    folded = [np.bincount((X - LOW) % 8, weights=w, minlength=8) for w in (p, q)]
    small = [divergence(np.log(folded[1]), np.log(folded[0]), a) for a in (2, 5)]
    assert all(s <= w for s, w in zip(small, whole, strict=True))
    assert small[0] > 0


@pytest.mark.parametrize("changes", [{"family": "skellam"}, {"sampling_rate": 0.1}])
def test_log_moments_are_interpolated_where_only_integer_orders_are_proven(changes: dict[str, Any]) -> None:
    one = mechanism(**changes)
    second, third, fourth = one.divergences([2, 3, 4])
    found = one.divergences([1.5, 2.25, 3.0, 3.5])
    np.testing.assert_allclose(
        found * [0.5, 1.25, 2, 2.5],
        [0.5 * second, 0.75 * second + 0.25 * 2 * third, 2 * third, (2 * third + 3 * fourth) / 2],
        rtol=1e-12,
    )


def test_interpolated_bounds_hold() -> None:
    logs = log_skellam(10.0)
    one = mechanism(family="skellam", variance=10.0, shares=1, l2=2.0, l1=2.0)
    for order in (1.1, 1.7, 2.5, 5.3):
        assert divergence(shifted(logs, 2), logs, order) < one.divergences([order])[0]


def test_one_share_is_proven_at_every_order() -> None:
    assert mechanism(shares=1).divergences([1.5])[0] == pytest.approx(1.5 * 9 / 8)
    seen = mechanism(shares=1, sampling_rate=0.5, sampling="visible").divergences([1.5])[0]
    assert seen == pytest.approx(2 * math.log(0.5 + 0.5 * math.exp(0.5 * 1.5 * 9 / 8)))


def test_a_hidden_draw_is_at_most_as_costly_as_a_visible_one() -> None:
    for q, sampling in itertools.product((0.05, 0.5), ("poisson", "fixed")):
        hidden, seen = (mechanism(variance=0.5, sampling_rate=q, sampling=s) for s in (sampling, "visible"))
        assert (hidden.divergences((2, 8, 64)) <= seen.divergences((2, 8, 64))).all()
    assert hidden.divergences([64])[0] == seen.divergences([64])[0]


@pytest.mark.parametrize("step", [1.0, 0.05])
def test_rounding_increases_the_norm_as_in_the_paper(step: float) -> None:
    rounding = Rounding(clip=2.0, step=step, dimension=64, beta=0.3)
    c = 2.0 / step
    expected = math.sqrt(c**2 + 64 / 4 + math.sqrt(2 * math.log(1 / 0.3)) * (c + 8 / 2))
    assert rounding.l2 == pytest.approx(min(expected, c + 8), rel=1e-14)
    assert rounding.l1 == pytest.approx(rounding.l2 * min(8, rounding.l2), rel=1e-14)
    assert dataclasses.replace(rounding, beta=0.0).l2 == pytest.approx(c + 8)


def test_noise_on_rounded_vectors_has_their_norms() -> None:
    rounding = Rounding(clip=2.0, step=0.5, dimension=64)
    assert rounding.noise("skellam", 3.0) == IntegerNoise("skellam", 3.0, rounding.l2, rounding.l1, 64, rounding.step)


def test_rounding_of_short_vectors_has_the_bound_that_always_holds() -> None:
    assert Rounding(clip=0.01, step=1.0, dimension=1, beta=1e-30).l2 == pytest.approx(1.01)
    short = Rounding(clip=0.1, step=1.0, dimension=4, beta=0.9)
    assert short.l1 == pytest.approx(short.l2**2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": 0.0}, "clip: got 0.0, expected a finite number > 0"),
        ({"step": math.nan}, "step: got nan, expected a finite number > 0"),
        ({"dimension": 0}, "dimension: got 0, expected a whole number >= 1"),
        ({"beta": 1.0}, "beta: got 1.0, expected a number in"),
    ],
)
def test_wrong_roundings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Rounding(**{"clip": 1.0, "step": 0.1, "dimension": 4} | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "gaussian"}, "family: got 'gaussian', expected 'discrete_gaussian' or 'skellam'"),
        ({"shares": 0}, "shares: got 0, expected a whole number >= 1"),
        ({"dimension": 0}, "dimension: got 0, expected a whole number >= 1"),
        ({"variance": -1.0}, "variance: got -1.0, expected a number >= 0"),
        ({"steps": -1}, "steps: got -1, expected a whole number >= 0"),
        ({"l2": 0.0}, "l2: got 0.0, expected a number > 0"),
        ({"l1": math.nan}, "l1: got nan, expected a number > 0"),
        ({"sampling_rate": 1.1}, "sampling_rate: got 1.1, expected a number in"),
    ],
)
def test_wrong_mechanisms_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mechanism(**changes)


def test_idle_and_bare_mechanisms() -> None:
    for changes in ({"steps": 0}, {"sampling_rate": 0.0}, {"variance": math.inf}):
        assert mechanism(**changes).idle
        assert rdp((mechanism(**changes),), DELTA) == 0
    assert mechanism(sampling_rate=0.0).divergences([2, 3]).tolist() == [0, 0]
    bare = mechanism(variance=0.0)
    assert bare.divergences([2])[0] == math.inf
    assert best((bare,), DELTA)[0] == math.inf
    assert best((mechanism(variance=0.2),), DELTA)[0] == math.inf  # No bound of several shares is proven.
    assert math.isfinite(best((mechanism(variance=0.2, shares=1),), DELTA)[0])


def test_the_epsilon_of_one_dimension_is_above_that_of_dp_accounting() -> None:
    one = mechanism(shares=1, variance=9.0, l2=1.0, l1=1.0, steps=40)
    tight = privacy_loss_distribution.from_discrete_gaussian_mechanism(3.0, sensitivity=1).self_compose(40)
    epsilon, name = best((one,), DELTA)
    assert name == "rdp"
    assert tight.get_epsilon_for_delta(DELTA) < epsilon < 1.1 * tight.get_epsilon_for_delta(DELTA)
    sampled = dataclasses.replace(one, sampling_rate=0.1)
    loss = privacy_loss_distribution.from_discrete_gaussian_mechanism(3.0, sensitivity=1, sampling_prob=0.1)
    lower = loss.self_compose(40).get_epsilon_for_delta(DELTA)
    assert lower < best((sampled,), DELTA)[0] < 1.5 * lower


@pytest.mark.parametrize("family", ["discrete_gaussian", "skellam"])
@pytest.mark.parametrize(("q", "sampling"), [(1.0, "poisson"), (0.05, "poisson"), (0.05, "visible")])
def test_a_fine_grid_has_the_epsilon_of_gaussian_noise(family: Any, q: float, sampling: Any) -> None:
    clip, std, shares, dimension, steps = 1.0, 0.2, 100, 256, 20
    orders = np.array(INTEGER_ORDERS)
    total = steps * divergences((Mechanism(2.0, q, 1, sampling),))[0]
    gaussian = float(epsilon_at(orders, total, DELTA, "tight"))  # Skellam noise has bounds at integer orders only.
    epsilons = []
    for step in (0.3, 0.01, 0.0003):
        rounding = Rounding(clip, step, dimension)
        noise = rounding.noise(family, (std / step) ** 2)
        one = DiscreteMechanism(noise, shares, q, steps, sampling)
        epsilons.append(float(epsilon_at(orders, steps * one.divergences(orders), DELTA, "tight")))
        assert rdp((one,), DELTA) <= epsilons[-1]
    # A coarse grid increases the norm, and the limit is Gaussian noise of std sqrt(shares) / clip.
    assert epsilons[0] > 1.2 * gaussian
    assert epsilons == sorted(epsilons, reverse=True)
    assert gaussian * (1 - 1e-9) <= epsilons[-1] < 1.01 * gaussian


def test_one_message_has_the_noise_of_one_client_only() -> None:
    whole = mechanism(shares=100)
    alone = whole.with_shares(1)
    assert whole.noise_multiplier == pytest.approx(10 * alone.noise_multiplier)
    assert alone.noise_multiplier == pytest.approx(2 / 3)
    assert rdp((alone,), DELTA) == pytest.approx(rdp((Mechanism(2 / 3, 1.0, 1),), DELTA), rel=1e-9)
    assert rdp((alone,), DELTA) > 5 * rdp((whole,), DELTA)


def test_another_noise_multiplier() -> None:
    for multiplier in (0.3, 7.0):
        changed = mechanism().with_noise(multiplier)
        assert changed.noise_multiplier == pytest.approx(multiplier)
        assert dataclasses.replace(changed, noise=mechanism().noise) == mechanism()
    assert mechanism(steps=7).releases == 7


def test_integer_noise_composes_with_other_mechanisms() -> None:
    one, other = mechanism(shares=1, variance=36.0, steps=3), Mechanism(2.0, 1.0, 5)
    assert rdp((one, other), DELTA) == pytest.approx(rdp((Mechanism(2.0, 1.0, 8),), DELTA), rel=1e-9)
    many = tuple(mechanism(variance=4.0 + i, steps=2) for i in range(6))
    assert rdp(many, DELTA) > rdp(many[:5], DELTA)
    assert best((one, other), DELTA)[1] == "rdp"
    with pytest.raises(ValueError, match="got integer noise, expected Gaussian noise"):
        pld((one, other), DELTA)


def test_printed_compositions() -> None:
    gaussian = moments_2017((Mechanism(2.0, 1.0, 4),), DELTA)
    assert moments_2017((mechanism(shares=1, variance=36.0, steps=4),), DELTA) == pytest.approx(gaussian)
    with pytest.raises(InputError, match="composition: got noise 'skellam', expected Gaussian noise"):
        zcdp((mechanism(family="skellam"),), DELTA)


def test_kinds_are_gathered_without_rounding() -> None:
    kinds = gathered((mechanism(steps=2), mechanism(family="skellam"), mechanism(steps=3), mechanism(steps=0)), 1.5)
    assert kinds == (mechanism(steps=5), mechanism(family="skellam"))
    assert merged((mechanism(steps=2), mechanism(steps=3))) == (mechanism(steps=5),)


@pytest.mark.parametrize("family", ["discrete_gaussian", "skellam"])
def test_the_bound_of_reconstruction_holds(family: str) -> None:
    one = mechanism(family=family, variance=1.0, shares=4, l2=2.0, l1=2.0)
    logs = log_gaussian_sum(1.0, 4) if family == "discrete_gaussian" else log_skellam(4.0)
    without, with_unit = np.exp(logs), np.exp(shifted(logs, 2))
    kappas = np.cumsum(without[::-1])[::-1]
    gammas = np.cumsum(with_unit[::-1])[::-1]
    some = (kappas > 1e-6) & (kappas < 0.9)
    found = reconstruction_robustness(kappas[some], (one,))
    assert (found >= gammas[some] - 1e-9).all()
    assert (found <= 1).all() and found.min() < 0.01
    assert reconstruction_robustness([0.0, 1.0], (one,)).tolist() == [0.0, 1.0]
    assert reconstruction_robustness(0.1, (one,)).shape == ()
    assert reconstruction_robustness(0.1, (one, Mechanism(1.0, 1.0, 1))) > reconstruction_robustness(0.1, (one,))
    bare = mechanism(variance=0.2)
    assert reconstruction_robustness([0.0, 0.1], (bare,)).tolist() == [0.0, 1.0]


def schedule(**changes: Any) -> Schedule:
    fields: dict[str, Any] = {
        "clients": 100,
        "clients_per_round": 10,
        "rounds": 20,
        "local_iterations": 1,
        "batch": 1,
        "examples_per_client": 10,
        "copies": 1.0,
        "most_copies": 1,
        "client_sampling": "fixed",
        "batch_sampling": "fixed",
        "tensors": 1,
    }
    return Schedule(**fields | changes)


def stretch(cohort: int) -> Stretch:
    return Stretch((Phase({}, 20, 1, True, cohort),), 0, 20)


def test_releases_carry_integer_noise() -> None:
    one = (mechanism(shares=10),)
    seen = drawn(one, "client", stretch(10), schedule())
    assert seen == (mechanism(shares=10, sampling_rate=0.1, steps=20, sampling="visible"),)
    part = Part(20, seen, repeated(one, 20), one, 20)
    released = Released((part,), "integer noise", "client")
    epsilon, name = best(released.mechanisms, DELTA)
    assert name == "rdp" and 0 < epsilon < best(released.without_draw, DELTA)[0]
    assert released.realised(3) == (mechanism(shares=10, steps=3),)
    assert drawn(one, "client", stretch(100), schedule()) == (mechanism(shares=10, steps=20),)
    with pytest.raises(ValueError, match="got integer noise with others or for an example"):
        drawn((one[0], Mechanism(1.0, 1.0, 1)), "client", stretch(10), schedule())


ROUNDING = Rounding(clip=1.0, step=0.05, dimension=64)
NOISE = ROUNDING.noise("skellam", 16.0)
BOUND = Fact("clip", norm=ROUNDING.l2 * ROUNDING.step)
SHARE = Fact("noise", std=4.0 * ROUNDING.step, each=True, integer=NOISE)


def ledger(facts: tuple[Fact, ...], unit: Any = "client", station: str = "client", **changes: Any) -> Epsilon:
    phase = Phase({station: facts}, 20, 1, True, changes.get("clients_per_round", 10))
    return epsilon((phase,), unit, NoClaim(reason="not asked"), schedule(**changes), DELTA)


def of_shares(shares: int, q: float, sampling: Any) -> float:
    return rdp((DiscreteMechanism(NOISE, shares, q, 20, sampling),), DELTA)


def test_the_ledger_counts_the_shares_that_each_observer_sees() -> None:
    found = ledger((BOUND, SHARE))
    assert found.accountant == "rdp"
    assert found.valid == pytest.approx(of_shares(10, 0.1, "fixed"))
    # Without secure aggregation, a client's own update has one share, and the server sees which clients take part.
    assert found.by_tap["type-1"].valid == pytest.approx(of_shares(1, 0.1, "visible"))
    assert found.by_tap["type-0"].valid == found.by_tap["type-1"].valid
    assert found.by_tap["type-2"].valid is None
    assert found.sigma_effective == pytest.approx(math.sqrt(160) / ROUNDING.l2)
    assert found.by_tap["type-1"].sigma_effective == pytest.approx(4 / ROUNDING.l2)
    assert found.without_draw == pytest.approx(of_shares(10, 1.0, "poisson"))
    summed = ledger((BOUND, SHARE), secure_aggregation=True)
    assert summed.by_tap["type-0"].valid == pytest.approx(of_shares(10, 0.1, "visible"))
    assert summed.by_tap["type-1"].valid == found.by_tap["type-1"].valid


@pytest.mark.parametrize("changes", [{"client_sampling": "poisson"}, {"dropout": 0.1}])
def test_the_ledger_counts_one_share_if_others_may_be_missing(changes: dict[str, Any]) -> None:
    assert ledger((BOUND, SHARE), **changes).valid == pytest.approx(of_shares(1, 0.1, "visible"))


def test_the_ledger_counts_the_strongest_of_several_noises() -> None:
    gaussian = Fact("noise", std=0.1, each=True)
    weaker = ledger((BOUND, SHARE, gaussian))
    assert weaker.valid == ledger((BOUND, SHARE)).valid
    strong = dataclasses.replace(gaussian, std=10.0)
    assert ledger((BOUND, SHARE, strong)).valid == ledger((BOUND, strong)).valid
    assert ledger((BOUND, SHARE, strong)).accountant == "pld"


def test_a_change_after_the_noise_leaves_one_share() -> None:
    assert ledger((BOUND, SHARE, Fact("other", reason="changed"))).valid == pytest.approx(of_shares(1, 0.1, "fixed"))


def test_integer_noise_does_not_protect_examples() -> None:
    found = ledger((BOUND, SHARE), "example", "example")
    assert found.valid is None
    assert found.reason.startswith("none: integer noise is accounted for the update of a whole client only")
