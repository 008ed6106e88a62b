"""Pruning against a slow reference, its random choice against its probabilities, and its effect on the ledger."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import facts_of

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.prune import PruneRandom, PruneThreshold, PruneThresholdReleased
from leakbench.defense.transform import Transform
from leakbench.privacy.calibration import calibrated

CLOCK = Clock(0, 0, 1, 1)
FEDERATION = Federation(rounds=2, batch=5, examples_per_client=20, clients=30, clients_per_round=10, local_iterations=4)


def signal(lanes: int = 1, members: int = 2, seed: int = 3) -> Signal:
    """Return tensors `a` (3, 4) and `b` (8): 20 coordinates."""
    rng = torch.Generator().manual_seed(seed)
    a, b = torch.randn(lanes, members, 3, 4, generator=rng), torch.randn(lanes, members, 8, generator=rng)
    return Signal({"a": a, "b": b}, sensitivity=torch.full((lanes,), 2.0))


def flat(signal: Signal) -> torch.Tensor:
    return torch.cat([g.flatten(2) for g in signal.grads.values()], dim=2)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 0.999), st.integers(0, 1000))
def test_the_smallest_coordinates_of_each_member_go(share: float, seed: int) -> None:
    """With n = 20, the floor(20 share) smallest over both tensors become zero; the others are bit-identical."""
    before = signal(lanes=2, seed=seed)
    after = PruneThreshold(share)(before, CLOCK, None)
    old, new = flat(before), flat(after)
    for lane in range(2):
        for member in range(2):
            order = sorted(range(20), key=lambda i: abs(float(old[lane, member, i])))
            gone = order[: int(round(20 * share, 9))]
            wanted = old[lane, member].clone()
            wanted[gone] = 0
            assert torch.equal(new[lane, member], wanted)
    assert torch.equal(after.sensitivity, before.sensitivity)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [PruneThreshold(0.0), PruneRandom(1.0)])
def test_to_prune_nothing_is_the_identity(part: Transform) -> None:
    before = signal()
    for rngs in (None, generators(0, "noise", [(0,)])):
        after = part(before, CLOCK, rngs)
        assert all(torch.equal(before.grads[n], after.grads[n]) for n in before.grads)


def test_equal_coordinates_stay_and_nan_is_not_hidden() -> None:
    """A tie at the threshold keeps all tied coordinates; NaN stays NaN, so that a failure is visible."""
    ones = Signal({"a": torch.ones(1, 1, 10)})
    assert torch.equal(PruneThreshold(0.5)(ones, CLOCK, None).grads["a"], ones.grads["a"])
    broken = Signal({"a": torch.tensor([[[1.0, math.nan, 3.0, 4.0]]])})
    for part in (PruneThreshold(0.5), PruneRandom(0.5)):
        assert part(broken, CLOCK, generators(0, "noise", [(0,)])).grads["a"].isnan().any()


def test_the_released_threshold_is_the_last_examples() -> None:
    """Sorted magnitudes of the last example: 1, 2, 3, 4. At share .5 index 2 is 3, and magnitudes up to 3 are pruned everywhere."""
    first, last = [10.0, -3.5, 3.0, 0.5], [4.0, -1.0, 2.0, 3.0]
    after = PruneThresholdReleased(0.5)(Signal({"a": torch.tensor([[first, last]])}), CLOCK, None)
    assert after.grads["a"].tolist() == [[[10.0, -3.5, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]]]


def test_a_random_choice_has_its_size_and_stays_above_the_threshold() -> None:
    """A tenth of 20 coordinates are 2; if fewer are above the threshold, only these."""
    before = signal(lanes=3)
    lanes = generators(0, "noise", [(0,), (1,), (2,)])
    old, new = flat(before), flat(PruneRandom(0.1, threshold=0.5)(before, CLOCK, lanes))
    kept = new != 0
    assert (kept.sum(2) == 2).all()
    assert (old[kept].abs() > 0.5).all()
    assert torch.equal(new[kept], old[kept])
    above = (old.abs() > 2.0).sum(2)
    few = flat(PruneRandom(0.9, threshold=2.0)(before, CLOCK, generators(0, "noise", [(0,), (1,), (2,)])))
    assert torch.equal((few != 0).sum(2), above)


def test_every_coordinate_above_the_threshold_has_the_same_chance() -> None:
    """2 of 10 are chosen, with 4 above it: each of the four is drawn half the time at any size, the others never."""
    g = torch.tensor([1.0, 0.1, 100.0, 0.1, 2.0, 0.1, 0.1, -5.0, 0.1, 0.1])
    many = Signal({"a": g.expand(1, 4000, 10)})
    kept = PruneRandom(0.2, threshold=0.5)(many, CLOCK, generators(0, "noise", [(0,)])).grads["a"][0] != 0
    shares = kept.float().mean(0)
    assert (shares[g.abs() > 0.5] - 0.5).abs().max() < 0.05  # More than 6 standard errors.
    assert shares[g.abs() < 0.5].max() == 0


def test_the_choice_is_drawn_for_each_lane_and_without_generators_only_the_threshold_acts() -> None:
    """Same generator, same choice; other lanes do not matter; the deterministic part keeps all above the threshold."""
    both, part = signal(lanes=2), PruneRandom(0.3, threshold=0.2)
    alone = Signal({n: g[1:] for n, g in both.grads.items()}, sensitivity=torch.ones(1))
    together = flat(part(both, CLOCK, generators(0, "noise", [(0,), (1,)])))
    assert torch.equal(together[1:], flat(part(alone, CLOCK, generators(0, "noise", [(1,)]))))
    assert not torch.equal(together != 0, flat(part(both, CLOCK, generators(1, "noise", [(0,), (1,)]))) != 0)
    still = flat(part(both, CLOCK, None))
    assert torch.equal(still, flat(both) * (flat(both).abs() > 0.2))


def test_noise_is_added_only_to_sent_coordinates() -> None:
    """Standard deviation .5 on the kept half of 40,000 coordinates, exact zeros on the others; no noise without generators."""
    before = Signal({"a": torch.ones(1, 2, 40_000)})
    part = PruneRandom(0.5, noise=0.5)
    after = part(before, CLOCK, generators(0, "noise", [(0,)])).grads["a"]
    kept = after != 0
    assert (kept.sum(2) == 20_000).all()
    assert float((after[kept] - 1).std()) == pytest.approx(0.5, rel=0.02)
    assert torch.equal(part(before, CLOCK, None).grads["a"], before.grads["a"])


def test_an_attacker_can_differentiate_through_kept_coordinates() -> None:
    g = torch.tensor([[[1.0, -2.0, 3.0, -4.0]]], requires_grad=True)
    out = PruneThreshold(0.5)(Signal({"a": g}), CLOCK, None).grads["a"]
    assert torch.autograd.grad(out.sum(), g)[0].tolist() == [[[0.0, 0.0, 1.0, 1.0]]]


def ledger(*example: Transform) -> tuple[int, str]:
    """Return how many noises of the example station the ledger counts, or why none."""
    defense = Defense(title="t", cite="c", unit="example", example=example)
    noises, why = calibrated(facts_of(defense, FEDERATION), "example", FEDERATION.batch)
    return len(noises), why


def test_pruning_adds_no_guarantee_and_a_members_own_pruning_removes_none() -> None:
    """Before the clip, between clip and noise, or after the noise; the last example's threshold breaks it unless it comes after."""
    clip, noise = ClipWhole(4.0), GaussianNoise(1.0, "each")
    loose = GaussianNoise(1.0, "each", uncalibrated=True)
    for part in (PruneThreshold(0.5), PruneRandom(0.5, threshold=0.1)):
        assert ledger(part) == (0, "no noise")
        assert ledger(part, loose) == (0, "noise without a clip: 1 against no bound")
        for order in ((part, clip, noise), (clip, part, noise), (clip, noise, part)):
            assert ledger(*order) == (1, "")
    released = PruneThresholdReleased(0.5)
    for order in ((released, clip, noise), (clip, released, noise)):
        found, why = ledger(*order)
        assert found == 0
        assert "last" in why
    assert ledger(clip, noise, released) == (1, "")


