"""Training in phases: noise and draws that change, secure aggregation, every reason, and limits of a claim."""

import dataclasses
import math
from typing import Any

import pytest

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.types import Fact
from leakbench.privacy.accountants import pld
from leakbench.privacy.calibration import Noise, _counted
from leakbench.privacy.claim import CompositionClaim, FlowerClaim, GeyerClaim, MomentsClaim, NbaflClaim, NoClaim
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Phase, Schedule
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.observers import observations
from leakbench.privacy.release import Part, Released
from leakbench.privacy.shuffle import Shuffled

DELTA = 1e-5
NOTHING = NoClaim(reason="not asked")
CLIP = Fact("clip", norm=4.0)
SMALL = Schedule(
    clients=100,
    clients_per_round=10,
    rounds=4,
    local_iterations=10,
    batch=5,
    examples_per_client=50,
    copies=1.0,
    most_copies=1,
    client_sampling="fixed",
    batch_sampling="poisson",
    tensors=3,
)

Facts = dict[str, tuple[Fact, ...]]


def on_batch(sigma: float) -> Facts:
    return {"example": (CLIP,), "batch": (Fact("noise", std=4 * sigma),)}


def at_example(sigma: float) -> Facts:
    return {"example": (CLIP, Fact("noise", std=4 * sigma, each=True))}


def at_server(sigma: float) -> Facts:
    return {"server": (CLIP, Fact("noise", std=4 * sigma))}


def at_client(sigma: float) -> Facts:
    return {"client": (CLIP, Fact("noise", std=4 * sigma, each=True))}


def every_round(*facts: Facts, cohorts: tuple[int, ...] = ()) -> tuple[Phase, ...]:
    """Return a training whose rounds all differ."""
    sizes = cohorts or (10,) * len(facts)
    return tuple(Phase(f, 1, 10, True, size) for f, size in zip(facts, sizes, strict=True))


def valid(phases: tuple[Phase, ...], unit: Any, claim: Any = NOTHING, **changes: Any) -> Epsilon:
    return epsilon(phases, unit, claim, dataclasses.replace(SMALL, **changes), DELTA)


@pytest.mark.slow
def test_each_phase_has_its_own_noise() -> None:
    sigmas = (8.0, 6.0, 4.0, 2.0)
    answer = valid(every_round(*map(on_batch, sigmas)), "example")
    assert answer.without_draw == pytest.approx(pld(tuple(Mechanism(s, 0.1, 10) for s in sigmas), DELTA))
    assert (answer.sigma_effective, answer.q, answer.steps) == (2.0, 0.1, 4)
    assert "noise of 2 (least, in round 4) to 8 times one example's bound" in answer.reason
    least = valid((Phase(on_batch(2.0), 4, 10, True, 10),), "example").valid
    assert least is not None
    assert answer.valid is not None
    assert answer.valid < least


@pytest.mark.parametrize("unit", ["example", "client"])
def test_equal_phases_are_merged(unit: str) -> None:
    facts = {**on_batch(6.0), "server": (CLIP, Fact("noise", std=24.0))}
    whole = valid((Phase(facts, 4, 10, True, 10),), unit)
    halves = (Phase(facts, 4, 3, False, 10), Phase(facts, 4, 7, True, 10))
    assert valid(every_round(*[facts] * 4), unit) == valid(halves, unit) == whole
    assert whole.valid is not None
    copies = {"copies": 14.0, "most_copies": 20}
    assert valid(every_round(*[facts] * 4), unit, **copies) == valid(halves, unit, **copies)
    # 4 rounds of 20 / 10 participations and 10 iterations.
    assert valid(every_round(*[facts] * 4), "example", **copies).steps == 80


def test_a_clients_update_is_released_at_the_end_of_the_round() -> None:
    first, last = at_server(1.0), at_server(6.0)
    answer = valid((Phase(first, 4, 3, False, 10), Phase(last, 4, 7, True, 10)), "client")
    assert (answer.sigma_effective, answer.steps) == (6.0, 4)


