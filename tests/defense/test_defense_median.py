"""The median clip of Geyer et al. and their released one, against closed forms; neither has a guarantee."""

import math
from collections.abc import Sequence

import pytest
import torch
from probes import facts_of

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.median import ClipInverted, ClipMedian
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.transform import Transform
from leakbench.privacy.calibration import calibrated

CLOCK = Clock(0, 0, 1, 1)
FEDERATION = Federation(rounds=2, batch=5, examples_per_client=20, clients=30, clients_per_round=10, local_iterations=4)


def signal(*norms: tuple[float, float]) -> Signal:
    """Return one lane whose members have tensors `a` (2, 3) and `b` (5) of the given norms."""
    wanted = torch.tensor(norms)
    a = (wanted[:, 0] / math.sqrt(6))[None, :, None, None].expand(1, -1, 2, 3)
    b = (wanted[:, 1] / math.sqrt(5))[None, :, None].expand(1, -1, 5)
    return Signal({"a": a, "b": b})


def norms(signal: Signal) -> list[float]:
    return [float(signal.grads[n][0, m].norm()) for m in range(signal.members) for n in ("a", "b")]


def test_the_whole_update_is_clipped_at_the_median_of_the_norms() -> None:
    """Whole norms 5, 10 and 1: the median 5 leaves the first and the last, and halves (6, 8)."""
    after = ClipMedian()(signal((3.0, 4.0), (6.0, 8.0), (0.6, 0.8)), CLOCK, None)
    assert norms(after) == pytest.approx([3.0, 4.0, 3.0, 4.0, 0.6, 0.8])
    assert after.sensitivity is not None
    assert after.sensitivity.tolist() == pytest.approx([5.0])


def test_the_median_of_an_even_number_is_the_middle() -> None:
    """Of norms 1, 2, 4 and 9 it is 3."""
    after = ClipMedian()(signal((1.0, 0.0), (2.0, 0.0), (4.0, 0.0), (9.0, 0.0)), CLOCK, None)
    assert norms(after)[::2] == pytest.approx([1.0, 2.0, 3.0, 3.0])


@pytest.mark.parametrize("part", [ClipMedian(), ClipInverted()])
def test_equal_members_and_a_member_alone_stay_as_they_are(part: Transform) -> None:
    """Each is its own median, so neither form changes anything; zeros stay zeros, not NaN."""
    for before in (signal((3.0, 4.0), (3.0, 4.0), (3.0, 4.0)), signal((30.0, 40.0)), signal((0.0, 0.0), (0.0, 0.0))):
        after = part(before, CLOCK, None)
        assert all(torch.allclose(before.grads[n], after.grads[n]) for n in before.grads)


@pytest.mark.parametrize("part", [ClipMedian(), ClipInverted()])
def test_lanes_have_their_own_medians(part: Transform) -> None:
    """Two problems together give the same results as each alone."""
    one, two = signal((1.0, 2.0), (3.0, 1.0), (9.0, 9.0)), signal((5.0, 5.0), (0.1, 0.1), (2.0, 7.0))
    both = part(Signal({n: torch.cat([one.grads[n], two.grads[n]]) for n in one.grads}), CLOCK, None)
    for lane, alone in enumerate((one, two)):
        after = part(alone, CLOCK, None)
        assert all(torch.allclose(both.grads[n][lane], after.grads[n][0]) for n in after.grads)
        assert both.sensitivity is not None and after.sensitivity is not None
        assert float(both.sensitivity[lane]) == pytest.approx(float(after.sensitivity[0]))


def test_the_released_clip_is_inverted_and_by_tensor() -> None:
    """Tensor `a` has norms .5, 2, 10, `b` 8, 4, 0: medians 2 and 4. Smaller norms are scaled up, larger ones pass."""
    after = ClipInverted()(signal((0.5, 8.0), (2.0, 4.0), (10.0, 0.0)), CLOCK, None)
    assert norms(after) == pytest.approx([2.0, 8.0, 2.0, 4.0, 10.0, 0.0])
    assert after.sensitivity is not None
    assert after.sensitivity.tolist() == pytest.approx([4.0])
    noised = ClipInverted(noise_multiplier=1.5)(signal((0.5, 8.0), (2.0, 4.0), (10.0, 0.0)), CLOCK, None)
    assert noised.facts[-1].kind == "noise" and noised.facts[-1].std == pytest.approx(6.0)