def test_noise_on_the_chosen_coordinates_alone_has_no_guarantee() -> None:
    """Also not behind a clip: which coordinates are sent depends on the private gradient."""
    part = PruneRandom(0.5, noise=1.0)
    for order in ((part,), (ClipWhole(4.0), part), (part, ClipWhole(4.0), GaussianNoise(1.0, "each"))):
        found, why = ledger(*order)
        assert found == 0
        assert "which ones are sent" in why


@pytest.mark.parametrize("part", [PruneThreshold, PruneThresholdReleased])
@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, math.nan, math.inf, "half"])
def test_an_invalid_share_is_refused_in_one_line(part, share) -> None:
    with pytest.raises(InputError, match=r"^share: [^\n]*$"):
        construct(part, {"share": share})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"share": 0.0}, "share: "),
        ({"share": 1.1}, "share: "),
        ({"share": math.nan}, "share: "),
        ({"share": 0.5, "threshold": -1.0}, "threshold: "),
        ({"share": 0.5, "threshold": math.nan}, "threshold: "),
        ({"share": 0.5, "noise": -1.0}, "noise: "),
        ({"share": 0.5, "noise": math.inf}, "noise: "),
        ({"share": 0.5, "treshold": 0.1}, "unknown field 'treshold'; did you mean 'threshold'?"),
        ({}, "missing field 'share'"),
    ],
)
def test_a_wrong_field_of_the_random_choice_is_refused_in_one_line(fields, message) -> None:
    with pytest.raises(InputError) as error:
        construct(PruneRandom, fields)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
