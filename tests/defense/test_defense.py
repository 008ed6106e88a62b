"""Clips against closed forms, noise against its standard deviation, and refusals."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import facts_of, probe

from leakbench.core.errors import InputError
from leakbench.core.recipe import names, resolve
from leakbench.core.rng import generators, normal
from leakbench.core.types import Clock, Generators, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, phases
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.quantile import ClipQuantile, QuantileNoise
from leakbench.defense.sensitivity import L2Max, L2MaxReleased
from leakbench.defense.share import ShareOfNoise
from leakbench.defense.transform import Stations, apply
from leakbench.federated.client import Examples, client_update
from leakbench.privacy.calibration import calibrated
from leakbench.privacy.claim import MomentsClaim
from leakbench.privacy.decay import Linear

CLOCK = Clock(0, 0, 1, 1)


def signal(*norms: tuple[float, float], averaged: int = 1) -> Signal:
    """Return one lane whose members have tensors `a` (3, 4) and `b` (7) of the given norms."""
    rng = torch.Generator().manual_seed(3)
    a, b = torch.randn(1, len(norms), 3, 4, generator=rng), torch.randn(1, len(norms), 7, generator=rng)
    wanted = torch.tensor(norms)
    a = a / a.flatten(2).norm(dim=2)[..., None, None] * wanted[None, :, 0, None, None]
    b = b / b.norm(dim=2)[..., None] * wanted[None, :, 1, None]
    return Signal({"a": a, "b": b}, averaged)


def norms(signal: Signal) -> list[float]:
    """Return the norms of `a` and `b` of each member."""
    return [float(signal.grads[n][0, m].norm()) for m in range(signal.members) for n in ("a", "b")]


def test_whole_clip_scales_all_tensors_alike() -> None:
    """(3, 4) has norm 5: at C = 2.5 both tensors halve; (0.3, 0.4) stays; zero stays zero, not NaN."""
    clipped = ClipWhole(2.5)(signal((3.0, 4.0), (0.3, 0.4), (0.0, 0.0)), CLOCK, None)
    assert norms(clipped) == pytest.approx([1.5, 2.0, 0.3, 0.4, 0.0, 0.0])
    assert clipped.sensitivity is not None
    assert clipped.sensitivity.tolist() == [2.5]
    assert clipped.facts[-1].norm == 2.5


def test_layer_clip_bounds_each_tensor_and_reports_sqrt_m() -> None:
    """Each tensor is clipped to C separately; over M = 2 tensors a member is bounded by sqrt(2) C."""
    clipped = ClipLayers(2.0)(signal((3.0, 4.0), (0.3, 4.0)), CLOCK, None)
    assert norms(clipped) == pytest.approx([2.0, 2.0, 0.3, 2.0])
    assert clipped.facts[-1].norm == pytest.approx(math.sqrt(2) * 2.0)
    assert clipped.sensitivity is not None
    assert clipped.sensitivity.tolist() == [2.0]


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 100), st.floats(0, 1000), st.floats(0, 1000))
def test_no_member_exceeds_the_reported_bound(bound: float, a: float, b: float) -> None:
    """The bound that a clip reports to the ledger holds for any gradients."""
    for part in (ClipWhole(bound), ClipLayers(bound)):
        clipped = part(signal((a, b)), CLOCK, None)
        assert math.hypot(*norms(clipped)) <= clipped.facts[-1].norm * (1 + 1e-5)


def test_an_infinite_clip_changes_nothing() -> None:
    """A bound far above every norm keeps the gradients bit-identical."""
    before = signal((3.0, 4.0), (1.0, 2.0))
    for part in (ClipWhole(1e9), ClipLayers(1e9)):
        after = part(before, CLOCK, None)
        assert all(torch.equal(before.grads[n], after.grads[n]) for n in before.grads)


@pytest.mark.parametrize(("to", "expected"), [("each", 6.0), ("sum", 6.0 / 20), ("mean", 6.0)])
def test_noise_has_the_standard_deviation_of_its_placement(to: str, expected: float) -> None:
    """On 4 members that are means of 5: sigma S = 2 * 3 on each, 6 / 20 if the sum over 20 gets 6, 6 on the mean."""
    big = Signal({"a": torch.zeros(2, 4, 20_000)}, averaged=5, sensitivity=torch.tensor([3.0, 3.0]))
    noised = GaussianNoise(2.0, to)(big, CLOCK, generators(0, "noise", [(0,), (1,)]))  # type: ignore[arg-type]
    assert float(noised.grads["a"].std()) == pytest.approx(expected, rel=0.02)
    total = noised.grads["a"].sum(1) * 5  # The sum over all 20 items.
    on_sum = {"each": 6.0 * 5 * 2, "sum": 6.0, "mean": 6.0 * 20}[to]
    assert float(total.std()) == pytest.approx(on_sum, rel=0.02)
    fact = noised.facts[-1]
    assert (fact.std, fact.each) == {"each": (6.0, True), "sum": (6.0, False), "mean": (120.0, False)}[to]


def test_members_and_lanes_draw_their_own_noise() -> None:
    """With `each`, no two members and no two lanes share noise; a lane's noise does not depend on its neighbours."""
    zero = Signal({"a": torch.zeros(2, 2, 1000)}, sensitivity=torch.ones(2))
    noised = GaussianNoise(1.0, "each")(zero, CLOCK, generators(0, "noise", [(0,), (1,)])).grads["a"].flatten(0, 1)
    assert (torch.corrcoef(noised) - torch.eye(4)).abs().max() < 0.15
    alone = Signal({"a": torch.zeros(1, 2, 1000)}, sensitivity=torch.ones(1))
    assert torch.equal(
        GaussianNoise(1.0, "each")(alone, CLOCK, generators(0, "noise", [(1,)])).grads["a"][0], noised[2:]
    )


