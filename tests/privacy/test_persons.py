"""The epsilon of a person with several examples: closed forms, quadrature, dp-accounting's accountant, and bounds on both sides."""

import dataclasses
import math
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy import optimize, stats
from scipy.special import logsumexp

from leakbench.core.errors import InputError
from leakbench.core.types import Fact
from leakbench.privacy.accountants import best, moments_2017, pld, rdp
from leakbench.privacy.claim import MomentsClaim, NoClaim
from leakbench.privacy.compositions import basic
from leakbench.privacy.curve import spent
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.group import CLOSE, Group, drawn_examples
from leakbench.privacy.ledger import Phase, Schedule, unit_name
from leakbench.privacy.mechanism import Mechanism, Mixture, gathered
from leakbench.privacy.observers import observations
from leakbench.privacy.pairs import gaussian_delta, losses, uses_of
from leakbench.privacy.release import Released
from leakbench.privacy.renyi import INTEGER_ORDERS, divergences

DELTA = 1e-5
SCHEDULE = Schedule(
    clients=20,
    clients_per_round=10,
    rounds=5,
    local_iterations=4,
    batch=10,
    examples_per_client=100,
    copies=1.0,
    most_copies=1,
    client_sampling="fixed",
    batch_sampling="poisson",
    tensors=1,
)
CLIP = Fact("clip", norm=4.0)
ON_THE_SUM = {"example": (CLIP,), "batch": (Fact("noise", std=24.0),)}
OF_EACH = {"example": (CLIP, Fact("noise", std=24.0, each=True))}
OF_CLIENTS = {"client": (CLIP,), "server": (Fact("noise", std=24.0),)}


def at(schedule: Schedule, facts: dict[str, tuple[Fact, ...]], unit: Any = "example", **changes: Any) -> Epsilon:
    s = dataclasses.replace(schedule, **changes)
    phase = Phase(facts, s.rounds, s.local_iterations, True, s.clients_per_round)
    return epsilon((phase,), unit, NoClaim("test"), s, DELTA)


def valid(found: Epsilon) -> list[float | None]:
    return [found.valid, *(tap.valid for tap in found.by_tap.values())]


def group(sigma: float, members: int, rate: float, steps: int = 1, sampling: Any = "poisson") -> Group:
    """Return a group of a client with 1,000 examples, with noise of sigma bounds of one example."""
    weights = drawn_examples(members, round(1000 * rate), 1000, "fixed" if sampling == "fixed" else "poisson")
    most = len(weights) - 1
    return Group(sigma / (math.sqrt(most) if sampling == "visible" else most), weights, steps, sampling)


def group_privacy(one: Mechanism, members: int, delta: float) -> float:
    """Return K epsilon, where one example has epsilon at delta (e^epsilon - 1) / (e^(K epsilon) - 1)."""

    def excess(log_delta: float) -> float:
        own = best((one,), math.exp(log_delta))[0]
        return log_delta + math.log(math.expm1(members * own) / math.expm1(own)) - math.log(delta)

    log_delta = optimize.brentq(excess, -150, math.log(delta), xtol=1e-4)
    return members * best((one,), math.exp(log_delta))[0]


# One example.


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "split"])
@pytest.mark.parametrize("facts", [ON_THE_SUM, OF_EACH, OF_CLIENTS])
def test_one_example_per_person_changes_nothing(sampling: str, facts: dict[str, tuple[Fact, ...]]) -> None:
    unit = "client" if facts is OF_CLIENTS else "example"
    plain = at(SCHEDULE, facts, unit, batch_sampling=sampling)
    assert at(SCHEDULE, facts, unit, batch_sampling=sampling, examples_per_person=1) == plain
    assert plain.unit == unit


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "visible"])
def test_a_group_of_one_is_the_mechanism_of_one_example(sampling: Any) -> None:
    one, alone = Mechanism(1.0, 0.05, 50, sampling), group(1.0, 1, 0.05, 50, sampling)
    assert pld((alone,), DELTA) == pytest.approx(pld((one,), DELTA), rel=2e-4)


def test_divergences_of_a_group_of_one_are_those_of_one_example() -> None:
    orders = [a for a in INTEGER_ORDERS if a <= 60]
    expected = divergences((Mechanism(1.0, 0.05, 1),), orders)[0]
    np.testing.assert_allclose(group(1.0, 1, 0.05).divergences(orders), expected, rtol=1e-8)


