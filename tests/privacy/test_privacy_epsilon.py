"""The valid epsilon of a defense as executed, for every observer, and every reason for its absence."""

import dataclasses
import json
import math
from typing import Any

import pytest

from leakbench.core.errors import InputError
from leakbench.core.types import Fact
from leakbench.privacy.accountants import pld
from leakbench.privacy.calibration import calibrated
from leakbench.privacy.claim import MomentsClaim, NoClaim
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Phase, Schedule
from leakbench.privacy.mechanism import Mechanism

MNIST = Schedule(
    clients=1000,
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
NOTHING = NoClaim(reason="not asked")

CLIP = Fact("clip", norm=4.0)
LAYERS = Fact("clip", norm=4.0 * math.sqrt(3))
UNBOUNDED = Fact("clip", reason="scales small updates up")
ON_SUM = Fact("noise", std=24.0)
ON_EACH = Fact("noise", std=24.0, each=True)
RANDOM = Fact("uncalibrated_noise", std=0.1, each=True, reason="noise without a clip")
L2_MAX = Fact("scale", reason="data-dependent sensitivity: the largest layer norm of the batch")
MEDIAN = Fact("scale", reason="the median norm of the round's updates")
PRUNING = Fact("other")
PRIORITY = Fact("other", reason="a mask computed from private data")

FED_CDP = {"example": (CLIP,), "batch": (ON_SUM,)}
AT_EXAMPLE = {"example": (CLIP, ON_EACH)}
FED_SDP = {"server": (CLIP, ON_SUM)}
AT_CLIENT = {"client": (CLIP, ON_EACH)}


def throughout(facts: dict[str, tuple[Fact, ...]], schedule: Schedule) -> tuple[Phase, ...]:
    """Return one phase for the whole training."""
    if schedule.rounds == 0:
        return ()
    return (Phase(facts, schedule.rounds, schedule.local_iterations, True, schedule.clients_per_round),)


def valid(facts: dict[str, tuple[Fact, ...]], unit: Any, **changes: Any) -> Epsilon:
    schedule = dataclasses.replace(MNIST, **changes)
    return epsilon(throughout(facts, schedule), unit, NOTHING, schedule, 1e-5)


def test_fed_cdp_on_mnist() -> None:
    """Participation in all 100 rounds costs .601; the draw selects one client in 10 of them on average."""
    answer = valid(FED_CDP, "example")
    assert answer.without_draw == pytest.approx(0.601, abs=2e-3)
    assert answer.valid is not None
    assert answer.valid < 0.3
    assert (answer.accountant, answer.steps, answer.q, answer.sigma_effective) == ("pld", 1000, 0.01, 6.0)
    assert valid(FED_CDP, "example", clients=100).valid == pytest.approx(answer.without_draw, rel=1e-9)
    assert (answer.observer, answer.unit, answer.delta) == ("global", "example", 1e-5)
    assert "add-or-remove" in answer.reason
    for tap in ("type-1", "type-0"):
        assert answer.by_tap[tap].valid == answer.valid
    assert answer.by_tap["type-1"].participations == {"expected": pytest.approx(10.0), "largest": None}
    assert answer.by_tap["type-2"].valid is None
    assert answer.by_tap["type-2"].reason.startswith("none: noise is added after this leakage point")


def test_visible_uses_have_no_amplification() -> None:
    """100 uses cost 8.00; their number in 100 participations is binomial(10,000, .01), which costs 8.245."""
    tap = valid(AT_EXAMPLE, "example", largest={"uses": 100, "example": 9}).by_tap["type-2"]
    assert tap.without_draw == pytest.approx(8.245, abs=2e-3)
    assert (tap.realised, tap.realised_count) == (pytest.approx(8.004, abs=2e-3), 100)
    assert (tap.q, tap.steps, tap.sigma_effective) == (0.01, 1000, 6.0)
    assert "every use is visible, so that nothing amplifies" in tap.reason
    every = valid(AT_EXAMPLE, "example", clients=100).by_tap["type-2"]
    assert every.valid == pytest.approx(8.245, abs=2e-3)


def test_an_example_may_be_used_in_every_local_iteration() -> None:
    """250 uses in 100 rounds of ten iterations: all 250 count, and not one a round."""
    tap = valid(AT_EXAMPLE, "example", largest={"uses": 250, "example": 30}).by_tap["type-2"]
    assert tap.realised == pytest.approx(pld((Mechanism(6.0, 1.0, 250),), 1e-5), rel=1e-6)


def test_counts_of_a_run_change_only_the_realised_epsilon() -> None:
    before = valid(FED_CDP, "example")
    after = valid(FED_CDP, "example", largest={"example": 17})
    assert (after.valid, after.without_draw) == (before.valid, before.without_draw)
    assert (before.realised, before.realised_count) == (None, None)
    assert after.realised_count == 17
    assert after.realised == pytest.approx(pld((Mechanism(6.0, 0.01, 1700),), 1e-5), rel=1e-6)
    assert after.realised > after.valid  # 10 are expected.
    client = valid(AT_CLIENT, "client", largest={"client": 13}, client_sampling="fixed").by_tap["type-1"]
    assert client.realised == pytest.approx(pld((Mechanism(6.0, 1.0, 13),), 1e-5), rel=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_an_observer_that_sees_more_has_no_smaller_epsilon(sampling: str) -> None:
    """type-2 shows each example's noise alone, type-1 their sum: its epsilon is never smaller."""
    taps = valid(AT_EXAMPLE, "example", batch_sampling=sampling).by_tap
    at_two, at_one = taps["type-2"].valid, taps["type-1"].valid
    assert at_two is not None and at_one is not None
    assert at_two >= at_one


@pytest.mark.parametrize("clip", [CLIP, LAYERS])
def test_a_layerwise_clip_costs_the_root_of_the_tensors(clip: Fact) -> None:
    answer = valid({"example": (clip,), "batch": (ON_SUM,)}, "example")
    assert answer.sigma_effective == pytest.approx(24 / clip.norm)
    if clip is LAYERS:
        assert answer.without_draw == pytest.approx(1.1163, abs=2e-3)


def test_batches_of_fixed_size_and_from_a_split() -> None:
    fixed = valid(FED_CDP, "example", batch_sampling="fixed")
    assert fixed.without_draw == pytest.approx(0.7039, abs=2e-3)
    assert "zero-out" in fixed.reason
    split = valid(FED_CDP, "example", batch_sampling="split")
    assert (split.q, split.steps) == (0.1, 100)
    assert split.without_draw == pytest.approx(8.0, abs=0.05)
    assert split.valid == pytest.approx(2.416, abs=1e-3)  # The mean over binomial(100, .1) uses.
    assert valid(FED_CDP, "example", batch_sampling="split", local_iterations=250).steps == 30


def test_own_noise_of_each_example_adds_up_in_fixed_batches_only() -> None:
    fixed = valid(AT_EXAMPLE, "example", batch_sampling="fixed")
    assert fixed.sigma_effective == pytest.approx(6 * math.sqrt(5))
    poisson = valid(AT_EXAMPLE, "example")
    assert poisson.sigma_effective == 6.0
    assert poisson.without_draw == pytest.approx(8.245, abs=5e-3)
    assert "only the example's own noise counts" in poisson.reason
    assert valid({"example": (CLIP, ON_EACH, PRUNING)}, "example", batch_sampling="fixed").sigma_effective == 6.0


def test_pruned_noise_does_not_add_to_later_noise() -> None:
    """Pruning noisy gradients is post-processing, but gives no bound that a later noise could use."""
    pruned = {"client": (CLIP, ON_EACH, PRUNING), "server": (Fact("noise", std=96.0),)}
    alone = {"client": (CLIP, ON_EACH, PRUNING)}
    found, once = (valid(facts, "client") for facts in (pruned, alone))
    assert found.sigma_effective == once.sigma_effective == 6.0
    between = {"client": (CLIP, ON_EACH, PRUNING, Fact("clip", norm=4.0)), "server": (Fact("noise", std=96.0),)}
    assert valid(between, "client").sigma_effective == 24.0


def test_noises_of_both_stations_add_up() -> None:
    both = {"example": (CLIP, ON_EACH), "batch": (ON_SUM,)}
    assert valid(both, "example", batch_sampling="split").sigma_effective == pytest.approx(6 * math.sqrt(6))
    clipped_again = {"example": (CLIP, ON_EACH), "batch": (CLIP, ON_SUM)}
    assert valid(clipped_again, "example", batch_sampling="split").sigma_effective == pytest.approx(6 * math.sqrt(5))
    on_mean = {"batch": (CLIP, Fact("noise", std=24.0, each=True))}
    assert valid(on_mean, "example").sigma_effective == pytest.approx(3.0)


def test_a_split_has_as_many_passes_as_the_steps_need() -> None:
    """A split of 500 into batches of 300 has one batch a pass, and each participation starts a new split."""
    split = dataclasses.replace(MNIST, rounds=10, local_iterations=1, batch=300, batch_sampling="split")
    assert split.passes() == 1
    assert dataclasses.replace(split, local_iterations=3).passes() == 3


@pytest.mark.parametrize("station", ["example", "client"])
def test_noise_scaled_by_noisy_members_leaves_each_member_its_own_noise(station: str) -> None:
    """Clip, noise each, l2_max, noise each: the second scale is a function of single noisy members, not of their sum."""
    unit: Any = station
    second = Fact("noise", std=90.0, each=True)
    plain, scaled = ({station: (CLIP, ON_EACH, *rest)} for rest in ((), (L2_MAX, second)))
    changes: dict[str, Any] = {"batch_sampling": "fixed", "client_sampling": "fixed"}
    several = math.sqrt(5 if station == "example" else 100)
    assert valid(plain, unit, **changes).sigma_effective == pytest.approx(6 * several)
    assert valid(scaled, unit, **changes).sigma_effective == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("facts", "unit", "left"),
    [
        # The scale is set at one station and used by the noise of the next.
        ({"example": (CLIP, ON_EACH, L2_MAX), "batch": (ON_SUM,)}, "example", 6.0),
        ({"client": (CLIP, ON_EACH), "server": (L2_MAX, ON_SUM)}, "client", 6.0),
        # After the batch is averaged, a scale is a function of the noisy mean: post-processing.
        ({"example": (CLIP, ON_EACH), "batch": (L2_MAX, ON_EACH)}, "example", 6 * math.sqrt(5)),
        # One noise for the sum, and a scale that depends on each member: nothing protects a single member.
        ({"example": (CLIP, ON_SUM, L2_MAX, ON_SUM)}, "example", None),
        ({"server": (CLIP, ON_SUM, MEDIAN, ON_SUM)}, "client", None),
    ],
)
def test_a_data_dependent_scale_after_noise_keeps_the_earlier_noise(facts: Any, unit: Any, left: float | None) -> None:
    answer = valid(facts, unit, batch_sampling="fixed", client_sampling="fixed")
    assert answer.sigma_effective == (left if left is None else pytest.approx(left))
    assert (answer.valid is None) == (left is None)


def test_the_smallest_of_clips_in_a_row_bounds_until_noise_is_added() -> None:
    """Clips at 4 and 9 bound by 4, clips at 4 and 2 by 2; after a noise only the next clip counts."""
    for other, bound in ((9.0, 4.0), (2.0, 2.0)):
        in_a_row = {"example": (CLIP, Fact("clip", norm=other)), "batch": (ON_SUM,)}
        assert [n.bound for n in calibrated(in_a_row, "example", 5)[0]] == [bound]
    again = {"example": (CLIP, ON_EACH, Fact("clip", norm=9.0)), "batch": (ON_SUM,)}
    assert [(n.bound, n.part) for n in calibrated(again, "example", 5)[0]] == [(4.0, 0), (9.0, 1)]


def test_fed_sdp_at_the_server() -> None:
    poisson, fixed = valid(FED_SDP, "client"), valid(FED_SDP, "client", client_sampling="fixed")
    assert poisson.valid == pytest.approx(0.6157, abs=2e-3)
    assert (poisson.q, poisson.steps) == (0.1, 100)
    assert fixed.valid == pytest.approx(0.7226, abs=2e-3)
    assert "zero-out" in fixed.reason
    for tap in ("type-2", "type-1"):
        assert fixed.by_tap[tap].reason == "none: trusts the server"
    assert fixed.by_tap["type-0"].valid == pytest.approx(2.4157, abs=1e-3)
    assert fixed.by_tap["type-0"].without_draw == pytest.approx(8.0, abs=0.05)
    assert fixed.without_draw == pytest.approx(8.0, abs=0.05)
    assert "as the aggregate carries it" in fixed.by_tap["type-0"].reason
    assert fixed.by_tap["type-0"].participations == {"expected": pytest.approx(10.0), "largest": None}


def test_noise_of_each_update_at_the_server_shows_the_size_of_a_random_cohort() -> None:
    """It grows with the number of updates, as the clients' own noise does, so a Poisson draw amplifies nothing."""
    server = valid({"server": (CLIP, ON_EACH)}, "client", client_sampling="poisson")
    client = valid(AT_CLIENT, "client", client_sampling="poisson")
    assert (server.valid, server.sigma_effective) == (client.valid, 6.0)
    assert "sampling (q) does not amplify privacy" in server.reason


def test_fed_sdp_at_the_client() -> None:
    fixed = valid(AT_CLIENT, "client", client_sampling="fixed")
    assert fixed.sigma_effective == pytest.approx(60.0)
    assert fixed.valid == pytest.approx(pld((Mechanism(60.0, 0.1, 100, "fixed"),), 1e-5))
    assert "trusts the other clients" in fixed.reason
    assert "trusts neither the server nor other clients" in fixed.by_tap["type-1"].reason
    assert fixed.by_tap["type-2"].reason.startswith("none: noise is added after this leakage point")
    for tap in ("type-1", "type-0"):
        assert fixed.by_tap[tap].without_draw == pytest.approx(8.0, abs=0.05)
        assert fixed.by_tap[tap].valid == pytest.approx(2.4157, abs=1e-3)
    poisson = valid(AT_CLIENT, "client")
    assert poisson.sigma_effective == 6.0
    assert poisson.valid == pytest.approx(2.4157, abs=1e-3)
    shared = valid({"client": (CLIP, ON_SUM)}, "client", client_sampling="fixed")
    assert shared.sigma_effective == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("facts", "unit", "reason"),
    [
        ({}, "example", "none: no noise"),
        ({"example": (CLIP,)}, "example", "none: no noise"),
        ({"example": (CLIP, Fact("noise", std=0.0))}, "example", "none: no noise"),
        ({"client": (PRIORITY,)}, "client", "none: no noise; a mask computed from private data"),
        ({"example": (RANDOM,)}, "example", "none: noise without a clip"),
        ({"example": (UNBOUNDED, ON_EACH)}, "example", "none: scales small updates up"),
        ({"server": (CLIP, Fact("clip"), ON_SUM)}, "client", "none: noise without a clip"),
        (
            {"example": (CLIP, L2_MAX), "batch": (ON_SUM,)},
            "example",
            "none: data-dependent sensitivity: the largest layer norm of the batch",
        ),
        (
            {"server": (CLIP, MEDIAN, ON_SUM)},
            "client",
            "none: data-dependent sensitivity: the median norm of the round's updates",
        ),
        ({"example": (CLIP, PRIORITY, ON_EACH)}, "example", "none: a mask computed from private data"),
        ({"server": (CLIP, ON_SUM, CLIP)}, "client", "none: one noise for the sum, changed for each member"),
        (FED_CDP, "client", "none: the only noise is at the batch station, calibrated to an example's gradient"),
        (FED_SDP, "example", "none: the only noise is at the server station, calibrated to a client's whole update"),
        ({**FED_SDP, "example": (CLIP,)}, "example", "none: the only noise is at the server station"),
    ],
)
def test_reasons_for_no_epsilon(facts: dict[str, tuple[Fact, ...]], unit: str, reason: str) -> None:
    answer = valid(facts, unit)
    assert answer.valid is None
    assert answer.accountant is answer.steps is answer.q is answer.sigma_effective is None
    assert answer.reason.startswith(reason)
    assert all(tap.valid is None and tap.reason.startswith("none: ") for tap in answer.by_tap.values())


