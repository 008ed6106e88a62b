"""Groups of clients that take turns, Poisson cohorts inside them, and banded noise: cohorts, ledger, and the exact game."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from torch import Tensor

from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.rng import generators, normal
from leakbench.core.types import Clock, Fact, Signal
from leakbench.defense import Defense
from leakbench.defense.correlated import BandedNoise
from leakbench.federated.sampling import draw_clients
from leakbench.privacy.accountants import best, pld, rdp
from leakbench.privacy.curve import epsilon_curve
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.factorization import amplified, squared_error, unamplified
from leakbench.privacy.factorization_search import banded, independent
from leakbench.privacy.ledger import Phase, Schedule
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.participation import SINGLE, Participation
from tests.privacy.test_privacy_epsilon import CLIP, FED_CDP, FED_SDP, MNIST, NOTHING, throughout, valid


def noise(bands: int, std: float = 24.0) -> Fact:
    return Fact("noise", std=2 * std, participation=std, separation=bands)


def sampled(bands: int = 4, **changes: Any) -> Epsilon:
    """Return the epsilon of 100 rounds, 100 of 1,000 clients, with noise of 6 behind groups that take turns."""
    return valid({"server": (CLIP, noise(bands))}, "client", **{"groups": 4, **changes})


# Cohorts


def test_a_round_samples_only_from_its_group() -> None:
    """12 of 60 clients in four groups of 15: q = .8 in every fourth round; the groups stay the same."""
    clients, per_round, groups, rounds = 60, 12, 4, 400
    drawn = [set(draw_clients(clients, per_round, "poisson", 3, t, groups).tolist()) for t in range(rounds)]
    members = [set[int]().union(*drawn[g::groups]) for g in range(groups)]
    assert [len(m) for m in members] == [15] * groups and len(set[int]().union(*members)) == clients
    often = torch.tensor([sum(c in each for each in drawn) for c in range(clients)]) / (rounds / groups)
    assert float(often.mean()) == pytest.approx(0.8, abs=0.02) and float((often - 0.8).abs().max()) < 0.2
    # Draws of a client in two rounds, and of two clients in one, are independent.
    assert float(torch.tensor([len(d) for d in drawn]).double().var()) == pytest.approx(15 * 0.8 * 0.2, rel=0.3)


def test_one_group_is_a_plain_poisson_cohort_and_groups_depend_on_the_seed() -> None:
    for t in range(5):
        assert torch.equal(draw_clients(50, 10, "poisson", 1, t, 1), draw_clients(50, 10, "poisson", 1, t))
    groups = [{tuple(draw_clients(20, 10, "poisson", seed, t, 2).tolist()) for t in (0, 2)} for seed in range(3)]
    assert all(len(g) == 1 for g in groups) and len(set.union(*groups)) == 3  # q = 1: the whole group.


def test_there_are_at_most_as_many_groups_as_whole_cohorts() -> None:
    from leakbench.data.recipe import Federation  # noqa: PLC0415

    defense = Defense(title="t", cite="c", unit="client", cohorts="poisson", cohort_groups=4)
    for cohort, groups in ((10, 4), (25, 4), (26, 3), (50, 2), (100, 1)):
        clock = defense.clock(Federation(5, 1, 1, clients=100, clients_per_round=cohort), 0)
        assert (clock.groups, clock.separation) == (groups, groups)


@pytest.mark.parametrize("changes", [{"cohorts": "fixed"}, {"cohorts": "in_turn"}, {"cohort_growth": 2.0}])
def test_groups_need_poisson_cohorts_of_one_size(changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"cohorts": "poisson", "cohort_groups": 2, **changes}
    with pytest.raises((InputError, ValueError), match="cohort_groups: groups take turns with Poisson cohorts"):
        Defense(title="t", cite="c", unit="client", **settings)
    with pytest.raises(InputError, match="groups: got 2 groups with fixed cohorts"):
        dataclasses.replace(MNIST, client_sampling="fixed", groups=2)
    with pytest.raises(InputError, match="groups: got 11 groups with poisson cohorts of 100 of 1000"):
        dataclasses.replace(MNIST, groups=11)


# The ledger


@pytest.mark.parametrize("groups", [1, 3, 4, 10])
@pytest.mark.parametrize("rounds", [1, 12, 100])
def test_the_epsilon_is_that_of_sampled_releases_one_for_each_turn(groups: int, rounds: int) -> None:
    """dp_accounting's own composition of ceil(T / b) Poisson-sampled Gaussians, at b K_t / N."""
    found = sampled(groups, groups=groups, rounds=rounds)
    rate, steps = groups / 10, math.ceil(rounds / groups)
    gaussian = dp_accounting.GaussianDpEvent(6.0)
    event = dp_accounting.PoissonSampledDpEvent(rate, gaussian) if rate < 1 else gaussian
    expected = PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, steps)).get_epsilon(1e-5)
    assert found.valid == pytest.approx(expected, rel=1e-3)
    assert (found.q, found.steps, found.sigma_effective) == (pytest.approx(rate), steps, pytest.approx(6.0))
    (mechanism,) = [amplified(banded(rounds, min(groups, rounds)), 6.0, rate=0.1, groups=groups)]
    assert found.valid == pytest.approx(best((mechanism,), 1e-5)[0], rel=1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "in_turn"])
