"""Every published epsilon cell: the derivable ones are reproduced, the others are shown not to follow.

Printed: Wei et al., "Securing Distributed SGD Against Gradient Leakage Threats", TPDS 2023, Tables 6, 7, 8, 11; Geyer et
al. 2017, Table 1; the script of Flower's documentation; NbAFL's calibration (Wei et al., TIFS 2020).
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from leakbench.core.types import Clock
from leakbench.privacy.accountants import pld, rdp
from leakbench.privacy.claim import CompositionClaim, FlowerClaim, GeyerClaim, MomentsClaim, NbaflClaim
from leakbench.privacy.claims_composed import sequence
from leakbench.privacy.curve import composition_curve, rounds_within, step_divergences
from leakbench.privacy.decay import Decay, Exponential, FromEpsilon, Linear, Staircase
from leakbench.privacy.ledger import Schedule
from leakbench.privacy.mechanism import Mechanism, Mechanisms
from leakbench.privacy.renyi import divergences, epsilon_at, without_replacement

DELTA = 1e-5
REFERENCE, RENYI, LOSSES = 5e-4, 1e-3, 2e-3  # Tolerances of the three columns.

# Rounds, batch, examples of a client; 1000 clients, 100 a round, 100 local iterations: q = .01 = B / |D_i| in all five.
FEDERATIONS = {
    "mnist": (100, 5, 500),
    "cifar10": (100, 4, 400),
    "lfw": (60, 3, 300),
    "adult": (10, 3, 300),
    "cancer": (3, 4, 400),
}


def federation(dataset: str = "mnist", rounds: int | None = None) -> Schedule:
    trained, batch, examples = FEDERATIONS[dataset]
    return Schedule(
        clients=1000,
        clients_per_round=100,
        rounds=trained if rounds is None else rounds,
        local_iterations=100,
        batch=batch,
        examples_per_client=examples,
        copies=1.0,
        most_copies=1,
        client_sampling="poisson",
        batch_sampling="poisson",
        tensors=3,
    )


def assert_three_columns(claim: MomentsClaim, schedule: Schedule, reference: float, tight: float, loss: float) -> None:
    columns = (("moments_2017", reference, REFERENCE), ("rdp", tight, RENYI), ("pld", loss, LOSSES))
    for accountant, expected, within in columns:
        found = dataclasses.replace(claim, accountant=accountant)(schedule).epsilon
        assert found == pytest.approx(expected, abs=within), accountant


# Printed; old conversion, tight conversion, privacy loss distributions.
TABLE_6_CLIENT = {
    "mnist": (0.854, 0.853553, 0.681852, 0.618949),
    "cifar10": (0.854, 0.853553, 0.681852, 0.618949),
    "lfw": (0.668, 0.667664, 0.523804, 0.473705),
    "adult": (0.303, 0.302515, 0.219024, 0.194649),
}
TABLE_6_EXAMPLE = {
    "mnist": (0.823, 0.822734, 0.659151, 0.600856),
    "cifar10": (0.823, 0.822734, 0.659151, 0.600856),
    "lfw": (0.636, 0.635563, 0.500551, 0.455157),
    "adult": (0.276, 0.275978, 0.191386, 0.172365),
}


@pytest.mark.parametrize("dataset", TABLE_6_CLIENT)
def test_table_6_fed_sdp_counts_one_round_more_than_it_trains(dataset: str) -> None:
    printed, *columns = TABLE_6_CLIENT[dataset]
    claim = MomentsClaim(unit="client", noise_multiplier=6.0, extra_rounds=1)
    assert_three_columns(claim, federation(dataset), *columns)
    assert claim(federation(dataset)).epsilon == pytest.approx(printed, abs=REFERENCE)
    as_stated = dataclasses.replace(claim, extra_rounds=0)(federation(dataset)).epsilon
    assert as_stated is not None
    assert printed - as_stated > 0.004


@pytest.mark.parametrize("dataset", TABLE_6_EXAMPLE)
def test_table_6_fed_cdp(dataset: str) -> None:
    printed, *columns = TABLE_6_EXAMPLE[dataset]
    claim = MomentsClaim(unit="example", noise_multiplier=6.0)
    assert_three_columns(claim, federation(dataset), *columns)
    assert claim(federation(dataset)).epsilon == pytest.approx(printed, abs=REFERENCE)


def test_table_6_cancer_does_not_follow() -> None:
    """.138 (Fed-CDP) needs 251 to 255 steps, but 300 are stated; .147 (Fed-SDP) is Fed-CDP's value for 300 steps."""
    example = MomentsClaim(unit="example", noise_multiplier=6.0)
    assert_three_columns(example, federation("cancer"), 0.146748, 0.100585, 0.089851)
    for steps, follows in ((250, False), (251, True), (255, True), (256, False), (300, False)):
        shorter = dataclasses.replace(federation("cancer", 1), local_iterations=steps)
        epsilon = example(shorter).epsilon
        assert (epsilon == pytest.approx(0.138, abs=REFERENCE)) == follows, steps
    client = MomentsClaim(unit="client", noise_multiplier=6.0)
    assert_three_columns(client, federation("cancer"), 0.177541, 0.117806, 0.102155)
    assert_three_columns(
        dataclasses.replace(client, extra_rounds=1), federation("cancer"), 0.206503, 0.134533, 0.117460
    )