# Closed forms.


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "split"])
def test_without_sampling_a_person_moves_one_release_by_the_bounds_of_all_examples(sampling: str) -> None:
    changes = {"rounds": 1, "local_iterations": 1, "clients_per_round": 20, "batch": 100, "batch_sampling": sampling}
    found = at(SCHEDULE, ON_THE_SUM, **changes, examples_per_person=5)
    assert found.valid is not None
    assert float(gaussian_delta(found.valid, 5 / 6)) == pytest.approx(DELTA, rel=2e-3)
    assert found.sigma_effective == pytest.approx(6 / 5)


def test_visible_draws_of_clients_mix_the_divergence_of_one_update() -> None:
    changes = {"rounds": 1, "local_iterations": 1, "clients_per_round": 5}
    found = at(SCHEDULE, ON_THE_SUM, **changes, examples_per_person=8)
    assert found.valid is not None
    removed, added = group(6.0, 8, 0.1).profiles
    largest = max(float(profile(np.array([found.valid]))[0]) for profile in (removed, added))
    assert largest / 4 == pytest.approx(DELTA, rel=5e-3)


def test_own_noise_makes_each_drawn_example_a_use_of_its_own() -> None:
    found = at(SCHEDULE, OF_EACH, examples_per_person=3, clients_per_round=20)
    uses = np.arange(5 * 4 * 3 + 1)
    weights = stats.binom(5 * 4 * 3, 0.1).pmf(uses)
    assert found.valid is not None
    assert found.by_tap["type-2"].valid == pytest.approx(found.valid, rel=1e-6)
    assert float(weights @ gaussian_delta(found.valid, np.sqrt(uses) / 6)) == pytest.approx(DELTA, rel=1e-4)


def test_own_noise_of_examples_and_noise_of_the_sum_bound_every_number_of_drawn_examples() -> None:
    facts = {"example": OF_EACH["example"], "batch": (Fact("noise", std=60.0),)}
    phase = Phase(facts, 5, 4, True, 20)
    schedule = dataclasses.replace(SCHEDULE, clients_per_round=20, examples_per_person=6)
    seen = observations((phase,), "example", schedule)["global"]
    assert isinstance(seen, Released)
    (uses,) = seen.mechanisms
    for drawn in range(1, 7):
        exact = drawn * 4 / math.sqrt(drawn * 24**2 + 60**2)
        assert math.sqrt(drawn) / uses.noise_multiplier >= exact * (1 - 1e-12)
    assert math.sqrt(6) / uses.noise_multiplier == pytest.approx(6 * 4 / math.sqrt(6 * 24**2 + 60**2))


@pytest.mark.parametrize(("members", "squares"), [(1, 1), (4, 16), (10, 100), (23, 10**2 + 10**2 + 3**2)])
def test_in_the_worst_split_a_person_fills_whole_batches(members: int, squares: int) -> None:
    changes = {"rounds": 1, "local_iterations": 10, "clients_per_round": 20, "batch_sampling": "split"}
    found = at(SCHEDULE, ON_THE_SUM, **changes, examples_per_person=members)
    assert found.valid is not None
    assert float(gaussian_delta(found.valid, math.sqrt(squares) / 6)) == pytest.approx(DELTA, rel=2e-3)


# A clip of the mean of 10 examples at .2 bounds the sum's change by any number of them to 4; the noise is 24, as above.
OF_THE_MEAN = {"batch": (Fact("clip", norm=0.2), Fact("noise", std=24.0))}


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_clip_of_the_mean_bounds_all_examples_of_a_person_together(sampling: Any) -> None:
    changes = {"clients_per_round": 20, "batch_sampling": sampling}
    one, several = (at(SCHEDULE, OF_THE_MEAN, **changes, examples_per_person=k) for k in (1, 5))
    weights = drawn_examples(5, 10, 100, sampling)
    expected = pld((Mechanism(several.sigma_effective or 0.0, 1 - weights[0], 20, sampling),), DELTA)
    assert several.sigma_effective == one.sigma_effective
    assert several.valid == pytest.approx(expected, rel=1e-9)
    assert several.q == 1 - weights[0]
    assert "moves it by up to one bound, however many of them are in the batch" in several.reason
    both = {**OF_THE_MEAN, "example": (Fact("clip", norm=1e-3),)}
    assert at(SCHEDULE, both, **changes, examples_per_person=5).sigma_effective == pytest.approx(
        24 / 1e-3 / 5, rel=1e-9
    )
    assert at(SCHEDULE, OF_THE_MEAN, **changes, examples_per_person=100).sigma_effective == one.sigma_effective