def test_one_band_is_dp_sgd(sampling: str) -> None:
    alone, plain = (
        sampled(1, groups=1, client_sampling=sampling),
        valid(FED_SDP, "client", client_sampling=sampling),
    )
    assert dataclasses.replace(alone, by_tap={}) == dataclasses.replace(plain, by_tap={})
    assert alone.by_tap["type-0"] == plain.by_tap["type-0"]


def test_an_observer_that_sees_the_cohorts_gets_no_amplification() -> None:
    """Then the client is in each of its 25 turns with q = .4, which shows; with the draw of every turn it is in all 25."""
    found = sampled()
    assert found.valid == pytest.approx(pld((Mechanism(6.0, 0.4, 25),), 1e-5), rel=1e-9)
    assert found.without_draw == pytest.approx(pld((Mechanism(6.0, 1.0, 25),), 1e-5), rel=1e-9)
    for changes in ({}, {"secure_aggregation": True}):
        arriving = sampled(**changes).by_tap["type-0"]
        assert arriving.valid == pytest.approx(pld((Mechanism(6.0, 0.4, 25, "visible"),), 1e-5), rel=1e-9)
        assert found.valid < arriving.valid < found.without_draw  # type: ignore[operator]
        assert "the observer sees it" in arriving.reason
    for tap in ("type-1", "type-2"):
        assert found.by_tap[tap].valid is None and "trusts the server" in found.by_tap[tap].reason
    assert "from 4 groups in turn, each in at most 25 rounds" in found.reason and "zero-out" in found.reason


def test_the_deviation_of_a_round_does_not_count() -> None:
    """Rounds with other deviations of the same noise are one training: turns are counted over all of them."""
    facts = [dataclasses.replace(noise(4), std=std) for std in (60.0, 50.0, 40.0, 30.0)]
    phases = [Phase({"server": (CLIP, f)}, 25, 100, True, 100) for f in facts]
    found = epsilon(phases, "client", NOTHING, dataclasses.replace(MNIST, groups=4), 1e-5)
    assert (found.valid, found.steps) == (sampled().valid, 25)


def test_the_epsilon_falls_with_noise_and_grows_with_rounds() -> None:
    assert all(a.valid < b.valid for a, b in itertools.pairwise([sampled(rounds=r) for r in (8, 12, 40, 100)]))  # type: ignore[operator]
    assert sampled(rounds=97).valid == sampled(rounds=100).valid < sampled(rounds=101).valid  # type: ignore[operator]
    stronger = valid({"server": (CLIP, noise(4, 30.0))}, "client", groups=4)
    assert stronger.valid < sampled().valid < sampled(clients_per_round=120).valid  # type: ignore[operator]
    # Fewer bands than groups change nothing: what counts is the turns.
    assert sampled(2).valid == sampled(4).valid


@pytest.mark.parametrize(
    ("server", "changes", "why"),
    [
        ((CLIP, noise(5)), {}, "once in 5 consecutive rounds, and these may take part more often"),
        ((CLIP, noise(2)), {"groups": 1}, "these may take part more often"),
        ((CLIP, noise(2)), {"groups": 1, "client_sampling": "fixed"}, "these may take part more often"),
        ((noise(4),), {}, "noise without a clip"),
    ],
)
def test_reasons_for_no_epsilon(server: tuple[Fact, ...], changes: dict[str, Any], why: str) -> None:
    found = valid({"server": server}, "client", **{"groups": 4, **changes})
    assert found.valid is None and why in found.reason, found.reason
    assert found.by_tap["type-0"].valid is None