def test_a_zero_multiplier_adds_no_noise() -> None:
    """sigma = 0 changes nothing."""
    before = ClipWhole(2.0)(signal((3.0, 4.0)), CLOCK, None)
    after = GaussianNoise(0.0, "sum")(before, CLOCK, generators(0, "noise", [(0,)]))
    assert all(torch.equal(before.grads[n], after.grads[n]) for n in before.grads)


def test_l2_max_is_the_largest_layer_norm_of_the_batch() -> None:
    """Members with layer norms (1, 2), (3, 0.5), clipped at 4: S = 3; clipped at 2: S = 2."""
    for bound, expected in ((4.0, 3.0), (2.0, 2.0)):
        for layers in ((1.0, 2.0), (3.0, 0.5)), ((2.0, 1.0), (0.5, 3.0)):
            after = L2Max()(ClipLayers(bound)(signal(*layers), CLOCK, None), CLOCK, None)
            assert after.sensitivity is not None
            assert float(after.sensitivity[0]) == pytest.approx(expected)
        assert after.facts[-1].kind == "scale"
        assert "data-dependent" in after.facts[-1].reason


def test_l2_max_released_does_not_clip_and_takes_the_mean() -> None:
    """Own maxima 2, 3 and 40, limited to [0.1, 32]: nothing below 32 changes, the scale is (2 + 3 + 32) / 3."""
    after = L2MaxReleased()(signal((1.0, 2.0), (3.0, 0.5), (40.0, 1.0)), CLOCK, None)
    assert norms(after) == pytest.approx([1.0, 2.0, 3.0, 0.5, 32.0, 1.0])
    assert after.sensitivity is not None
    assert float(after.sensitivity[0]) == pytest.approx(37 / 3)
    small = L2MaxReleased()(signal((0.05, 0.01), (1.0, 0.5)), CLOCK, None).sensitivity
    assert small is not None
    assert float(small[0]) == pytest.approx((0.1 + 1.0) / 2)


def test_noise_and_l2_max_need_a_clip() -> None:
    """Without a clip the scale of noise has no meaning, unless the recipe says so; then no epsilon follows."""
    bare = signal((3.0, 4.0))
    with pytest.raises(InputError, match="no clip before it"):
        GaussianNoise(1.0, "each")(bare, CLOCK, generators(0, "noise", [(0,)]))
    with pytest.raises(InputError, match="no clip before it"):
        L2Max()(bare, CLOCK, None)
    said = GaussianNoise(1.0, "each", uncalibrated=True)(bare, CLOCK, generators(0, "noise", [(0,)]))
    assert said.facts[-1].kind == "uncalibrated_noise"
    zero = Signal({"a": torch.zeros(1, 1, 20_000)})
    noised = GaussianNoise(0.5, "each", uncalibrated=True)(zero, CLOCK, generators(0, "noise", [(0,)]))
    assert float(noised.grads["a"].std()) == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_is_positive_and_finite(norm: float) -> None:
    """0, negative, NaN and infinity are refused when the part is built."""
    with pytest.raises(ValueError, match="norm"):
        ClipWhole(norm=norm)