@pytest.mark.parametrize(("members", "batches"), [(1, 1), (4, 4), (10, 10), (23, 10)])
def test_in_a_split_with_a_clip_of_the_mean_a_person_is_in_as_many_batches_as_possible(
    members: int, batches: int
) -> None:
    changes = {"rounds": 1, "local_iterations": 10, "clients_per_round": 20, "batch_sampling": "split"}
    one, several = (at(SCHEDULE, OF_THE_MEAN, **changes, examples_per_person=k) for k in (1, members))
    assert one.sigma_effective is not None
    assert several.sigma_effective == pytest.approx(one.sigma_effective / math.sqrt(batches))


def test_a_batch_of_fixed_size_holds_no_more_examples_than_its_size() -> None:
    changes = {"clients_per_round": 20, "batch_sampling": "fixed"}
    many, whole = (at(SCHEDULE, ON_THE_SUM, **changes, examples_per_person=k) for k in (50, 100))
    assert many.sigma_effective == pytest.approx(6 / 10)
    assert "a person with at most 50 examples in a client's data moves it by up to one bound for each" in many.reason
    # All examples of the client are the person's: 10 in each batch, for certain.
    assert whole.q == 1.0
    assert whole.valid == pytest.approx(pld((Mechanism(6 / 10, 1.0, 20),), DELTA), rel=1e-9)


def test_uses_of_a_gradient_in_batches_of_fixed_size_are_hypergeometric() -> None:
    phase = Phase(OF_EACH, 5, 4, True, 20)
    schedule = dataclasses.replace(SCHEDULE, clients_per_round=20, batch_sampling="fixed", examples_per_person=7)
    seen = observations((phase,), "example", schedule)["type-2"]
    assert isinstance(seen, Released)
    (one,) = seen.mechanisms
    assert isinstance(one, Group)
    found = uses_of(one)
    assert found is not None
    expected = np.ones(1)
    for _ in range(20):
        expected = np.convolve(expected, stats.hypergeom(100, 7, 10).pmf(np.arange(8)))
    assert found[0] == pytest.approx(6.0)
    np.testing.assert_allclose(found[1], expected, atol=1e-13)
    rounds = Mixture((dataclasses.replace(one, steps=4),), 20, 1, 20, "fixed", 5)
    in_rounds = uses_of(rounds)
    assert in_rounds is not None
    np.testing.assert_allclose(in_rounds[1], expected, atol=1e-13)
    assert pld((one,), DELTA) == pytest.approx(float(losses((one,), 1e-4).get_epsilon_for_delta(DELTA)), abs=2e-3)


# Quadrature.

LINE = np.linspace(-25, 45, 140_001)
EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])


def density(weights: Any, means: Any) -> Any:
    return sum(w * stats.norm.pdf(LINE - m) for w, m in zip(weights, means, strict=True))


def hockey_stick(p: Any, q: Any) -> Any:
    step = LINE[1] - LINE[0]  # The sum is exact but for the kinks at zero.
    return np.array([np.maximum(p - math.exp(e) * q, 0.0).sum() * step for e in EPSILONS])


@pytest.mark.parametrize(("sigma", "members", "rate"), [(1.0, 2, 0.1), (0.7, 5, 0.3), (3.0, 4, 0.02)])
def test_the_divergences_of_a_poisson_batch_are_those_of_the_mixture(sigma: float, members: int, rate: float) -> None:
    one = group(sigma, members, rate)
    p, q = density(one.weights, np.arange(members + 1) / sigma), density([1.0], [0.0])
    removed, added = one.profiles
    np.testing.assert_allclose(removed(EPSILONS), hockey_stick(p, q), atol=1e-8)
    np.testing.assert_allclose(added(EPSILONS), hockey_stick(q, p), atol=1e-8)


def test_renyi_divergences_are_those_of_quadrature_in_both_directions() -> None:
    one, step = group(1.5, 4, 0.2), LINE[1] - LINE[0]
    without = stats.norm.logpdf(LINE)
    several = np.log(one.weights)[:, None] + stats.norm.logpdf(LINE - np.arange(5)[:, None] / 1.5)
    with_person = logsumexp(several, axis=0)
    for order in (2, 3, 8):
        both = [
            (logsumexp(order * p + (1 - order) * q) + math.log(step)) / (order - 1)
            for p, q in ((with_person, without), (without, with_person))
        ]
        assert one.divergences([order])[0] == pytest.approx(max(both), rel=1e-6)