# Round, printed; old conversion, tight conversion, privacy loss distributions.
TABLE_7 = {
    "mnist": (11, 0.285, 0.285006, 0.201394, 0.181491),
    "cifar10": (67, 0.672, 0.671929, 0.531147, 0.483273),
    "lfw": (34, 0.478, 0.477644, 0.368803, 0.334442),
    "adult": (5, 0.184, 0.184144, 0.132110, 0.118450),
    "cancer": (1, 0.084, 0.084058, 0.056128, 0.049620),
}


@pytest.mark.parametrize("dataset", TABLE_7)
def test_table_7(dataset: str) -> None:
    rounds, printed, *columns = TABLE_7[dataset]
    claim = MomentsClaim(unit="example", noise_multiplier=6.0)
    assert_three_columns(claim, federation(dataset, rounds), *columns)
    assert claim(federation(dataset, rounds)).epsilon == pytest.approx(printed, abs=REFERENCE)


# Batch, clients, all examples: the paper's own formula q = B K_t / |D| gives other epsilons than it prints.
SECTION_6 = {
    "mnist": (5 * 100 / 60000, 0.823, 0.683606, 0.541168, 0.492481),
    "cifar10": (4 * 100 / 50000, 0.823, 0.655941, 0.517770, 0.471044),
    "lfw": (3 * 100 / 2267, 0.636, 9.794204, 8.963832, 8.336943),
    "adult": (3 * 100 / 36631, 0.276, 0.215226, 0.154201, 0.138585),
    "cancer": (4 * 100 / 426, 0.138, 16.812392, 15.671342, 14.658513),
}


@pytest.mark.parametrize("dataset", SECTION_6)
def test_the_papers_own_sampling_rate_does_not_give_its_epsilons(dataset: str) -> None:
    rate, printed, reference, tight, loss = SECTION_6[dataset]
    mechanisms = (Mechanism(6.0, rate, 100 * FEDERATIONS[dataset][0]),)
    orders = (2, 3, 4, *range(5, 64), 128, 256, 512)
    found = float(epsilon_at(orders, step_divergences(mechanisms, orders)[-1], DELTA, "old"))
    assert found == pytest.approx(reference, abs=REFERENCE)
    assert rdp(mechanisms, DELTA) == pytest.approx(tight, abs=RENYI)
    assert pld(mechanisms, DELTA) == pytest.approx(loss, abs=LOSSES)
    assert abs(found - printed) > 0.05


def cyclic_in_every_iteration(clock: Clock) -> float:
    """The paper's formula with one cycle, over local iterations instead of rounds: no code was released for it."""
    done = clock.round * clock.local_iterations + clock.local_iteration
    return 15 * (1 + math.cos(math.pi * done / (clock.rounds * clock.local_iterations))) / 2


