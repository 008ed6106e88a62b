"""The mixture over a random draw of clients: closed forms, dp-accounting, and draws by the federation's own code."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy import stats

from leakbench.auditing.trials import drawn
from leakbench.auditing.verdict import lower_bounds
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Fact
from leakbench.data.partition import Iid, Partitioner, Shards
from leakbench.federated.sampling import draw_clients
from leakbench.privacy.accountants import best, moments_2017, pld, rdp
from leakbench.privacy.bounds import gaussian_robustness, reconstruction_robustness
from leakbench.privacy.calibration import Noise
from leakbench.privacy.claim import NoClaim
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Phase, Schedule, Stretch
from leakbench.privacy.mechanism import Mechanism, Mixture, participations
from leakbench.privacy.pairs import gaussian_delta, losses, sum_of, uses_of
from leakbench.privacy.release import Part, Released, multiplier, span
from leakbench.privacy.release import drawn as drawn_of

DELTA = 1e-5
CLIP, NOISE = Fact("clip", norm=4.0), Fact("noise", std=24.0)

FEDERATIONS: dict[str, tuple[int, int, int, int, Partitioner]] = {
    # (training examples, rounds, batch, examples of a client, partition), as in the Fed-alphaCDP paper's Table 2.
    "mnist": (60_000, 100, 5, 500, Shards()),
    "lfw": (2_267, 60, 3, 300, Iid()),
    "cancer": (426, 3, 4, 400, Iid()),
}
COPIES = {"mnist": 9, "lfw": 133, "cancer": 939}


def schedule_of(name: str, **changes: Any) -> Schedule:
    examples, rounds, batch, own, _ = FEDERATIONS[name]
    fields: dict[str, Any] = {
        "clients": 1000,
        "clients_per_round": 100,
        "rounds": rounds,
        "local_iterations": 100,
        "batch": batch,
        "examples_per_client": own,
        "copies": 1000 * own / examples,
        "most_copies": COPIES[name],
        "client_sampling": "fixed",
        "batch_sampling": "poisson",
        "tensors": 1,
    }
    return Schedule(**fields | changes)


def fed_cdp(schedule: Schedule) -> Epsilon:
    """Return Fed-CDP with a flat clip and noise of 6 times its bound on the sum of a batch."""
    phase = Phase(
        {"example": (CLIP,), "batch": (NOISE,)},
        schedule.rounds,
        schedule.local_iterations,
        True,
        schedule.clients_per_round,
    )
    return epsilon((phase,), "example", NoClaim(reason="not asked"), schedule, DELTA)


def delta_after(times: int, at: float) -> float:
    """Return delta of exactly `times` participations of 100 local iterations with q = .01, by dp-accounting."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    if times:
        accountant.compose(Mechanism(6.0, 0.01, 100 * times).event())
    return float(accountant.get_delta(at))


# Values on which an independent computation and this one agree, and the gain from the draw.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "valid", "without"), [("mnist", 0.577, 2.01), ("lfw", 1.885, 5.95), ("cancer", 1.059, 1.095)]
)
def test_independent_figures_of_fed_cdp(name: str, valid: float, without: float) -> None:
    found = fed_cdp(schedule_of(name))
    assert found.valid == pytest.approx(valid, abs=1.5e-3)
    assert found.without_draw == pytest.approx(without, abs=5e-3)
    assert found.by_tap["type-1"].valid == found.by_tap["type-0"].valid == found.valid


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cancer"])
def test_delta_is_the_mean_over_all_numbers_of_participations(name: str) -> None:
    """dp-accounting gives delta for each number of participations; their mean at the valid epsilon is the stated delta."""
    found = fed_cdp(schedule_of(name))
    assert found.valid is not None
    rounds, copies = FEDERATIONS[name][1], COPIES[name]
    weights = sum_of(participations(1000, copies, 100, "fixed"), rounds)
    counts = np.flatnonzero(weights > 1e-10)
    exact = sum(weights[n] * delta_after(int(n), found.valid) for n in counts)
    assert 0.97 * DELTA < exact < 1.002 * DELTA