def test_the_mean_divides_by_the_expected_size() -> None:
    """A Poisson batch of 3 with an expected size of 5 is divided by 5."""
    merged = Signal({"a": torch.ones(1, 3, 2)}).mean(5)
    assert merged.averaged == 5
    assert torch.allclose(merged.grads["a"], torch.full((1, 1, 2), 0.6))


FEDERATION = Federation(rounds=3, batch=5, examples_per_client=20, clients=30, clients_per_round=10, local_iterations=4)


def test_facts_come_from_the_real_transforms() -> None:
    """fed_cdp_valid at B = 5: clip 4 on an example, noise of 24 on the sum over the batch."""
    found = facts_of(resolve("defenses", Defense, "fed_cdp_valid")[1], FEDERATION)
    assert [(f.kind, f.norm) for f in found["example"]] == [("clip", 4.0)]
    assert [(f.kind, f.std, f.each) for f in found["batch"]] == [("noise", 24.0, False)]
    assert found["client"] == found["server"] == ()
    on_mean = Defense(title="t", cite="c", unit="example", batch=(ClipWhole(4.0), GaussianNoise(6.0, "mean")))
    assert facts_of(on_mean, FEDERATION)["batch"][1].std == 24.0 * 5


def test_without_generators_there_is_no_noise() -> None:
    """On a guess, an attacker runs only the clip."""
    defense = resolve("defenses", Defense, "fed_cdp")[1]
    before = signal((30.0, 40.0))
    after = apply(defense.stations.example, before, CLOCK, None)
    assert norms(after) == pytest.approx([4.0, 4.0])


@dataclasses.dataclass(frozen=True)
class Decaying:
    """Noise that falls from 6 to 6 / rounds; it accepts the slot and declares its fact."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        return GaussianNoise(6.0 * (1 - clock.round / clock.rounds), "sum")(signal, clock, rngs)


@dataclasses.dataclass(frozen=True)
class Silent:
    """A transform that scales the gradients and declares no fact."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        return dataclasses.replace(signal, grads={n: 1000 * g for n, g in signal.grads.items()})


def test_decaying_noise_is_a_phase_a_round() -> None:
    """Over three rounds the multiplier is 6, 4, 2: one phase for each."""
    defense = Defense(title="t", cite="c", unit="example", example=(ClipWhole(4.0),), batch=(Decaying(),))
    blocks = phases(defense, probe(FEDERATION))
    assert [b.facts["batch"][0].std for b in blocks] == pytest.approx([24.0, 16.0, 8.0])
    assert [(b.rounds, b.local_iterations, b.ends) for b in blocks] == [(1, 4, True)] * 3


def test_a_scale_that_falls_within_a_round_is_accounted() -> None:
    """A part that depends only on the local iteration: 6, 4.5, 3, 1.5 over L = 4."""

    @dataclasses.dataclass(frozen=True)
    class Within:
        def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
            return GaussianNoise(6.0 * (1 - clock.local_iteration / clock.local_iterations), "sum")(signal, clock, rngs)

    defense = Defense(title="t", cite="c", unit="example", example=(ClipWhole(4.0),), batch=(Within(),))
    blocks = phases(defense, probe(FEDERATION))
    assert [b.facts["batch"][0].std for b in blocks] == pytest.approx([24.0, 18.0, 12.0, 6.0])
    assert [(b.rounds, b.local_iterations, b.ends) for b in blocks] == [(3, 1, i == 3) for i in range(4)]