def test_noise_that_changes_or_stops_has_no_epsilon() -> None:
    for second, why in ((noise(4, 20.0), "changes"), (Fact("noise", std=24.0), "round 51 has no noise")):
        phases = [Phase({"server": (CLIP, f)}, 50, 100, True, 100) for f in (noise(4), second)]
        found = epsilon(phases, "client", NOTHING, dataclasses.replace(MNIST, groups=4), 1e-5)
        assert found.valid is None and why in found.reason


@pytest.mark.parametrize("field", ["training", "participation"])
@pytest.mark.parametrize("station", ["client", "server"])
def test_correlated_noise_of_each_client_is_not_accounted(field: str, station: str) -> None:
    """A part of a user's own that states it gets no epsilon at any point, instead of that of the server's noise."""
    fact = Fact("noise", std=24.0, each=True, separation=4, **{field: 24.0})  # type: ignore[arg-type]
    found = valid({station: (CLIP, fact)}, "client", groups=4)
    assert found.valid is None and "correlated over its own rounds is not accounted" in found.reason
    assert all(tap.valid is None for tap in found.by_tap.values())


@pytest.mark.parametrize("field", ["training", "participation"])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("station", ["example", "batch"])
def test_noise_on_examples_that_is_correlated_is_not_accounted(field: str, each: bool, station: str) -> None:
    """Its deviation in one round is not that of independent noise, of which earlier rounds take nothing back."""
    fact = Fact("noise", std=48.0, each=each, separation=4, **{field: 24.0})  # type: ignore[arg-type]
    facts = {"example": (CLIP, fact)} if station == "example" else {"example": (CLIP,), "batch": (fact,)}
    found = valid(facts, "example", groups=4)
    assert found.valid is None and "correlated over the rounds is not accounted" in found.reason
    assert all(tap.valid is None for tap in found.by_tap.values())


def test_clients_that_take_turns_are_not_sampled() -> None:
    """Bands up to the distance of two turns: ten releases."""
    found = sampled(10, groups=1, client_sampling="in_turn")
    assert found.valid == pytest.approx(pld((Mechanism(6.0, 1.0, 10),), 1e-5), rel=1e-9)


def test_independent_noise_is_amplified_by_groups_too() -> None:
    assert valid(FED_SDP, "client", groups=4).valid == sampled().valid
    curve = epsilon_curve(throughout(FED_SDP, MNIST), "client", dataclasses.replace(MNIST, groups=4))
    ends = [epsilon_curve(throughout(FED_SDP, dataclasses.replace(MNIST, rounds=r)), "client",
                          dataclasses.replace(MNIST, groups=4, rounds=r))[-1] for r in (1, 4, 5, 50)]  # fmt: skip
    assert curve[[0, 3, 4, 49]] == pytest.approx(ends, rel=1e-9)


@pytest.mark.parametrize("holders", [1, 3])
def test_an_example_takes_part_in_the_turns_of_its_holders(holders: int) -> None:
    """In any groups: each holder is drawn with q = .4 in 25 rounds, independently, and the observer sees it."""
    found = valid(FED_CDP, "example", groups=4, copies=float(holders), most_copies=holders)
    plain = valid(FED_CDP, "example", copies=float(holders), most_copies=holders)
    assert found.without_draw == pytest.approx(pld((Mechanism(6.0, 0.01, holders * 2500),), 1e-5), rel=1e-6)
    assert found.steps == plain.steps and found.valid < plain.valid  # type: ignore[operator]


# The game: what the part adds, what the cohorts draw, and the likelihoods of what is released