@pytest.mark.slow
@pytest.mark.parametrize(("name", "trials"), [("mnist", 400), ("lfw", 400), ("cancer", 3000)])
def test_real_draws_of_the_example_with_the_most_copies(name: str, trials: int) -> None:
    """The federation's own partition and draws: mean delta at the valid epsilon is at most the stated one, with 99.9 %.

    The same draws show that the epsilon of the mean number of participations is too small if that number varies.
    """
    examples, rounds, _, own, partitioner = FEDERATIONS[name]
    rng = generator(0, "partition")
    partition = partitioner(torch.arange(examples) % 10, 1000, own, rng)
    worst = int(partition.copies.argmax())
    holds = (partition.indices == worst).any(1)
    assert int(holds.sum()) == partition.most_copies == COPIES[name]
    draws = [
        sum(int(holds[draw_clients(1000, 100, "fixed", seed, t)].sum()) for t in range(rounds))
        for seed in range(trials)
    ]
    drawn_counts = np.array(draws)
    assert drawn_counts.mean() == pytest.approx(
        rounds * COPIES[name] / 10, abs=4 * drawn_counts.std() / math.sqrt(trials)
    )

    valid = fed_cdp(schedule_of(name)).valid
    mean_only = pld((Mechanism(6.0, 0.01, 10 * rounds * COPIES[name]),), DELTA)
    assert valid is not None
    # Delta is convex in the number of participations here, so interpolation never underestimates it.
    knots = np.unique(np.linspace(drawn_counts.min(), drawn_counts.max(), 16).astype(int))

    def mean_and_error(at: float) -> tuple[float, float]:
        deltas = np.interp(drawn_counts, knots, [delta_after(int(n), at) for n in knots])
        return float(deltas.mean()), float(deltas.std(ddof=1) / math.sqrt(trials))

    mean, error = mean_and_error(valid)
    assert mean - 3.1 * error <= DELTA <= mean + 4 * error
    if name == "mnist":
        mean, error = mean_and_error(mean_only)
        assert mean - 3.1 * error > DELTA


# Degenerate draws


@pytest.mark.parametrize("draw", ["fixed", "poisson"])
def test_the_draw_gains_nothing_if_all_clients_take_part(draw: str) -> None:
    found = fed_cdp(schedule_of("cancer", clients=100, most_copies=1, copies=1.0, client_sampling=draw))
    assert found.valid == found.without_draw == pytest.approx(pld((Mechanism(6.0, 0.01, 300),), DELTA), abs=1e-9)


def test_one_round_of_gaussian_releases_is_a_mean_of_analytic_gaussians() -> None:
    """H of 3 of 10 holders among 4 of 20 clients: hypergeometric, and each participation moves the output by 1 / sigma."""
    mixture = Mixture((Mechanism(2.0, 1.0, 1),), 20, 10, 4, "fixed", 1)
    weights = [stats.hypergeom(20, 10, 4).pmf(n) for n in range(5)]
    for at in (0.1, 1.0, 3.0):
        exact = sum(w * float(gaussian_delta(at, math.sqrt(n) / 2.0)) for n, w in enumerate(weights))
        assert losses((mixture,), 1e-4).get_delta_for_epsilon(at) == pytest.approx(exact, rel=2e-3)
    closed = best((mixture,), 1e-3)[0]
    assert sum(w * float(gaussian_delta(closed, math.sqrt(n) / 2.0)) for n, w in enumerate(weights)) == pytest.approx(
        1e-3, rel=1e-4
    )