@dataclasses.dataclass(frozen=True)
class Widening:
    """A clip at 1 that widens by 1 in every local iteration."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        return ClipWhole(1.0 + clock.local_iteration)(signal, clock, rngs)


def test_a_widening_clip_has_a_phase_for_each_bound() -> None:
    """Over four local iterations from 1 to 4: the ledger gets each bound."""
    defense = Defense(title="t", cite="c", unit="example", example=(Widening(),))
    assert [b.facts["example"][0].norm for b in phases(defense, probe(FEDERATION))] == [1.0, 2.0, 3.0, 4.0]


@dataclasses.dataclass(frozen=True)
class Waning:
    """Noise that halves with each use, through its memory."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        uses = signal.memory.get("uses", torch.zeros(signal.lanes, 1))
        noisy = GaussianNoise(6.0 * 0.5 ** float(uses[0, 0]), "sum")(signal, clock, rngs)
        return noisy.remembering("uses", uses + 1)


def test_noise_that_depends_on_memory_has_no_epsilon() -> None:
    """The ledger sees only the first use; a second use with the resulting memory shows that the noise changes."""
    defense = Defense(title="t", cite="c", unit="example", example=(ClipWhole(4.0),), batch=(Waning(),))
    found = facts_of(defense, FEDERATION)
    assert found["batch"][0].reason == "the noise over the bound moves with what the defense remembers"
    assert calibrated(found, "example", 5)[0] == ()


def test_a_transform_without_a_fact_removes_the_epsilon() -> None:
    """A change of gradients without a fact becomes a separate fact, and no epsilon follows."""
    defense = Defense(
        title="t", cite="c", unit="example", example=(ClipWhole(4.0), Silent()), batch=(GaussianNoise(6.0, "sum"),)
    )
    found = facts_of(defense, FEDERATION)
    assert [f.kind for f in found["example"]] == ["clip", "other"]
    assert "Silent" in found["example"][1].reason


def test_a_clip_at_the_client_calibrates_noise_at_the_server() -> None:
    """DP-FedAvg (McMahan et al. 2018): clients clip at 2, the server adds 3 * 2 to the sum."""
    stations = Stations(client=(ClipWhole(2.0),), server=(GaussianNoise(3.0, "sum"),))
    zero = Signal({"a": torch.zeros(4, 1, 5_000)})
    clipped = apply(stations.client, zero, CLOCK, None).gathered(4)
    noised = apply(stations.server, clipped, CLOCK, generators(0, "noise", [(0,)]))
    assert float(noised.grads["a"].sum(1).std()) == pytest.approx(6.0, rel=0.03)
    defense = Defense(title="t", cite="c", unit="client", client=stations.client, server=stations.server)
    assert [f.std for f in facts_of(defense, FEDERATION)["server"]] == [6.0]


def test_contradictions_in_a_recipe_are_refused() -> None:
    """A claim for another unit; noise at the server that would depend on the number of updates."""
    with pytest.raises(ValueError, match="claim"):
        Defense(title="t", cite="c", unit="client", claim=MomentsClaim(unit="example", noise_multiplier=6.0))
    with pytest.raises(ValueError, match="server"):
        Defense(title="t", cite="c", unit="client", server=(ClipWhole(1.0), GaussianNoise(1.0, "mean")))


@pytest.mark.parametrize("to", ["sum", "mean"])
def test_one_noise_for_a_poisson_batch_belongs_to_the_batch_station(to: str) -> None:
    """At the example station each member would carry a share of it: an empty batch would have none."""
    noise = GaussianNoise(1.0, to)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="example: a noise for the sum of a Poisson batch"):
        Defense(title="t", cite="c", unit="example", example=(ClipWhole(1.0), noise), batches="poisson")
    Defense(title="t", cite="c", unit="example", example=(ClipWhole(1.0), noise), batches="fixed")
    Defense(title="t", cite="c", unit="example", example=(ClipWhole(1.0),), batch=(noise,), batches="poisson")