@pytest.mark.slow
def test_growing_cohorts() -> None:
    phases = every_round(*[at_server(2.0)] * 4, cohorts=(10, 20, 30, 40))
    answer = valid(phases, "client", client_sampling="poisson")
    assert answer.valid == pytest.approx(pld(tuple(Mechanism(2.0, q, 1) for q in (0.1, 0.2, 0.3, 0.4)), DELTA))
    assert (answer.q, answer.steps) == (0.4, 4)
    assert answer.by_tap["type-0"].participations["expected"] == pytest.approx(1.0)
    assert "sum of 10 to 40 updates" in answer.reason
    assert "q=0.1 to 0.4" in answer.reason
    own = valid(every_round(*[at_client(2.0)] * 4, cohorts=(10, 20, 30, 40)), "client")
    assert own.sigma_effective == pytest.approx(2 * math.sqrt(10))
    grown = [Mechanism(2 * math.sqrt(k), k / 100, 1, "fixed") for k in (10, 20, 30, 40)]
    assert own.valid == pytest.approx(pld(tuple(grown), DELTA))


def test_shuffled_reports_are_hidden_among_those_of_the_smallest_round() -> None:
    phases = every_round(at_client(4.0), at_client(2.0), cohorts=(30, 20))
    seen = observations(phases, "client", dataclasses.replace(SMALL, rounds=2, shuffled=True))["type-0"]
    assert isinstance(seen, Released) and seen.shuffled == Shuffled(2.0, 20, 2)


def test_a_client_sends_at_most_one_update_in_every_round() -> None:
    seen = observations(every_round(*map(at_client, (4.0, 2.0))), "client", dataclasses.replace(SMALL, rounds=2))
    assert isinstance(seen["type-1"], Released)
    sure, random = ((lambda z: Mechanism(z, 1.0, 1)), (lambda z: Mechanism(z, 0.1, 1, "visible")))
    expected = tuple(Part(1, (random(z),), (sure(z),), (sure(z),), 1) for z in (4.0, 2.0))
    assert seen["type-1"].parts == expected


def test_only_observers_after_the_server_have_its_noise() -> None:
    facts = {**at_client(4.0), **at_server(4.0)}
    seen = observations((Phase(facts, 4, 10, True, 10),), "client", SMALL)
    assert isinstance(seen["type-1"], Released) and isinstance(seen["type-0"], Released)
    assert "that reads it on arrival is trusted" in seen["type-0"].sentence
    assert "trusted" not in seen["type-1"].sentence


def test_the_noise_that_is_weakest_for_its_bound_counts() -> None:
    noises = [Noise("server", std, True, bound, 0, False, True) for std, bound in ((4.0, 1.0), (6.0, 3.0), (1.0, 0.1))]
    assert _counted((*noises, Noise("server", 0.1, True, 1.0, 1, False, False))) == (noises[1],)
    assert _counted(plain := tuple(dataclasses.replace(noise, only=False) for noise in noises)) == plain


@pytest.mark.slow
def test_realised_participations_fall_in_the_rounds_with_the_least_noise() -> None:
    """A run does not count in which rounds: at most one for each round and copy, and at most `most_copies` for several."""
    phases = every_round(*map(on_batch, (8.0, 6.0, 4.0, 2.0)))
    twice = valid(phases, "example", largest={"example": 2})
    assert twice.realised == pytest.approx(pld((Mechanism(2.0, 0.1, 10), Mechanism(4.0, 0.1, 10)), DELTA), rel=1e-6)
    copied = valid(phases, "example", copies=3.0, most_copies=3, largest={"example": 2})
    assert copied.realised == pytest.approx(pld((Mechanism(2.0, 0.1, 20),), DELTA), rel=1e-6)


@pytest.mark.parametrize("changed", ["batch", "client"])
def test_parts_after_the_noise_of_a_client_exclude_the_noise_of_others(changed: str) -> None:
    """Secure aggregation: noises add up only in sums that enter the aggregate unchanged."""
    facts = {**on_batch(6.0), **({"client": (CLIP,)} if changed == "client" else {})}
    if changed == "batch":
        facts["batch"] = (*facts["batch"], Fact("other"))
    once: dict[str, Any] = {"local_iterations": 1, "secure_aggregation": True}
    tap = valid((Phase(facts, 4, 1, True, 10),), "example", **once).by_tap["type-0"]
    assert tap.sigma_effective == 6.0
    assert "changes its own noisy gradients or sum further" in tap.reason