def test_one_copy_and_one_release_a_round_is_a_visible_use() -> None:
    mixture, visible = Mixture((Mechanism(3.0, 1.0, 1),), 50, 1, 5, "fixed", 40), Mechanism(3.0, 0.1, 40, "visible")
    assert pld((mixture,), DELTA) == pytest.approx(pld((visible,), DELTA), rel=1e-6)
    assert rdp((mixture,), DELTA) == pytest.approx(rdp((visible,), DELTA), rel=1e-9)
    assert losses((mixture,), 1e-4).get_epsilon_for_delta(DELTA) == pytest.approx(pld((visible,), DELTA), rel=2e-3)
    found = [reconstruction_robustness([0.01, 0.1], (one,)) for one in (mixture, visible)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("draw", ["fixed", "poisson"])
def test_the_number_of_participations_has_the_mean_of_the_draw(draw: str) -> None:
    weights = participations(100, 30, 20, draw)  # type: ignore[arg-type]
    assert weights.size == (21 if draw == "fixed" else 31)
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ np.arange(weights.size) == pytest.approx(6.0)
    whole = sum_of(weights, 7)
    assert whole @ np.arange(whole.size) == pytest.approx(42.0)


def test_every_accountant_of_a_mixture_is_an_upper_bound() -> None:
    mixture = Mixture((Mechanism(6.0, 0.01, 60), Mechanism(5.0, 0.01, 40)), 1000, 9, 100, "fixed", 100)
    exact, renyi = pld((mixture,), DELTA), rdp((mixture,), DELTA)
    assert exact < renyi < 1.2 * exact
    louder = pld((mixture.with_noise(7.0),), DELTA)
    every = (Mechanism(6.0, 0.01, 54_000), Mechanism(5.0, 0.01, 36_000))
    assert louder < exact < pld(every, DELTA)
    with pytest.raises(InputError, match="mixture"):
        moments_2017((mixture,), DELTA)


def test_a_mixture_reveals_as_much_as_its_most_revealing_mechanism() -> None:
    silent, loud = Mechanism(math.inf, 0.5, 1), Mechanism(2.0, 0.1, 1)
    assert not Mixture((silent, loud), 10, 2, 5, "fixed", 3).idle
    assert Mixture((silent, silent), 10, 2, 5, "fixed", 3).idle
    assert Mixture((silent, loud), 10, 2, 5, "fixed", 0).idle
    both = Mixture((Mechanism(3.0, 0.3, 1), loud), 10, 2, 5, "fixed", 3)
    assert (both.sampling_rate, both.noise_multiplier) == (0.3, 2.0)


def test_more_copies_and_larger_cohorts_are_never_better() -> None:
    def at(**changes: Any) -> float:
        found = fed_cdp(schedule_of("cancer", **{"copies": 1.0, "most_copies": 10, **changes}))
        assert found.valid is not None and found.without_draw is not None
        assert found.valid <= found.without_draw + 1e-9
        return found.valid

    assert at(most_copies=1) < at() < at(most_copies=20)
    assert at() < at(clients_per_round=200)
    # A Poisson cohort varies more than one of fixed size.
    assert at() <= at(client_sampling="poisson")


def test_a_visible_poisson_cohort_may_contain_every_copy() -> None:
    found = fed_cdp(schedule_of("cancer", client_sampling="poisson", clients_per_round=5, most_copies=20, copies=20.0))
    assert found.without_draw == pytest.approx(pld((Mechanism(6.0, 0.01, 6000),), DELTA), rel=1e-6)
    capped = fed_cdp(schedule_of("cancer", clients_per_round=5, most_copies=20, copies=20.0))
    assert capped.without_draw == pytest.approx(pld((Mechanism(6.0, 0.01, 1500),), DELTA), rel=1e-6)


def test_a_reconstruction_bound_uses_the_same_mixture() -> None:
    """If the number of participations is certain it equals the plain Gaussian's; for a random number it is between the extremes."""
    sure = Mixture((Mechanism(4.0, 1.0, 1),), 10, 10, 3, "fixed", 5)
    assert reconstruction_robustness(0.1, (sure,)) == pytest.approx(
        float(gaussian_robustness(0.1, math.sqrt(15) / 4)), rel=1e-4
    )
    random = Mixture((Mechanism(4.0, 0.3, 2),), 20, 10, 4, "fixed", 5)
    most = (Mechanism(4.0, 0.3, 2 * 4 * 5),)
    assert 0.1 < reconstruction_robustness(0.1, (random,)) < reconstruction_robustness(0.1, most)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "visible"])
def test_an_audit_that_draws_participations_stays_below_the_valid_epsilon(sampling: Any) -> None:
    mixture = Mixture((Mechanism(1.0, 0.3, 2, sampling),), 20, 10, 4, "fixed", 5)
    scores = drawn(mixture, 100_000, generator(0, "test"))
    lower, family = lower_bounds(scores, 1e-3, mixture)
    valid = best((mixture,), 1e-3)[0]
    assert family is not None
    assert 0.3 * valid < lower < valid
    assert 0.45 * valid < family < valid