# The epsilons of single steps in the accounting script grow; those of the catalog's recipes are the same.
SCRIPT: dict[str, Decay] = {
    "linear": FromEpsilon(Linear(0.3074675, 1.3074675, "iteration")),
    "staircase": FromEpsilon(Staircase(0.3574675, 1.3574675, 10, "iteration")),
    "exponential": FromEpsilon(Exponential(math.exp(-1.1809), math.exp(1.664 - 1.1809), "iteration")),
    "cyclic": cyclic_in_every_iteration,
}
BUDGET = {"mnist": 0.823, "cifar10": 0.823, "lfw": 0.636, "adult": 0.276, "cancer": 0.138}

# Printed round in which the budget is spent, and the computed number of rounds.
TABLE_8 = {
    "linear": {"mnist": (95, 95), "cifar10": (95, 95), "lfw": (55, 57), "adult": (8, 10), "cancer": (3, 3)},
    "staircase": {"mnist": (95, 95), "cifar10": (95, 95), "lfw": (55, 57), "adult": (8, 10), "cancer": (3, 3)},
    "exponential": {"mnist": (96, 96), "cifar10": (96, 96), "lfw": (55, 57), "adult": (8, 10), "cancer": (3, 3)},
    # No code was released for this one: the paper's formula is within two rounds, and exact for two of five.
    "cyclic": {"mnist": (80, 78), "cifar10": (80, 78), "lfw": (47, 47), "adult": (7, 8), "cancer": (3, 3)},
}

CURVE_ORDERS = (2, 3, 4, *range(5, 64), 128, 256, 512)


@pytest.fixture(scope="module")
def curve() -> Callable[[str, str], np.ndarray]:
    """Return the old conversion's epsilon after every local iteration; each sequence is computed once."""
    known: dict[tuple[str, int], np.ndarray] = {}

    def of(policy: str, dataset: str) -> np.ndarray:
        schedule = federation(dataset)
        if (policy, schedule.rounds) not in known:
            spent = step_divergences(script(policy, schedule), CURVE_ORDERS)
            known[policy, schedule.rounds] = epsilon_at(CURVE_ORDERS, spent, DELTA, "old")
        return known[policy, schedule.rounds]

    return of


def script(policy: str, schedule: Schedule) -> Mechanisms:
    return sequence("example", SCRIPT[policy], schedule)


def rounds_spent(curve: np.ndarray, budget: float) -> int:
    """Return the number of rounds, including the last started one, of the local iterations that fit into a budget."""
    return math.ceil(rounds_within(curve, budget) / 100)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", FEDERATIONS)
@pytest.mark.parametrize("policy", TABLE_8)
def test_table_8(policy: str, dataset: str, curve: Callable[[str, str], np.ndarray]) -> None:
    """LFW, Adult and most of cyclic do not follow: the budget of the accounting script's schedule lasts longer."""
    printed, found = TABLE_8[policy][dataset]
    assert rounds_spent(curve(policy, dataset), BUDGET[dataset]) == found
    assert (printed == found) == ((policy, dataset) not in NOT_REPRODUCED)


NOT_REPRODUCED = {
    *((policy, dataset) for policy in ("linear", "staircase", "exponential") for dataset in ("lfw", "adult")),
    *(("cyclic", dataset) for dataset in ("mnist", "cifar10", "adult")),
}

STATED = {"linear": Linear(), "staircase": Staircase(), "exponential": Exponential()}


@pytest.mark.parametrize(("policy", "after"), [("linear", 0.5748), ("staircase", 0.5355), ("exponential", 0.6372)])
def test_the_stated_decay_never_spends_the_budget(policy: str, after: float) -> None:
    """The paper's text has sigma from 15 to 4.85, which is why the script's schedule is used above."""
    claim = MomentsClaim(unit="example", noise_multiplier=STATED[policy])
    epsilon = claim(federation()).epsilon
    assert epsilon == pytest.approx(after, abs=5e-3)
    assert epsilon is not None
    assert epsilon < 0.823