@pytest.mark.parametrize(("sigma", "members", "rate"), [(1e-3, 2, 0.143), (3e-3, 5, 0.143), (1.2e-3, 5, 0.01)])
def test_renyi_divergences_with_little_noise_need_little_memory(sigma: float, members: int, rate: float) -> None:
    one = group(sigma, members, rate)
    tracemalloc.start()
    found = one.divergences([2, 3, 8, 64])
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert largest < 1e9
    assert (found <= np.array([2, 3, 8, 64]) / (2 * (sigma / members) ** 2)).all()


def test_the_bound_of_batches_of_fixed_size_is_above_every_tried_contribution() -> None:
    rng = np.random.default_rng(0)
    closest = 0.0
    for sigma, members, rate in ((1.0, 1, 0.1), (1.0, 3, 0.1), (2.0, 5, 0.02), (0.7, 4, 0.999)):
        one = group(sigma, members, rate, sampling="fixed")
        removed, added = one.profiles
        for trial in range(12):
            own, others = rng.uniform(-1, 1, (2, members))
            if trial < 6:
                own, others = np.sign(own), np.sign(others)
            if trial < 2:  # The others point against the person, or as it does.
                own, others = np.ones(members), np.full(members, 2.0 * trial - 1)
            without = np.concatenate([[0], -np.cumsum(others)]) / sigma
            with_person = without + np.concatenate([[0], np.cumsum(own)]) / sigma
            p, q = density(one.weights, with_person), density(one.weights, without)
            for bound, exact in ((removed, hockey_stick(p, q)), (added, hockey_stick(q, p))):
                assert (bound(EPSILONS) >= exact - 1e-8).all()
                closest = max(closest, float(exact[1] / bound(EPSILONS)[1]))
    assert closest > 0.99


def of_a_fixed_batch(examples: int, batch: int, members: int, sigma: float, steps: int) -> Group:
    weights = drawn_examples(members, batch, examples, "fixed")
    return Group(sigma / (len(weights) - 1), weights, steps, "fixed")


@pytest.mark.parametrize(
    ("federation", "steps", "expected"),
    [
        ((100, 5, 10, 6.0), 1, 1.184),
        ((100, 50, 5, 6.0), 1, 2.800),
        ((10, 3, 2, 2.0), 1, 3.689),
        ((6, 3, 3, 2.0), 2, 7.751),
    ],
)
def test_the_bound_of_a_batch_of_fixed_size_pairs_each_number_of_drawn_examples_with_itself(
    federation: tuple[int, int, int, float], steps: int, expected: float
) -> None:
    found = pld((of_a_fixed_batch(*federation, steps),), DELTA)
    assert found == pytest.approx(expected, abs=2e-3)
    _, batch, members, sigma = federation
    assert found < pld((Mechanism(sigma / min(members, batch), 1.0, steps),), DELTA)


@pytest.mark.parametrize("own", [0, 1])
def test_the_bound_of_a_batch_of_fixed_size_is_below_that_of_certain_draws_and_grows_with_the_examples(
    own: int,
) -> None:
    few = np.zeros(EPSILONS.size)
    for members in range(1, 13):
        bound = of_a_fixed_batch(14, 10, members, 6.0, 1).profiles[own](EPSILONS)
        assert (bound > few).all()
        assert (bound <= gaussian_delta(EPSILONS, min(members, 10) / 6) * (1 + 1e-9)).all()
        few = bound


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "visible"])
def test_lines_between_a_part_of_the_epsilons_are_hardly_above_the_divergences(sampling: Any) -> None:
    removed, added = group(1.0, 4, 0.1, sampling=sampling).profiles
    grid = 1e-4 * np.arange(12 * CLOSE)
    some = np.arange(CLOSE, 12 * CLOSE, 997)
    for profile in (removed, added):
        above = profile(grid)[some] - profile(grid[some])
        assert (above >= -1e-12).all()
        assert (above <= 1e-3 * profile(grid[some]) + 1e-12).all()


# dp-accounting and group privacy.