def test_a_clip_after_a_data_dependent_scale_calibrates_again() -> None:
    again = valid({"example": (L2_MAX, CLIP), "batch": (ON_SUM,)}, "example")
    assert again.without_draw == pytest.approx(0.601, abs=2e-3)
    assert valid({**FED_CDP, "client": (PRIORITY,)}, "example").without_draw == pytest.approx(0.601, abs=2e-3)


def test_training_without_a_round() -> None:
    claim = MomentsClaim(unit="example", noise_multiplier=6.0)
    answer = epsilon((), "example", claim, dataclasses.replace(MNIST, rounds=0))
    assert (answer.claimed, answer.valid, answer.reason) == (None, None, "no round was trained")
    assert {tap.reason for tap in answer.by_tap.values()} == {"no round was trained"}


def test_claimed_and_valid_epsilons_are_reported_together() -> None:
    answer = epsilon(throughout(FED_CDP, MNIST), "example", MomentsClaim(unit="example", noise_multiplier=6.0), MNIST)
    assert answer.claimed == pytest.approx(0.8227, abs=5e-4)
    assert answer.claimed_formula.startswith("moments accountant")
    assert valid(FED_CDP, "example").claimed_formula == "none: not asked"


@pytest.mark.parametrize("facts", [{}, FED_CDP, AT_EXAMPLE, {"example": (CLIP, Fact("noise", std=1e-160, each=True))}])
@pytest.mark.parametrize("sigma", [0.0, 6.0])
def test_plain_data_is_clean_json(facts: dict[str, tuple[Fact, ...]], sigma: float) -> None:
    claim = MomentsClaim(unit="example", noise_multiplier=sigma)
    schedule = dataclasses.replace(MNIST, batch_sampling="split")
    plain = epsilon(throughout(facts, schedule), "example", claim, schedule).as_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain["claimed"] is None) == (sigma == 0)
    assert set(plain["by_tap"]) == {"type-2", "type-1", "type-0"}
    assert set(plain["by_tap"]["type-2"]["participations"]) == {"expected", "largest"}