# Printed round of MNIST and the epsilon spent by then: tight conversion, losses; the noise changes every 20 steps.
SPENT = {
    "linear": (95, 0.662488, 0.604525),
    "staircase": (95, 0.664696, 0.605782),
    "exponential": (96, 0.670304, 0.611882),
    "cyclic": (80, 0.818709, 0.746009),
}


def noise_levels(policy: str, rounds: int) -> np.ndarray:
    mechanisms = script(policy, federation())
    return np.repeat([m.noise_multiplier for m in mechanisms], [m.steps for m in mechanisms])[: 100 * rounds]


@pytest.mark.slow
@pytest.mark.parametrize("policy", SPENT)
def test_the_epsilon_that_a_decay_spends(policy: str) -> None:
    rounds, tight, _ = SPENT[policy]
    levels = noise_levels(policy, rounds)
    coarse = rdp(tuple(Mechanism(sigma, 0.01, 20) for sigma in levels[::20]), DELTA)
    assert coarse == pytest.approx(tight, abs=RENYI)
    every_step = rdp(tuple(Mechanism(sigma, 0.01, 1) for sigma in levels), DELTA)
    assert coarse - 1e-9 <= every_step < 1.02 * coarse


SLOW = [pytest.param(policy, marks=pytest.mark.long) for policy in ("linear", "exponential", "cyclic")]


@pytest.mark.parametrize("policy", ["staircase", *SLOW])
def test_the_epsilon_that_a_decay_spends_by_losses(policy: str) -> None:
    rounds, _, loss = SPENT[policy]
    found = pld(tuple(Mechanism(sigma, 0.01, 20) for sigma in noise_levels(policy, rounds)[::20]), DELTA)
    # Hundreds of noise levels are rounded down to a grid of 1 %, which gives an upper bound.
    assert loss - LOSSES < found < (loss + LOSSES if policy == "staircase" else 1.01 * loss)


TABLE_11 = {"basic": 123.354, "advanced": 7.450, "zcdp": 1.159}


@pytest.mark.parametrize("composition", TABLE_11)
def test_table_11_budgets(composition: str) -> None:
    fields = {"unit": "example", "composition": composition, "noise_multiplier": 6.0}
    assert CompositionClaim(**fields, digits=3)(federation()).epsilon == pytest.approx(TABLE_11[composition], abs=6e-4)


@pytest.mark.parametrize(("digits", "follows"), [(3, True), (None, False)])
def test_table_11_rounds_the_epsilon_of_one_step(digits: int | None, follows: bool) -> None:
    alone = 0.807 if follows else math.sqrt(2 * math.log(1.25 / DELTA)) / 6
    e = math.log(1 + 0.01 * (math.exp(alone) - 1))
    sums = {
        "basic": 1e4 * e,
        "advanced": math.sqrt(2e4 * math.log(1e5)) * e + 1e4 * e * (math.exp(e) - 1),
        "advanced_2015": math.sqrt(2e4 * math.log(1e5)) * e + 1e4 * e * (math.exp(e) - 1) / (math.exp(e) + 1),
    }
    for composition, expected in sums.items():
        fields = {"unit": "example", "composition": composition, "noise_multiplier": 6.0, "digits": digits}
        assert CompositionClaim(**fields)(federation()).epsilon == pytest.approx(expected, rel=1e-9)
    for composition in ("basic", "advanced"):
        assert (sums[composition] == pytest.approx(TABLE_11[composition], abs=6e-4)) == follows


def test_table_11_formulas_state_their_total_delta() -> None:
    claim = CompositionClaim(unit="example", composition="basic", noise_multiplier=6.0, digits=3)
    assert claim(federation()).formula.endswith("delta=1e-05 of each step, 0.001 in total")
    advanced = CompositionClaim(unit="example", composition="advanced", noise_multiplier=6.0, digits=3)
    assert advanced(federation()).formula.endswith("delta=1e-05 of each step, 0.00101 in total")
    zcdp = CompositionClaim(unit="example", composition="zcdp", noise_multiplier=6.0)
    assert "a heuristic" in zcdp(federation()).formula and "of each step" not in zcdp(federation()).formula
    moments = MomentsClaim(unit="example", noise_multiplier=6.0)
    assert moments(federation()).mechanisms == zcdp(federation()).mechanisms
    assert zcdp(federation()).mechanisms == advanced(federation()).mechanisms == (Mechanism(6.0, 0.01, 10_000),)