def released(sigma: float, rounds: int, bands: int, trials: int, seed: int) -> Tensor:
    """Return the noise (T, trials) that a training adds to the sum; every coordinate is a training by itself."""
    memory: dict[str, Tensor] = {}
    seen = []
    for t in range(rounds):
        signal = Signal({"w": torch.zeros(1, 1, trials, dtype=torch.float64)}, sensitivity=torch.ones(1), memory=memory)
        clock = Clock(t, 0, rounds, 1, 1, bands, groups=bands)
        after = BandedNoise(sigma)(signal, clock, generators(seed, "game", [(t,)]))
        memory = {n: m[0, 0][None, None] for n, m in after.memory.items()}
        seen.append(after.grads["w"][0, 0])
    return torch.stack(seen)


def precision_of(sigma: float, rounds: int, bands: int) -> Tensor:
    """Return the inverse of the covariance (T, T) of the noise: the part's noise is M z, with M by least squares from both."""
    like = torch.zeros(1, 1, 200, dtype=torch.float64)
    drawn = torch.stack([normal(like, generators(9, "game", [(t,)]), 1)[0, 0] for t in range(rounds)])
    added = released(sigma, rounds, bands, 200, 9)
    m = torch.linalg.lstsq(drawn.T, added.T).solution.T
    torch.testing.assert_close(m @ drawn, added)
    return torch.linalg.inv(m @ m.T)


def contributions(y: Tensor, adaptive: bool) -> Tensor:
    """Return a client's updates (T, trials), of length 1: always 1, or with the sign of the sum of what was released before."""
    if not adaptive:
        return torch.ones_like(y)
    before = torch.cat([torch.zeros_like(y[:1]), y.cumsum(0)[:-1]])
    return torch.where(before >= 0, 1.0, -1.0).to(y)


def losses(y: Tensor, precision: Tensor, turns: list[int], rate: float, adaptive: bool) -> Tensor:
    """Return the log-likelihood ratios (trials,) of releases y (T, trials) with and without a client.

    Every pattern of participations is one Gaussian, with its probability. No property of a factorization is used.

    Args:
        precision: The inverse of the covariance (T, T) of the noise.
        turns: The rounds in which the client's group has its turn.
    """
    x, terms = contributions(y, adaptive), []
    for pattern in itertools.product((0, 1), repeat=len(turns)):
        chance = math.prod(rate if there else 1 - rate for there in pattern)
        if chance > 0:
            shift = torch.zeros_like(y)
            shift[turns] = torch.tensor(pattern, dtype=y.dtype)[:, None] * x[turns]
            terms.append((shift * (precision @ (y - shift / 2))).sum(0) + math.log(chance))
    return torch.logsumexp(torch.stack(terms), 0)


TRIALS = 20_000


def played(
    sigma: float, rounds: int, groups: int, rate: float, adaptive: bool = False, bands: int = 0, sees: bool = False
) -> list[Tensor]:
    """Return losses of the game, (trials,) for each group and each direction.

    Each client of a group is a trial of its own: its draws are those of `draw_clients`, its noise is a coordinate.

    Args:
        bands: Number of bands of the noise; 0 for one for each group.
        sees: Whether the observer sees in which rounds the client takes part.
    """
    bands, clients = bands or groups, groups * TRIALS
    drawn = torch.zeros(rounds, clients, dtype=torch.float64)
    for t in range(rounds):
        drawn[t, draw_clients(clients, round(rate * TRIALS), "poisson", 5, t, groups)] = 1.0
    precision = precision_of(sigma, rounds, bands)
    found = []
    for group in range(min(groups, rounds)):
        turns = list(range(group, rounds, groups))
        own = drawn[:, drawn[turns].any(0)]
        # Clients that are never drawn could be of any group.
        own = torch.cat([own, own.new_zeros(rounds, TRIALS - own.shape[1])], 1)
        quiet, loud = (released(sigma, rounds, bands, TRIALS, 10 + 2 * group + i) for i in range(2))
        for t in range(rounds):  # A later update may depend on what was released before.
            loud[t] += own[t] * contributions(loud[: t + 1], adaptive)[t]
        for y, sign in ((loud, 1), (quiet, -1)):
            shift = own * contributions(y, adaptive)
            seen = (shift * (precision @ (y - shift / 2))).sum(0)
            found.append(sign * (seen if sees else losses(y, precision, turns, rate, adaptive)))
    return found