def test_more_noise_and_fewer_rounds_are_never_worse() -> None:
    def at(std: float, rounds: int) -> float:
        answer = valid({"example": (CLIP,), "batch": (Fact("noise", std=std),)}, "example", rounds=rounds)
        assert answer.valid is not None
        return answer.valid

    assert at(24.0, 10) > at(30.0, 10) > at(60.0, 10)
    assert at(24.0, 5) < at(24.0, 10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clients", 0),
        ("rounds", -1),
        ("clients_per_round", 1001),
        ("batch", 501),
        ("copies", 0.0),
        ("most_copies", 0),
        ("largest", {"examples": 3}),
        ("batch_sampling", "shuffled"),
        ("client_sampling", "split"),
    ],
)
def test_impossible_schedules_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field.rsplit("_", 1)[-1]):
        dataclasses.replace(MNIST, **{field: value})


def test_an_impossible_delta_or_unit_is_refused() -> None:
    with pytest.raises(InputError, match="delta"):
        epsilon((), "example", NOTHING, MNIST, 1.0)
    with pytest.raises(InputError, match="unit"):
        epsilon((), "round", NOTHING, MNIST)  # type: ignore[arg-type]


def test_server_side_clips_of_updates_keep_the_noise_of_each_client() -> None:
    """Noise of 24 at every client against a bound of 4: sqrt(100) of them add up, unless each update is clipped afterwards."""
    assert valid(AT_CLIENT, "client", client_sampling="fixed").sigma_effective == pytest.approx(60.0)
    for after in (CLIP, PRUNING, L2_MAX):
        assert valid(
            {**AT_CLIENT, "server": (after,)}, "client", client_sampling="fixed"
        ).sigma_effective == pytest.approx(6.0)