@pytest.mark.parametrize(("sigma", "members", "rate", "steps"), [(2.0, 2, 0.05, 100), (4.0, 5, 0.1, 20)])
def test_a_hidden_poisson_draw_agrees_with_the_accountant_of_dp_accounting(
    sigma: float, members: int, rate: float, steps: int
) -> None:
    one, coarse = group(sigma, members, rate, steps), 2e-3
    accountant: Any = PLDAccountant(value_discretization_interval=coarse)
    event = dp_event.MixtureOfGaussiansDpEvent(sigma, list(range(members + 1)), list(one.weights))
    accountant.compose(dp_event.SelfComposedDpEvent(event, steps))
    expected = float(accountant.get_epsilon(DELTA))
    assert float(losses((one,), coarse).get_epsilon_for_delta(DELTA)) == pytest.approx(expected, rel=1e-4)
    assert pld((one,), DELTA) == pytest.approx(expected, rel=5e-3)
    assert pld((one,), DELTA) <= rdp((one,), DELTA)


@pytest.mark.parametrize(("sigma", "members", "steps"), [(2.0, 2, 200), (4.0, 3, 400), (8.0, 10, 1000)])
def test_a_person_is_between_one_example_and_group_privacy(sigma: float, members: int, steps: int) -> None:
    alone = Mechanism(sigma, 0.02, steps)
    several = pld((group(sigma, members, 0.02, steps),), DELTA)
    assert members * pld((alone,), DELTA) < several <= group_privacy(alone, members, DELTA)


@pytest.mark.parametrize("batch_sampling", ["poisson", "fixed", "split"])
@pytest.mark.parametrize("facts", [ON_THE_SUM, OF_EACH])
def test_more_examples_of_a_person_cost_more_for_each_observer(facts: Any, batch_sampling: str) -> None:
    changes = {"batch_sampling": batch_sampling, "copies": 2.0, "most_copies": 3}
    several = [valid(at(SCHEDULE, facts, **changes, examples_per_person=k)) for k in (1, 2, 3, 10, 50, 95)]
    for fewer, more in pairwise(several):
        for low, high in zip(fewer, more, strict=True):
            assert (low is None and high is None) or (low is not None and high is not None and low < high)


@pytest.mark.parametrize(("members", "sigma", "sampling"), [(100, 1.0, "fixed"), (100, 6.0, "poisson")])
def test_a_large_epsilon_of_a_person_has_a_grid_that_fits_it(members: int, sigma: float, sampling: Any) -> None:
    weights = drawn_examples(members, 5, 500, sampling)
    rounds = Mixture((Group(sigma / (len(weights) - 1), weights, 100, sampling),), 1000, 9, 100, "fixed", 100)
    found = pld((rounds,), DELTA)
    assert found == pytest.approx(float(losses((rounds,), 1e-5 * found).get_epsilon_for_delta(DELTA)), rel=5e-3)


def test_little_noise_leaves_no_mass_at_an_infinite_loss() -> None:
    # Against the person's outputs, a loss is at most -log P(no example is drawn), where the divergence falls to 0 at once.
    one = group(0.6, 5, 0.1, 20)
    assert best((one,), DELTA) == (pld((one,), DELTA), "pld")
    assert pld((one,), DELTA) < 0.2 * rdp((one,), DELTA)


def test_a_batch_of_fixed_size_costs_at_least_a_poisson_batch() -> None:
    for members in (2, 5):
        hidden, fixed = (group(4.0, members, 0.05, 100, sampling) for sampling in ("poisson", "fixed"))
        assert pld((hidden,), DELTA) < pld((fixed,), DELTA) < 4 * pld((hidden,), DELTA)


def test_the_bound_of_a_person_that_is_certainly_drawn_in_part_is_above_that_of_a_visible_count() -> None:
    weights = drawn_examples(8, 95, 100, "fixed")
    assert weights[:3] == (0.0, 0.0, 0.0)
    removed, _ = Group(3.0 / 8, weights, 1, "fixed").profiles
    expected = sum(w * float(gaussian_delta(1.0, j / 3)) for j, w in enumerate(weights))
    assert removed(np.array([1.0]))[0] >= expected * (1 - 1e-9)


# The ledger.


def test_all_examples_of_a_client_are_covered_already() -> None:
    one, several = (at(SCHEDULE, OF_CLIENTS, "client", examples_per_person=k) for k in (1, 50))
    assert valid(one) == valid(several)
    assert several.unit == "client"
    assert several.reason is not None
    assert several.reason == (
        f"{one.reason}; covers all examples of a client, and so each person with examples at one client only; "
        "a person at several clients is not covered"
    )


def test_the_unit_and_the_sentence_name_the_person() -> None:
    found = at(SCHEDULE, ON_THE_SUM, examples_per_person=5)
    assert found.unit == unit_name("example", 5) == "person with at most 5 examples at no more than one client"
    assert (
        "noise of 6 times one example's bound on the sum of a batch; a person with at most 5 examples" in found.reason
    )
    assert "a person with examples at no more than 1 of 20 clients takes part up to" in found.reason
    assert unit_name("client", 5) == "client"