def spent(several: list[Tensor], at: float) -> tuple[float, float]:
    """Return the largest delta at an epsilon over all groups and directions, and its standard error.

    It is the mean of (1 - exp(epsilon - loss))+, which is the hockey-stick divergence, since the losses are exact.
    """
    each = [torch.clamp(1 - torch.exp(at - loss), min=0) for loss in several]
    return max((float(e.mean()), float(e.std()) / math.sqrt(len(e))) for e in each)


GAMES = [
    # Rounds, groups, rate of a group, noise.
    (4, 1, 0.5, 1.0),
    (6, 2, 0.5, 1.0),
    (7, 3, 0.3, 0.8),
    (8, 4, 0.8, 1.5),
    (6, 2, 1.0, 2.0),
    (3, 4, 0.5, 0.7),
]


@pytest.mark.parametrize(("adaptive", "sees"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("rounds", "groups", "rate", "sigma"), GAMES)
def test_the_game_spends_the_epsilon_and_no_more(
    rounds: int, groups: int, rate: float, sigma: float, adaptive: bool, sees: bool
) -> None:
    facts = {"server": (Fact("clip", norm=1.0), noise(min(groups, rounds), sigma))}
    cohorts = {"clients": groups * TRIALS, "clients_per_round": round(rate * TRIALS), "groups": groups}
    schedule = dataclasses.replace(MNIST, rounds=rounds, **cohorts)
    several = played(sigma, rounds, groups, rate, adaptive, sees=sees)
    for delta in (0.2, 0.02):
        claimed = epsilon(throughout(facts, schedule), "client", NOTHING, schedule, delta)
        at = claimed.by_tap["type-0"].valid if sees else claimed.valid
        assert at is not None
        found, error = spent(several, at)
        assert found <= delta + 4 * error, f"{found} of {delta} at {at}"
        # The last columns of C end early, so that the last rounds count less.
        assert found >= (0.9 if rounds % groups == 0 else 0.7) * delta, f"{found} of {delta} at {at}"


def test_the_game_finds_more_bands_than_groups() -> None:
    """Six bands behind two groups, as if a client's rounds shared no noise: the ledger gives none, and the game shows why."""
    rounds, groups, rate, sigma, delta = 6, 2, 0.9, 1.5, 0.05
    claimed = best((Mechanism(sigma, rate, 3),), delta)[0]
    found, error = spent(played(sigma, rounds, groups, rate, bands=6), claimed)
    assert found > delta + 10 * error


# Noise or bounds that change over the rounds


def changing(sigmas: list[float], schedule: Schedule, each: int = 1) -> list[Phase]:
    """Return phases of `each` rounds with these multipliers of a clip at 4."""
    facts = [(CLIP, Fact("noise", std=4.0 * sigma)) for sigma in sigmas]
    return [Phase({"server": f}, each, 100, True, schedule.clients_per_round) for f in facts]


def composed(sigmas: list[float], rate: float) -> float:
    found = PLDAccountant()
    for sigma in sigmas:
        found.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)))
    return float(found.get_epsilon(1e-5))


@pytest.mark.parametrize("rounds", [40, 41])
def test_noise_that_changes_every_round_counts_once_for_each_turn(rounds: int) -> None:
    """dp_accounting's composition of each group's own rounds; the ledger covers the worst group, and is close to it."""
    schedule = dataclasses.replace(MNIST, groups=4, rounds=rounds)
    sigmas = [6.0 + t / 20 for t in range(rounds)]
    found = epsilon(changing(sigmas, schedule), "client", NOTHING, schedule, 1e-5)
    own = [composed(sigmas[g::4], 0.4) for g in range(4)]
    assert found.steps == math.ceil(rounds / 4) and "each in at most" in found.reason
    assert max(own) * (1 - 1e-3) <= found.valid <= 1.03 * max(own)  # type: ignore[operator]
    seen = found.by_tap["type-0"]
    assert seen.steps == found.steps and seen.valid > found.valid  # type: ignore[operator]
    curve = epsilon_curve(changing(sigmas, schedule), "client", schedule)
    assert len(curve) == rounds and (np.diff(curve) >= 0).all()
    assert curve[3] == pytest.approx(float(rdp((Mechanism(6.0, 0.4, 1),), 1e-5)), rel=1e-2)