def test_table_11_at_a_total_delta_of_1e_5() -> None:
    mechanisms = (Mechanism(6.0, 0.01, 10000),)
    assert composition_curve("basic", mechanisms, 1e-7)[-1] == pytest.approx(158.0, abs=0.05)


def test_table_11_budget_of_advanced_composition_is_not_the_scripts() -> None:
    claim = CompositionClaim(unit="example", composition="advanced_2015", noise_multiplier=6.0)
    assert claim(federation()).epsilon == pytest.approx(6.686, abs=6e-4)  # 7.450 is printed.


# Printed round in which each budget is spent: base, advanced, zCDP, moments.
TABLE_11_ROUNDS = {
    "linear": (97, 95, 95, 95),
    "staircase": (97, 95, 95, 95),
    "exponential": (97, 94, 96, 96),
    "cyclic": (81, 79, 80, 80),
}
CYCLIC_ROUNDS = (79, 74, 78, 78)


@pytest.mark.parametrize("policy", TABLE_11_ROUNDS)
def test_table_11_rounds(policy: str, curve: Callable[[str, str], np.ndarray]) -> None:
    """For cyclic, whose code was not released, no round follows."""
    mechanisms = script(policy, federation())
    budgets = {"basic": 123.354, "advanced_2015": 7.45, "zcdp": 1.159}
    composed = [rounds_spent(composition_curve(name, mechanisms, DELTA), most) for name, most in budgets.items()]
    found = (*composed, rounds_spent(curve(policy, "mnist"), 0.823))
    if policy == "cyclic":
        assert found != TABLE_11_ROUNDS[policy]
        assert found == CYCLIC_ROUNDS
    else:
        assert found == TABLE_11_ROUNDS[policy]


def test_table_11_rounds_of_the_printed_advanced_formula_do_not_follow() -> None:
    mechanisms = script("linear", federation())
    assert rounds_spent(composition_curve("advanced", mechanisms, DELTA), 7.45) == 89  # 95 is printed.


# Clients, rounds, updates of all rounds, delta'; releases a round; sigma's interval; tight conversion, losses at its end.
GEYER = [
    (100, 11, 550, 1e-3, 1, 1.1931, 1.2303, 7.045229, 5.941673),
    (100, 11, 550, 1e-3, 6, 2.4592, 2.5582, 7.045229, 6.246579),
    (1000, 54, 11880, 1e-5, 1, 1.4357, 1.4439, 7.250220, 6.463875),
    (1000, 54, 11880, 1e-5, 6, 2.8900, 2.9140, 7.250220, 6.700936),
    (10000, 412, 209500, 1e-6, 1, 1.0922, 1.0929, 7.250220, 6.642209),
    (10000, 412, 209500, 1e-6, 6, 2.0376, 2.0396, 7.374497, 6.848567),
]