def test_visible_uses_are_counted_over_the_draw() -> None:
    mixture = Mixture((Mechanism(5.0, 0.1, 20, "visible"),), 20, 10, 4, "fixed", 3)
    found = uses_of(mixture)
    assert found is not None
    sigma, uses = found
    assert sigma == 5.0
    assert uses.sum() == pytest.approx(1.0)
    assert uses @ np.arange(uses.size) == pytest.approx(3 * 2 * 2.0)  # Rounds, mean participations, mean uses of each.
    assert uses_of(Mixture((Mechanism(5.0, 0.1, 20),), 20, 10, 4, "fixed", 3)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 40, "rounds": 40}, "which 1 of 40 clients holds, takes part once on average"),
        ({"clients": 40, "rounds": 80}, "which 1 of 40 clients holds, takes part 2 times on average"),
        ({"clients": 1, "rounds": 1}, "which 1 of 1 clients holds, takes part once: all clients take part"),
        (
            {"clients": 40, "rounds": 40, "copies": 2, "most_copies": 2},
            "which 2 of 40 clients hold, takes part 2 times",
        ),
    ],
)
def test_participations_are_described(changes: dict[str, Any], words: str) -> None:
    plain = {"clients_per_round": 1, "copies": 1.0, "most_copies": 1}
    assert words in fed_cdp(schedule_of("cancer", **{**plain, **changes})).reason


def part_of(sigma: float, rounds: int) -> Part:
    """Return rounds in which a unit takes part at most once each, with probability .5."""
    one = (Mechanism(sigma, 1.0, 1),)
    return Part(rounds, (Mechanism(sigma, 0.5, rounds),), (Mechanism(sigma, 1.0, rounds),), one, rounds)


def test_realised_counts_fall_in_the_rounds_with_the_least_noise() -> None:
    """Only two of three participations can be in the two rounds with noise 1."""
    released = Released((part_of(3.0, 4), part_of(1.0, 2)), "", "client")
    assert released.realised(3) == (Mechanism(1.0, 1.0, 2), Mechanism(3.0, 1.0, 1))
    assert released.realised(1) == (Mechanism(1.0, 1.0, 1), Mechanism(3.0, 1.0, 0))
    assert released.mechanisms == (Mechanism(3.0, 0.5, 4), Mechanism(1.0, 0.5, 2))
    assert released.without_draw == (Mechanism(3.0, 1.0, 4), Mechanism(1.0, 1.0, 2))
    assert span(released.parts) == "1 (least, in round 5) to 3"
    assert span(released.parts[:1]) == "3"


def test_noises_of_a_part_add_up_in_squares_and_the_strongest_part_counts() -> None:
    def noise(std: float, bound: float, part: int) -> Noise:
        return Noise("batch", std, False, bound, part, False, None)

    noises = (noise(6.0, 2.0, 0), noise(8.0, 2.0, 0), noise(4.0, 1.0, 1))
    assert multiplier(noises, lambda each: each.std) == 5.0
    assert multiplier(noises[1:], lambda each: each.std) == 4.0
    assert multiplier(noises[:1] + noises[2:], lambda each: each.std) == 4.0


def test_releases_of_a_stretch_depend_on_the_clients_that_hold_the_unit() -> None:
    """An example has three copies; a client has one."""
    schedule = schedule_of("cancer", clients=20, clients_per_round=4, copies=3.0, most_copies=3)
    some, every = (Stretch((Phase({}, 5, 100, True, cohort),), 0, 5) for cohort in (4, 20))
    once, sampled, both = (
        Mechanism(2.0, 1.0, 1),
        Mechanism(2.0, 0.1, 1),
        (Mechanism(2.0, 1.0, 1), Mechanism(3.0, 1.0, 1)),
    )
    assert drawn_of((once,), "client", every, schedule) == (Mechanism(2.0, 1.0, 5),)
    assert drawn_of((once,), "example", every, schedule) == (Mechanism(2.0, 1.0, 15),)
    assert drawn_of((once,), "client", some, schedule) == (Mechanism(2.0, 0.2, 5, "visible"),)
    assert drawn_of((once,), "example", some, schedule) == (Mixture((once,), 20, 3, 4, "fixed", 5),)
    assert drawn_of((sampled,), "client", some, schedule) == (Mixture((sampled,), 20, 1, 4, "fixed", 5),)
    assert drawn_of(both, "client", some, schedule) == (Mixture(both, 20, 1, 4, "fixed", 5),)