def test_a_split_is_used_at_the_least_noise_of_its_round() -> None:
    halves = (Phase(on_batch(8.0), 4, 5, False, 10), Phase(on_batch(6.0), 4, 5, True, 10))
    answer = valid(halves, "example", batch_sampling="split")
    assert (answer.sigma_effective, answer.without_draw) == (6.0, pytest.approx(pld((Mechanism(6.0, 1.0, 4),), DELTA)))
    assert "at the least noise of its round" in answer.reason


def test_visible_uses_count_at_the_least_noise_of_their_round() -> None:
    halves = (Phase(at_example(8.0), 4, 5, False, 10), Phase(at_example(6.0), 4, 5, True, 10))
    tap = valid(halves, "example", batch_sampling="fixed").by_tap["type-2"]
    assert (tap.sigma_effective, tap.steps, tap.q) == (6.0, 4, 0.1)
    mixed = every_round(at_example(6.0), on_batch(6.0), on_batch(6.0), on_batch(6.0))
    assert valid(mixed, "example").by_tap["type-2"].reason.endswith("from round 2 of 4 on")
    leaving = every_round(at_client(6.0), at_client(6.0), at_server(6.0), at_server(6.0))
    assert valid(leaving, "client").by_tap["type-1"].reason == "none: trusts the server, from round 3 on"