def test_every_group_is_covered_whatever_its_noise_is() -> None:
    """The third group alone has little noise; and the rounds of no stretch begin with the first group."""
    schedule = dataclasses.replace(MNIST, groups=4, rounds=12)
    sigmas = [3.0 if t % 4 == 2 else 9.0 for t in range(12)]
    found = epsilon(changing(sigmas, schedule), "client", NOTHING, schedule, 1e-5)
    assert found.valid == pytest.approx(composed([3.0] * 3, 0.4), rel=1e-3) and found.steps == 3
    # Stretches of five rounds: turns in rounds 0 4 8 | 1 5 9 | ..., with the noise of 5, 5 and 2 rounds.
    uneven = [3.0] * 5 + [6.0] * 5 + [9.0] * 2
    own = [composed(uneven[g::4], 0.4) for g in range(4)]
    phases = changing([3.0], schedule, 5) + changing([6.0], schedule, 5) + changing([9.0], schedule, 2)
    found = epsilon(phases, "client", NOTHING, schedule, 1e-5)
    assert found.valid == pytest.approx(max(own), rel=1e-3) and found.steps == 3


def test_examples_behind_noise_that_changes_count_once_for_each_turn_too() -> None:
    schedule = dataclasses.replace(MNIST, groups=4, rounds=12, local_iterations=1)
    sigmas = [6.0 + t / 20 for t in range(12)]
    for each, station in ((False, "batch"), (True, "example")):
        noises = [Fact("noise", std=4.0 * sigma, each=each) for sigma in sigmas]
        facts = [
            {"example": (CLIP, n)} if station == "example" else {"example": (CLIP,), "batch": (n,)} for n in noises
        ]
        phases = [Phase(f, 1, 1, True, 100) for f in facts]
        least, most = (
            epsilon([dataclasses.replace(phases[i], rounds=12)], "example", NOTHING, schedule, 1e-5) for i in (0, 11)
        )
        found = epsilon(phases, "example", NOTHING, schedule, 1e-5)
        for tap in ("type-1", "type-2") if each else ("type-1",):
            values = [e.by_tap[tap].valid for e in (most, found, least)]
            assert values[0] < values[1] < values[2], values  # type: ignore[operator]
        assert found.by_tap["type-1"].participations == least.by_tap["type-1"].participations


def test_fewer_groups_than_asked_for_are_named_and_a_whole_group_hides_nothing() -> None:
    """20 clients in cohorts of 10 make two groups of the recipe's four, and each client is in every round of its group."""
    few, four = (
        prepare(Request(defense="dp_ftrl_banded_sampled", dataset="digits", clients_per_round=k), None) for k in (10, 4)
    )
    reasons = [cell_epsilon(c.defense, c.data, c.settings, hand_out(c), None).reason for c in (few, four)]
    assert "cohort_groups is 2 here instead of 4: there are 20 clients for cohorts of 10" in reasons[0]
    assert "with q=1; zero-out" in reasons[0] and "hidden" not in reasons[0]
    assert "cohort_groups" not in reasons[1] and "with q=0.8, hidden from the observer" in reasons[1]


@pytest.mark.parametrize(
    ("rate", "printed"), [(0.01, ("5.2", "3.5", "4.6")), (0.1, ("16.0", "18.3", "18.6"))], ids=["1%", "10%"]
)
def test_the_page_prints_the_noise_of_sums_at_epsilon_2(rate: float, printed: tuple[str, ...]) -> None:
    """Of 100 rounds of DP-SGD, of eight groups and without a random draw: the root of the mean square, in clips."""
    turns = round(1 / rate)
    in_turn = Participation(separation=turns)
    found = []
    for matrix, participation, mechanism in (
        (independent(100), SINGLE, lambda sigma: Mechanism(sigma, rate, 100)),
        (banded(100, 8), SINGLE, lambda sigma: amplified(banded(100, 8), sigma, rate)),
        (banded(100, turns, in_turn), in_turn, unamplified),
    ):
        sigma = brentq(lambda at, of=mechanism: best((of(at),), 1e-5)[0] - 2.0, 0.3, 60.0, xtol=1e-3)
        found.append(f"{sigma * squared_error(matrix, participation).mean ** 0.5:.1f}")
    assert tuple(found) == printed
    page = " ".join((Path(__file__).parents[2] / "docs" / "auditing.md").read_text(encoding="utf-8").split())
    assert all(number in page.split("Groups need less noise")[1][:400] for number in printed)