RAW = Fact("other", reason="a mask computed from private data", raw=True)
BARE = Fact("scale", reason="the bound follows private norms", raw=True)
TOLD = Fact("other", reason="one update moves the median")
FAINT = Fact("noise", std=0.01, each=True)
COUNTED = Fact("noise", std=24.0, only=True)


@pytest.mark.parametrize(
    ("facts", "unit", "why"),
    [
        # One example decides which coordinates of the others' mean are sent.
        ({"example": (CLIP,), "batch": (PRUNING, ON_SUM)}, "example", "acts on the mean of a batch"),
        # A weak noise before it must not switch the warnings off.
        ({"client": (CLIP, FAINT, RAW, ON_EACH)}, "client", "private data"),
        ({"client": (BARE, CLIP, ON_EACH)}, "client", "private norms"),
    ],
)
def test_parts_that_noise_does_not_protect(facts: dict[str, tuple[Fact, ...]], unit: Any, why: str) -> None:
    answer = valid(facts, unit, client_sampling="fixed")
    assert answer.valid is None
    assert why in answer.reason


def test_noise_after_a_part_that_depends_on_all_members_does_not_count() -> None:
    """Every update has its own weak noise; after the median only that noise protects it, for any noise of the server."""
    answer = valid({"client": (CLIP, FAINT), "server": (TOLD, CLIP, ON_SUM)}, "client", client_sampling="fixed")
    assert answer.sigma_effective == pytest.approx(0.01 / 4)