@pytest.mark.parametrize(
    ("stations", "words"),
    [
        ({"client": (ClipQuantile(1.0),), "example": (ClipQuantile(4.0),)}, "clip_quantile: appears twice"),
        (
            {"server": (ClipWhole(1.0), ShareOfNoise(1.0))},
            "server: share_of_noise is at the server station",
        ),
        ({"server": (ClipQuantile(1.0), QuantileNoise(1.0, "share", 5.0))}, "expected at the client station"),
        ({"client": (ClipQuantile(1.0), QuantileNoise(1.0, "sum", 5.0))}, "expected at the batch or server station"),
    ],
)
def test_parts_at_the_wrong_station_are_refused(stations: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Defense(title="t", cite="c", unit="client", **stations)


def test_memory_of_single_examples_bypasses_a_clients_noise() -> None:
    """AdaClip's remembered mean of examples affects the client's update after the noise that protects a whole client."""
    defense = Defense(
        title="t",
        cite="c",
        unit="client",
        example=(ClipQuantile(4.0),),
        client=(ClipWhole(1.0), GaussianNoise(6.0, "each")),
    )
    noises, why = calibrated(facts_of(defense, FEDERATION), "client", 5)
    assert noises == ()
    assert why.startswith("what is remembered of single examples")


def test_the_ledger_and_the_training_use_the_same_schedule() -> None:
    """A schedule within the round, at the client: the drawn noise has the strength that the ledger got."""
    rising = Linear(1.0, 9.0, "iteration")
    defense = Defense(title="t", cite="c", unit="client", client=(ClipWhole(1.0), GaussianNoise(rising, "each")))
    told = phases(defense, probe(FEDERATION))[-1].facts["client"][1].std
    net = probe(FEDERATION).network
    x = torch.rand(1, FEDERATION.local_iterations, 1, 1, 28, 28)
    y = torch.full((1, FEDERATION.local_iterations, 1, 10), 0.1)
    clock = defense.clock(FEDERATION, FEDERATION.rounds - 1)
    examples = Examples(x, y, torch.ones(x.shape[:3]), 1)
    update = client_update(net, examples, 0.0, defense.stations, clock, generators(0, "noise", [(0,)]))
    drawn = torch.cat([g.flatten() for g in update.grads.values()])
    assert float(drawn.std()) == pytest.approx(told, rel=0.02)


@dataclasses.dataclass(frozen=True)
class Undeclared:
    """Noise that declares no fact; deviation 0 changes nothing."""

    deviation: float

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        noisy = {n: g + self.deviation * normal(g, rngs, signal.members) for n, g in signal.grads.items()}
        return dataclasses.replace(signal, grads=noisy)


def test_noise_that_states_no_fact_is_not_called_no_noise() -> None:
    defense = Defense(title="t", cite="c", unit="example", example=(ClipWhole(1.0), Undeclared(1e-3)))
    noises, why = calibrated(facts_of(defense, FEDERATION), "example", 5)
    assert noises == ()
    assert why == "noise of its own, not accounted: Undeclared states no `noise` fact"
    # Without a clip, the probing gradients are so large that rounding hides the noise.
    bare = dataclasses.replace(defense, example=(Undeclared(1e-3),))
    assert calibrated(facts_of(bare, FEDERATION), "example", 5)[1] == why
    silent = dataclasses.replace(defense, example=(ClipWhole(1.0), Undeclared(0.0)))
    _, why = calibrated(facts_of(silent, FEDERATION), "example", 5)
    assert why == "no noise; Undeclared changes the gradients and does not say how"


@pytest.mark.slow
@pytest.mark.parametrize("name", names("defenses"))
def test_every_recipe_states_facts(name: str) -> None:
    """No catalog recipe fails on the shapes of a model with and without biases."""
    defense = resolve("defenses", Defense, name)[1]
    found = facts_of(defense, dataclasses.replace(FEDERATION, batch=2))
    assert set(found) == {"example", "batch", "client", "server"}
    undeclared = ("does not say how", "changes in kind")
    assert not any(word in f.reason for station in found.values() for f in station for word in undeclared)


@pytest.mark.parametrize(
    ("unit", "claim"),
    [
        ("client", "moments: {unit: example, noise_multiplier: 6}"),
        ("client", "composition: {unit: example, composition: basic, noise_multiplier: 6}"),
        ("example", "composition: {unit: client, composition: zcdp, noise_multiplier: 6}"),
        ("example", "geyer: {noise_multiplier: 1}"),
        ("example", "flower: {noise_multiplier: 1}"),
    ],
)
def test_a_claim_of_another_unit_is_refused(unit: str, claim: str, tmp_path: Path) -> None:
    """An epsilon for clients cannot be compared with one for examples."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"title: t\ncite: c\nunit: {unit}\nclaim: {{{claim}}}\n")
    other = {"client": "example", "example": "client"}[unit]
    with pytest.raises(InputError, match=f"claim: its unit is '{other}', the defense's is '{unit}'"):
        resolve("defenses", Defense, str(recipe))