@pytest.mark.parametrize("cohorts", ["fixed", "poisson", "in_turn"])
@pytest.mark.parametrize("facts", [ON_THE_SUM, OF_EACH])
def test_the_number_of_clients_of_a_person_is_part_of_the_unit(cohorts: str, facts: Any) -> None:
    changes = {"copies": 2.0, "most_copies": 3, "client_sampling": cohorts}
    found = at(SCHEDULE, facts, **changes, examples_per_person=5)
    assert found.unit == "person with at most 5 examples at each of at most 3 clients"
    assert "a person with examples at no more than 3 of 20 clients takes part" in found.reason
    assert "a person at more clients is not covered" in found.reason
    assert "worst person" not in found.reason
    assert "person" not in at(SCHEDULE, facts, **changes).reason


def test_a_person_at_all_clients_is_covered() -> None:
    schedule = dataclasses.replace(SCHEDULE, copies=20.0, most_copies=20, examples_per_person=5)
    seen = observations((Phase(ON_THE_SUM, 5, 4, True, 10),), "example", schedule)["global"]
    assert isinstance(seen, Released) and "at no more than 20 of 20 clients takes part" in seen.sentence
    assert "not covered" not in seen.sentence


def test_five_examples_at_three_clients_cost_more_than_at_one_and_fifteen_clients_more_than_three() -> None:
    few, some, many = (
        at(SCHEDULE, ON_THE_SUM, copies=1.0, most_copies=m, examples_per_person=k).valid
        for m, k in ((1, 5), (3, 5), (15, 5))
    )
    assert few is not None
    assert some is not None
    assert many is not None
    assert few < some < many


def test_a_claim_stays_that_of_one_example() -> None:
    claim = MomentsClaim(unit="example", noise_multiplier=6.0)
    schedule = dataclasses.replace(SCHEDULE, examples_per_person=5)
    phase = Phase(ON_THE_SUM, 5, 4, True, 10)
    one, several = (epsilon((phase,), "example", claim, s, DELTA) for s in (SCHEDULE, schedule))
    assert several.claimed == one.claimed
    assert several.caveats == (*one.caveats, "the claim is for one example, here a person has at most 5")


@pytest.mark.parametrize(("members", "said"), [(0, "expected at least 1"), (101, "expected at most the 100 examples")])
def test_an_impossible_number_of_examples_is_refused(members: int, said: str) -> None:
    with pytest.raises(InputError, match=f"examples_per_person: got {members}, {said}"):
        dataclasses.replace(SCHEDULE, examples_per_person=members)


@pytest.mark.parametrize(
    "wrong", [{"noise_multiplier": -1.0}, {"weights": (1.0,)}, {"weights": (0.5, 0.6)}, {"steps": -1}]
)
def test_an_impossible_group_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        dataclasses.replace(group(1.0, 2, 0.1), **wrong)


@pytest.mark.parametrize("accountant", [moments_2017, basic])
def test_accountants_of_papers_refuse_several_examples(accountant: Callable[..., float]) -> None:
    with pytest.raises(InputError, match="several examples of one person"):
        accountant((group(1.0, 2, 0.1),), DELTA)


def test_groups_of_the_same_kind_are_composed_together() -> None:
    one, other = group(4.0, 3, 0.1, 5), group(4.0, 3, 0.1, 7)
    assert gathered((one, other)) == (dataclasses.replace(one, steps=12),)
    assert pld((one, Mechanism(5.0, 1.0, 1)), DELTA) > pld((one,), DELTA)
    assert group(4.0, 3, 0.1, 0).idle
    assert pld((group(4.0, 3, 0.1, 0),), DELTA) == 0.0


def test_renyi_divergences_of_every_sampling_bound_the_epsilon() -> None:
    for sampling in ("poisson", "fixed", "visible"):
        one = group(4.0, 3, 0.1, 30, sampling)
        assert pld((one,), DELTA) <= rdp((one,), DELTA) < math.inf


def test_the_divergences_after_each_round_are_of_the_person_too() -> None:
    phase = Phase(ON_THE_SUM, 5, 4, True, 10)
    one, several = (spent((phase,), "example", dataclasses.replace(SCHEDULE, examples_per_person=k)) for k in (1, 3))
    assert (several[:, 0] > 8 * one[:, 0]).all()