def geyer_federation(clients: int, rounds: int, updates: int) -> Schedule:
    # 508.5 of 10000 clients a round on average: counted in halves, since only their ratio matters.
    half = {"clients": 2 * clients, "clients_per_round": round(2 * updates / rounds)}
    return dataclasses.replace(federation(), **half, rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rounds", "updates", "delta", "releases", "low", "high", "tight", "loss"), GEYER)
def test_geyer_table_1(
    clients: int,
    rounds: int,
    updates: int,
    delta: float,
    releases: int,
    low: float,
    high: float,
    tight: float,
    loss: float,
) -> None:
    """No sigma is printed; a sigma in an interval ends exactly after the printed round, at the mean number of clients."""
    schedule = geyer_federation(clients, rounds, updates)
    longer = dataclasses.replace(schedule, rounds=rounds + 30)
    width = high - low
    for sigma, fits in ((low - width, False), ((low + high) / 2, True), (high + width, False)):
        claim = GeyerClaim(noise_multiplier=sigma, delta=delta, releases=releases)
        assert (rounds_within(claim.deltas(longer), delta) == rounds) == fits, sigma
    claim = GeyerClaim(noise_multiplier=(low + high) / 2, delta=delta, releases=releases)
    assert claim(schedule).epsilon == 8.0
    assert claim(longer).epsilon is None
    assert f"in round {rounds + 1} of" in claim(longer).formula
    mechanisms = (Mechanism(low, schedule.client_rate, releases * rounds),)
    orders = range(2, 33)
    total = releases * rounds * divergences(mechanisms, orders)[0]
    assert epsilon_at(orders, total, delta, "tight") == pytest.approx(tight, abs=RENYI)
    assert pld(mechanisms, delta) == pytest.approx(loss, abs=LOSSES)


def test_the_published_agent_does_not_give_geyers_table_1() -> None:
    """The released sigma of 1 with 30, 100 or 300 clients a round lasts 14, 70 or 926 rounds, not 11, 54 or 412."""
    for clients, cohort, delta, rounds in ((100, 30, 1e-3, 14), (1000, 100, 1e-5, 70), (10000, 300, 1e-6, 926)):
        schedule = dataclasses.replace(federation(), clients=clients, clients_per_round=cohort, rounds=1000)
        assert rounds_within(GeyerClaim(noise_multiplier=1.0).deltas(schedule), delta) == rounds


# Clients a round of 1000, z, rounds: the script; the true cost of replacing a client (z / 2) and of zero-out (z), by losses.
FLOWER = [
    (100, 1.0, 100, 15.008521, 83.936917, 31.371008, 7.046629),
    (100, 2.0, 100, 6.004513, 14.053750, 7.046629, 2.337460),
    (10, 1.0, 1000, 4.115913, 20.987072, 13.360981, 1.828934),
    (1000, 1.0, 10, 20.756463, 50.126631, 46.211210, 17.856587),
]


@pytest.mark.slow
@pytest.mark.parametrize(("cohort", "z", "rounds", "script_epsilon", "renyi", "replaced", "zeroed"), FLOWER)
def test_flowers_script(
    cohort: int, z: float, rounds: int, script_epsilon: float, renyi: float, replaced: float, zeroed: float
) -> None:
    schedule = dataclasses.replace(federation(), clients_per_round=cohort, rounds=rounds)
    claimed = FlowerClaim(noise_multiplier=z)(schedule)
    assert claimed.epsilon == pytest.approx(script_epsilon, abs=REFERENCE)
    assert "to replace a client moves the sum by 2" in claimed.formula
    assert claimed.mechanisms == (Mechanism(z, cohort / 1000, rounds, "fixed"),)
    q = cohort / 1000
    assert pld((Mechanism(z / 2, q, rounds),), DELTA) == pytest.approx(replaced, abs=LOSSES)
    assert pld((Mechanism(z, q, rounds),), DELTA) == pytest.approx(zeroed, abs=LOSSES)
    orders = range(2, 33)
    total = rounds * without_replacement(q, z / 2, orders)
    assert epsilon_at(orders, total, DELTA, "tight") == pytest.approx(renyi, abs=RENYI)


# Stated epsilon, noise over the sensitivity, one upload by the analytic Gaussian; delta = .01.
NBAFL = [
    (1.0, 3.107511, 0.508632),
    (8.0, 0.388439, 8.598043),
    (50.0, 0.06215, 165.942715),
    (60.0, 0.051792, 230.374192),
    (100.0, 0.031075, 591.675957),
]


@pytest.mark.parametrize(("stated", "noise", "analytic"), NBAFL)
def test_nbafl_states_less_than_it_spends(stated: float, noise: float, analytic: float) -> None:
    claim = NbaflClaim(epsilon=stated)
    claimed = claim(federation(rounds=1))
    assert claimed.epsilon == stated
    assert claim.noise_multiplier == pytest.approx(noise, rel=1e-4)
    assert f"the analytic Gaussian gives {analytic:.4g} for one upload" in claimed.formula