def test_one_phase_without_a_guarantee_removes_it() -> None:
    bare = every_round(on_batch(6.0), on_batch(6.0), on_batch(0.0), on_batch(6.0))
    answer = valid(bare, "example")
    assert answer.valid is None
    assert answer.reason == "none: no noise: at the batch station it is multiplied by zero, in round 3 of 4"
    tiny = every_round(on_batch(6.0), on_batch(6.0), on_batch(1e-9), on_batch(6.0))
    assert valid(tiny, "example").reason.startswith(
        "none: no finite epsilon: noise of < 0.001 (least, in round 3) to 6"
    )
    unclipped: Facts = {"batch": (Fact("noise", std=24.0),)}
    last = valid(every_round(on_batch(6.0), on_batch(6.0), on_batch(6.0), unclipped), "example")
    assert last.reason == "none: noise without a clip: 24 against no bound, in round 4 of 4"
    everywhere = valid(every_round(*[unclipped] * 4), "example")
    assert everywhere.reason == "none: noise without a clip: 24 against no bound"


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ((), "got 0 whole rounds, expected 4"),
        ((Phase(on_batch(6.0), 3, 10, True, 10),), "got 3 whole rounds, expected 4"),
        ((Phase(on_batch(6.0), 4, 10, False, 10),), "got 0 whole rounds, expected 4"),
        ((Phase(on_batch(6.0), 4, 9, True, 10),), "round 1 has 9 local iterations, expected 10"),
        ((Phase(on_batch(6.0), 4, 5, False, 10), Phase(on_batch(6.0), 3, 5, True, 10)), "from round 1 on 3 rounds"),
        ((Phase(on_batch(6.0), 4, 10, True, 101),), "got 101 clients a round, expected at most the 100"),
    ],
)
def test_steps_that_are_not_counted_are_refused(phases: tuple[Phase, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        valid(phases, "example")


@pytest.mark.parametrize("field", ["rounds", "local_iterations", "clients_per_round"])
def test_empty_phases_are_refused(field: str) -> None:
    with pytest.raises(InputError, match=field):
        dataclasses.replace(Phase(on_batch(6.0), 4, 10, True, 10), **{field: 0})


# Secure aggregation


def test_the_server_sees_only_the_sum_of_updates() -> None:
    phases = every_round(*[at_client(6.0)] * 4)
    plain, hidden = (valid(phases, "client", secure_aggregation=on) for on in (False, True))
    assert plain.by_tap["type-0"].sigma_effective == 6.0
    tap = hidden.by_tap["type-0"]
    assert tap.sigma_effective == pytest.approx(6 * math.sqrt(10))
    assert tap.without_draw == pytest.approx(pld((Mechanism(6 * math.sqrt(10), 1.0, 4),), DELTA))
    assert "the observer sees it" in tap.reason
    assert "trusts the other clients" in tap.reason
    assert "trusts neither the server nor other clients" in plain.by_tap["type-0"].reason
    assert hidden.by_tap["type-1"] == plain.by_tap["type-1"]
    assert hidden.valid == plain.valid
    random = valid(phases, "client", secure_aggregation=True, client_sampling="poisson").by_tap["type-0"]
    assert random.sigma_effective == 6.0
    server = valid(every_round(*[at_server(6.0)] * 4), "client", secure_aggregation=True).by_tap["type-0"]
    assert server.sigma_effective == 6.0
    assert "a server that reads it before is trusted" in server.reason


def test_noise_of_other_clients_counts_for_an_example_if_it_adds() -> None:
    once: dict[str, Any] = {"local_iterations": 1, "secure_aggregation": True}
    phases = (Phase(on_batch(6.0), 4, 1, True, 10),)
    tap = valid(phases, "example", **once).by_tap["type-0"]
    assert tap.sigma_effective == pytest.approx(6 * math.sqrt(10))
    assert valid(phases, "example", **once).sigma_effective == 6.0
    for why, changes in {
        "several local iterations": {"local_iterations": 2},
        "copies of the example": {"most_copies": 2},
        "how many clients take part is random": {"client_sampling": "poisson"},
    }.items():
        same = (dataclasses.replace(phases[0], local_iterations=changes.get("local_iterations", 1)),)  # type: ignore[arg-type]
        tap = valid(same, "example", **{**once, **changes}).by_tap["type-0"]
        assert tap.sigma_effective == 6.0
        assert why in tap.reason


def test_noise_of_other_clients_does_not_count_behind_a_change_of_each_noisy_gradient() -> None:
    """The clipped noise of others is not Gaussian, and may be far less."""
    for change in (Fact("clip", norm=1e-3), Fact("other")):
        facts = {"example": (*at_example(6.0)["example"], change)}
        tap = valid(
            (Phase(facts, 4, 1, True, 10),),
            "example",
            local_iterations=1,
            batch_sampling="fixed",
            secure_aggregation=True,
        ).by_tap["type-0"]
        assert tap.sigma_effective == 6.0
        assert "changes its own noisy gradients or sum further" in tap.reason


# Reasons for no epsilon, and limits of a claim


@pytest.mark.parametrize(
    ("facts", "unit", "reason"),
    [
        ({"example": (Fact("noise", std=24.0, each=True), CLIP)}, "example", "none: noise of 24 before the clip at 4"),
        ({"batch": (Fact("uncalibrated_noise", std=0.1),)}, "example", "none: noise without a clip: 0.1 against no"),
        ({"example": (CLIP,), "batch": (Fact("noise"),)}, "example", "none: no noise: at the batch station it is mult"),
        ({"client": (CLIP, Fact("noise", each=True))}, "client", "none: no noise: at the client station it is mult"),
    ],
)
def test_reasons_for_no_epsilon(facts: Facts, unit: str, reason: str) -> None:
    answer = valid((Phase(facts, 4, 10, True, 10),), unit)
    assert answer.valid is None
    assert answer.reason.startswith(reason)


CLAIM = MomentsClaim(unit="example", noise_multiplier=6.0)


def caveats(facts: Facts, unit: str, claim: Any, **changes: Any) -> tuple[str, ...]:
    return valid((Phase(facts, 4, 10, True, 10),), unit, claim, **changes).caveats


def test_a_training_as_claimed_has_no_caveat() -> None:
    assert caveats(on_batch(6.0), "example", CLAIM) == ()
    assert caveats(on_batch(3.0), "example", NOTHING) == ()
    sdp = MomentsClaim(unit="client", noise_multiplier=6.0)
    assert caveats(at_server(6.0), "client", sdp, client_sampling="poisson") == ()


def test_limits_of_a_claim() -> None:
    layers = {"example": (Fact("clip", norm=4 * math.sqrt(3)),), "batch": (Fact("noise", std=24.0),)}
    assert caveats(layers, "example", CLAIM) == (
        "the claim counts noise of 6 times one unit's bound, here it is at least 3.464: a clip layer by layer bounds 3 "
        "tensors together only by sqrt(3) times its norm",
    )
    (split,) = caveats(on_batch(6.0), "example", CLAIM, batch_sampling="split")
    assert "Poisson batches with q=0.1, but each example is used 1 time(s)" in split
    (fixed,) = caveats(on_batch(6.0), "example", CLAIM, batch_sampling="fixed")
    assert "moves the sum by up to 2 times its bound" in fixed
    copied = caveats(on_batch(6.0), "example", CLAIM, copies=14.0, most_copies=20)
    assert copied[0] == "the claim counts 40 steps, here the worst example is in 80 releases on average and 400 at most"
    assert "14 hold it on average and 20 at most" in copied[1]
    visible = caveats(at_example(6.0), "example", CLAIM)
    assert "the noise shows how many were drawn" in visible[0]
    one_more = MomentsClaim(unit="client", noise_multiplier=6.0, extra_rounds=1)
    (steps,) = caveats(at_server(6.0), "client", one_more, client_sampling="poisson")
    assert steps == "the claim counts 5 steps, here the worst client is in 4 releases"
    rate = MomentsClaim(unit="client", noise_multiplier=6.0)
    grown = every_round(*[at_server(6.0)] * 4, cohorts=(10, 20, 30, 40))
    assert (
        "here one release uses a unit with q=0.4" in valid(grown, "client", rate, client_sampling="poisson").caveats[0]
    )


def test_a_clip_may_declare_what_it_does_not_bound() -> None:
    said = Fact("clip", norm=4 * math.sqrt(3), reason="layer by layer")
    assert caveats({"example": (said,), "batch": (Fact("noise", std=24.0),)}, "example", CLAIM)[0] == "layer by layer"
    scale = Fact("scale", reason="l2-max")
    assert caveats({"example": (said, scale), "batch": (Fact("noise", std=24.0),)}, "example", CLAIM) == (
        "layer by layer",
    )


# Claims


def test_a_claim_with_a_decay_covers_the_whole_sequence() -> None:
    claim = construct(MomentsClaim, {"unit": "client", "noise_multiplier": {"linear": {"start": 15.0, "end": 9.0}}})
    claimed = claim(SMALL)
    assert [m.noise_multiplier for m in claimed.mechanisms] == pytest.approx([15.0, 13.5, 12.0, 10.5])
    assert "sigma=15 to 10.5" in claimed.formula
    one_more = dataclasses.replace(claim, extra_rounds=1)(SMALL)
    assert [m.steps for m in one_more.mechanisms] == [1, 1, 1, 2]
    with pytest.raises(InputError, match="linea"):
        construct(MomentsClaim, {"unit": "client", "noise_multiplier": "linea"})


def test_without_a_round_there_is_no_claim() -> None:
    none = dataclasses.replace(SMALL, rounds=0)
    for claim in (
        CompositionClaim(unit="example", composition="basic", noise_multiplier=6.0),
        GeyerClaim(noise_multiplier=1.0),
        FlowerClaim(noise_multiplier=1.0),
        NbaflClaim(epsilon=1.0),
    ):
        assert claim(none).epsilon is None
        assert claim(none).formula == "none: no round was trained"


def test_without_noise_nothing_finite_is_claimed() -> None:
    for claim in (
        GeyerClaim(noise_multiplier=0.0),
        FlowerClaim(noise_multiplier=0.0),
        MomentsClaim(unit="client", noise_multiplier=0.0),
    ):
        assert claim(SMALL).epsilon == math.inf
    assert valid((Phase(at_server(6.0), 4, 10, True, 10),), "client", FlowerClaim(noise_multiplier=0.0)).claimed is None


def test_nbafl_divides_its_epsilon_by_the_number_of_exposures() -> None:
    claimed = NbaflClaim(epsilon=8.0, exposures=4)(SMALL)
    assert claimed.epsilon == 8.0
    assert NbaflClaim(epsilon=8.0, exposures=4).noise_multiplier == pytest.approx(4 * math.sqrt(2 * math.log(125)) / 8)
    assert "for 4 exposure(s)" in claimed.formula
    with pytest.raises(InputError, match=r"c: .*at least"):
        construct(NbaflClaim, {"epsilon": 8.0, "c": 1.0})