def test_a_clip_in_other_coordinates_replaces_the_bound() -> None:
    """A clip at .1 before one at 4 that moves or rescales: the noise of 24 counts as 6, not as 240."""
    small, moving = Fact("clip", norm=0.1), Fact("clip", norm=4.0, rescales=True)
    assert valid({"server": (small, moving, ON_SUM)}, "client").sigma_effective == pytest.approx(6.0)
    assert valid({"server": (moving, small, ON_SUM)}, "client").sigma_effective == pytest.approx(240.0)


def test_other_noise_does_not_add_to_noise_shared_with_another_release() -> None:
    """24 for values and count together; 4,000 more on the values do not protect the count."""
    loud = Fact("noise", std=4000.0)
    for server in ((CLIP, COUNTED, loud), (CLIP, loud, COUNTED)):
        assert valid({"server": server}, "client").sigma_effective == pytest.approx(6.0)


@pytest.mark.parametrize("groups", [1, 4])
def test_control_variates_let_no_fixed_cohort_amplify(groups: int) -> None:
    """With noise at the server only, what other clients send depends on earlier cohorts, so each round counts as seen."""
    if groups == 1:
        fixed = valid(FED_SDP, "client", client_sampling="fixed", control_variates=True)
        assert fixed.valid == pytest.approx(pld((Mechanism(6.0, 0.1, 100, "visible"),), 1e-5), rel=1e-9)
        assert "the observer sees it; zero-out adjacency" in fixed.reason and "hidden" not in fixed.reason
        hidden = valid(FED_SDP, "client", client_sampling="fixed")
        assert hidden.valid is not None and fixed.valid is not None and hidden.valid < fixed.valid
        assert hidden.valid == pytest.approx(pld((Mechanism(6.0, 0.1, 100, "fixed"),), 1e-5), rel=1e-9)
    # Clients of a Poisson cohort are independent of each other, so that it stays hidden.
    poisson = [valid(FED_SDP, "client", groups=groups, control_variates=scaffold) for scaffold in (False, True)]
    assert poisson[0].valid == poisson[1].valid and "hidden from the observer" in poisson[1].reason