def test_the_released_clip_bounds_nothing() -> None:
    """A thousand times the largest update is released a thousand times as large."""
    for factor in (1.0, 1000.0):
        after = ClipInverted()(signal((1.0, 1.0), (1.0, 1.0), (5.0 * factor, 5.0 * factor)), CLOCK, None)
        assert norms(after)[-1] == pytest.approx(5.0 * factor)


def test_geyers_noise_has_the_median_as_its_scale() -> None:
    """Three updates of norm 5: sigma S = 1.44 * 5 on their sum."""
    g = torch.zeros(1, 3, 40_000)
    g[..., 0] = 5.0
    clipped = ClipMedian()(Signal({"a": g}), CLOCK, None)
    noised = GaussianNoise(1.44, "sum")(clipped, CLOCK, generators(0, "noise", [(0,)]))
    assert float(noised.grads["a"].sum(1)[0, 1:].std()) == pytest.approx(7.2, rel=0.02)


def test_the_released_noise_has_a_scale_for_each_tensor() -> None:
    """Medians 2 and 6 at sigma 1: a standard deviation of 2 and of 6 on the sums; without generators no noise."""
    a, b = torch.zeros(1, 4, 40_000), torch.zeros(1, 4, 40_000)
    a[..., 0], b[..., 0] = 2.0, 6.0
    part, before = ClipInverted(noise_multiplier=1.0), Signal({"a": a, "b": b})
    noised = part(before, CLOCK, generators(0, "noise", [(0,)]))
    for name, std in (("a", 2.0), ("b", 6.0)):
        assert float(noised.grads[name].sum(1)[0, 1:].std()) == pytest.approx(std, rel=0.02)
    still = part(before, CLOCK, None)
    assert all(torch.equal(before.grads[n], still.grads[n]) for n in before.grads)


def test_an_attacker_can_differentiate_through_the_median() -> None:
    """A single update is its own median: its derivative is 1, not that of a clip at a constant."""
    g = torch.tensor([[[3.0, 4.0]]], requires_grad=True)
    out = ClipMedian()(Signal({"a": g}), CLOCK, None).grads["a"]
    (slope,) = torch.autograd.grad(out.sum(), g)
    assert torch.allclose(slope, torch.ones_like(slope))


def held(*server: Transform, client: Sequence[Transform] = ()) -> tuple[int, str]:
    """Return how many noises of a server the ledger counts, or why none."""
    defense = Defense(title="t", cite="c", unit="client", client=tuple(client), server=server)
    noises, why = calibrated(facts_of(defense, FEDERATION), "client", FEDERATION.batch)
    return len(noises), why


def test_neither_form_has_a_guarantee_even_with_a_later_clip() -> None:
    """One update moves the median and with it all others, so a later clip of each at C does not bound their sum."""
    noise = GaussianNoise(1.0, "sum")
    assert held(ClipWhole(4.0), noise) == (1, "")
    for part, word in ((ClipMedian(), "median"), (ClipInverted(1.0), "inverted")):
        for server in ((part, noise), (ClipWhole(4.0), part, noise), (part, ClipWhole(4.0), noise)):
            found, why = held(*server)
            assert found == 0
            assert word in why
    assert held(GaussianNoise(1.0, "sum", uncalibrated=True), ClipMedian())[0] == 0  # Noise before any clip.


def test_noise_at_the_clients_counts_before_a_median_at_the_server() -> None:
    """Each client's noise remains; the server's own noise, scaled by the median, adds nothing to it."""
    own = (ClipWhole(4.0), GaussianNoise(1.0, "each"))
    for part in (ClipMedian(), ClipInverted(1.0)):
        assert held(part, GaussianNoise(1.0, "sum"), client=own)[0] == 1


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, "1"])
def test_a_wrong_noise_multiplier_is_refused_in_one_line(wrong) -> None:
    with pytest.raises(InputError, match=r"^noise_multiplier: [^\n]*$"):
        construct(ClipInverted, {"noise_multiplier": wrong})


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(InputError, match="unknown field 'norm'"):
        construct(ClipMedian, {"norm": 4.0})
