"""Adaptive clips and Flower's wrappers: updates against sequences by hand, places of noise, facts, dropout, resuming."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import facts_of
from torch import Tensor, nn

from leakbench.cell import Cell, Request, identity, resolve_cell
from leakbench.cell.accounting import cell_epsilon
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Local, Network, Parameters, Signal
from leakbench.data.find import load_dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.adaclip import AdaClip, AdaClipReleased
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.quantile import AdaptClip, ClipQuantile, QuantileNoise, QuantileNoiseReleased, value_multiplier
from leakbench.defense.sensitivity import L2Max
from leakbench.defense.share import ShareOfNoise
from leakbench.defense.transform import Transform, apply
from leakbench.execute import _sent, hand_out
from leakbench.experiment.stage_train import train_federation
from leakbench.experiment.victims import draw_victims, view_of
from leakbench.federated.sampling import drop_out
from leakbench.federated.simulate import Round, train
from leakbench.models import build, parameters
from leakbench.privacy.calibration import calibrated
from leakbench.storage.store import open_run

CLOCK = Clock(0, 0, 1, 1)
BATCH = Local(Network(nn.Identity(), {}), torch.zeros(1), torch.zeros(1))
"""At a client's stations a signal has local data, at the server it has none."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Let the tiny federations run on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def members(*norms: float, memory: Parameters | None = None) -> Signal:
    """Return one lane whose members have tensors `a` (3, 4) and `b` (7) with .6 and .8 of the given norms."""
    rng = torch.Generator().manual_seed(3)
    wanted = torch.tensor(norms)
    a, b = torch.randn(1, len(norms), 12, generator=rng), torch.randn(1, len(norms), 7, generator=rng)
    a, b = (share * t / t.norm(dim=2, keepdim=True) * wanted[None, :, None] for share, t in ((0.6, a), (0.8, b)))
    return Signal({"a": a.reshape(1, -1, 3, 4), "b": b}, memory=memory or {}, local=BATCH)


def bound(signal: Signal) -> float:
    return float(signal.memory["clip_bound"].squeeze())


def test_the_bound_follows_the_counts_step_by_step() -> None:
    """C = 4 over batches of 4, with lr .2 and the median: three within, then two, then none.

    3 of 4 within 4: C exp(-.2 (.75 - .5)) = 4 * .9512294 = 3.8049177. Then 3.9 is clipped, 2 of 4: C stays. Then 0 of 4:
    C exp(.1) = 3.8049177 * 1.1051709 = 4.2050844.
    """
    memory: Parameters = {}
    found = []
    for norms in ((1.0, 2.0, 3.9, 9.0), (1.0, 2.0, 3.9, 9.0), (5.0, 6.0, 7.0, 8.0)):
        clipped = ClipQuantile(initial=4.0)(members(*norms, memory=memory), CLOCK, None)
        memory = AdaptClip()(clipped.mean(), CLOCK, None).memory
        found.append(float(memory["clip_bound"].squeeze()))
        assert memory.keys() == {"clip_bound"}
    assert found == pytest.approx([3.8049177, 3.8049177, 4.2050844], rel=1e-6)


def test_at_the_server_the_cohort_counts() -> None:
    """Of m = 4 expected clients 3 came, two within: b = 1/2 + (2/2 - 1/2) / 4 = .625, so C exp(-.2 * .125) = .9753099."""
    updates = [ClipQuantile(initial=1.0)(members(norm), CLOCK, None) for norm in (0.5, 0.9, 3.0)]
    lanes = Signal(
        {n: torch.cat([u.grads[n] for u in updates]) for n in ("a", "b")},
        memory={n: torch.cat([u.memory[n] for u in updates]) for n in updates[0].memory},
    )
    after = AdaptClip()(lanes.gathered(3), Clock(0, 0, 1, 1, cohort=4), None)
    assert bound(after) == pytest.approx(0.9753099, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 100), st.lists(st.floats(0, 1000), min_size=1, max_size=5))
def test_quantile_clip_is_the_whole_clip_at_the_remembered_bound(at: float, norms: list[float]) -> None:
    """The closed form: equal to `clip_whole` up to rounding; zero stays zero and does not count."""
    before = members(*norms, memory={"clip_bound": torch.full((1, 1), at)})
    found, expected = ClipQuantile(initial=7.0)(before, CLOCK, None), ClipWhole(at)(before, CLOCK, None)
    for name in before.grads:
        torch.testing.assert_close(found.grads[name], expected.grads[name], rtol=1e-5, atol=1e-6)
    assert found.sensitivity is not None
    assert float(found.sensitivity[0]) == pytest.approx(at)
    assert found.facts[0].norm == pytest.approx(at)
    whole = torch.cat([g.flatten(2) for g in before.grads.values()], 2).norm(dim=2)[0]
    if (whole / at - 1).abs().min() > 1e-3:
        votes = [0.0 if n == 0 else 0.5 if n < at else -0.5 for n in whole.tolist()]
        assert float(found.memory["within_bound"].squeeze()) == sum(votes)


def test_a_member_of_just_the_bound_votes_for_it() -> None:
    """Andrew et al.: b_i = 1[norm <= C]. Members of norms 5, 10 and 0 at a bound of 5: 1/2 - 1/2 + 0, and the first alone 1/2."""
    three = torch.tensor([[[3.0, 4.0], [6.0, 8.0], [0.0, 0.0]]])
    for grads, votes in ((three, 0.0), (three[:, :1], 0.5)):
        clipped = ClipQuantile(initial=5.0)(Signal({"a": grads}, local=BATCH), CLOCK, None)
        assert float(clipped.memory["within_bound"].squeeze()) == votes


def test_adaclip_step_by_step() -> None:
    """One coordinate, so that b = s; beta = .5, clip at 10, v within [.0001, .04], s starts at sqrt(4e-6) = .002.

    g = .3: w = 150, clipped to 10: .02. m = .01, v = .0004, s^2 = 2e-6 + 2e-4 = .000202.
    g = .11: w = .1 / .0142 = 7.04, untouched. m = .005 + .055 = .06, v = .1^2 = .01, s^2 = .000101 + .005 = .005101.
    g = -.5: w = -.56 / .0714 = -7.84. m = .03 - .25 = -.22, v = .3136, cut to .04, s^2 = .0025505 + .02 = .0225505.
    """
    clip = AdaClip(multiplier=0.0, norm=10.0, beta1=0.5, beta2=0.5, floor=0.0001, ceiling=0.04)
    assert sequence(clip, (0.3, 0.11, -0.5)) == [
        pytest.approx((0.02, 0.01, 0.000202**0.5), rel=1e-5),
        pytest.approx((0.11, 0.06, 0.005101**0.5), rel=1e-5),
        pytest.approx((-0.5, -0.22, 0.0225505**0.5), rel=1e-5),
    ]


def test_released_adaclip_step_by_step() -> None:
    """v is measured from m after its step, and s takes v itself. beta = .5, v within [.25, 4], s starts at 1.

    g = 3: w = 3, clipped to 1. m = .5, v = (1 - .5)^2 = .25, s = .5 + .125 = .625.
    g = 5: w = 7.2, clipped: .5 + .625 = 1.125. m = .8125, v = .3125^2, raised to .25, s = .3125 + .125 = .4375.
    g = .8: untouched. m = .80625, v raised to .25, s = .21875 + .125 = .34375.
    """
    clip = AdaClipReleased(noise_variance=0.0, beta1=0.5, beta2=0.5, floor=0.25, ceiling=4.0)
    assert sequence(clip, (3.0, 5.0, 0.8)) == [
        pytest.approx((1.0, 0.5, 0.625)),
        pytest.approx((1.125, 0.8125, 0.4375)),
        pytest.approx((0.8, 0.80625, 0.34375)),
    ]


def sequence(clip: Transform, gradients: tuple[float, ...]) -> list[tuple[float, float, float]]:
    """Return (released, m, s) after each of one member's gradients of one coordinate."""
    found: list[tuple[float, float, float]] = []
    memory: Parameters = {}
    for g in gradients:
        after = clip(Signal({"a": torch.full((1, 1, 1), g)}, memory=memory), CLOCK, None)
        memory = after.memory
        mean, deviation = memory["adaclip.mean.a"], memory["adaclip.deviation.a"]
        found.append((float(after.grads["a"]), float(mean), float(deviation)))
    return found


def test_adaclip_scales_by_all_coordinates_and_averages_over_members() -> None:
    """s = (.1, .1, .2) over two parameters: b = sqrt(s) sqrt(.4). Two members: the means of g~ and of v enter m and s."""
    held = {"adaclip.mean.a": 0.0, "adaclip.mean.b": 0.0, "adaclip.deviation.a": 0.1, "adaclip.deviation.b": 0.2}
    memory = {n: torch.full((1, 1, 2 if n.endswith("a") else 1), v) for n, v in held.items()}
    signal = Signal({"a": torch.zeros(1, 2, 2), "b": torch.tensor([[[9.0], [0.1]]])}, memory=memory)
    clip = AdaClip(multiplier=0.5, floor=0.001, ceiling=1.0)
    after = clip(signal, CLOCK, None)
    b = (0.2 * 0.4) ** 0.5  # .2828: the first member is clipped to it, the second is within.
    assert after.grads["b"].flatten().tolist() == pytest.approx([b, 0.1])
    assert float(after.memory["adaclip.mean.b"]) == pytest.approx(0.01 * (b + 0.1) / 2)
    variances = (b**2 - 0.25 * b**2, 0.001)  # The second one, .01 - .02, is raised to the floor.
    assert float(after.memory["adaclip.deviation.b"]) == pytest.approx((0.9 * 0.04 + 0.1 * sum(variances) / 2) ** 0.5)


@pytest.mark.parametrize("clip", [AdaClip(multiplier=0.0), AdaClipReleased(noise_variance=0.0)])
def test_adaclip_remembers_lane_by_lane(clip: Transform) -> None:
    lanes = {"a": torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1))}
    together, again = clip(Signal(lanes), CLOCK, None), None
    for lane in range(3):
        alone = clip(Signal({"a": lanes["a"][lane : lane + 1]}), CLOCK, None)
        for name, held in alone.memory.items():
            torch.testing.assert_close(together.memory[name][lane : lane + 1], held)
    again = clip(Signal(lanes, memory=together.memory), CLOCK, None)
    assert again.memory["adaclip.mean.a"].shape == (3, 1, 4)


@pytest.mark.parametrize("part", [AdaClip(multiplier=3.0), AdaClipReleased(noise_variance=3.0)])
def test_adaclip_noise_is_shaped_by_b(part: Transform) -> None:
    """sigma b on each member and coordinate, within 2 %."""
    memory = {
        "adaclip.deviation.a": torch.full((1, 1, 20_000), 0.01),
        "adaclip.deviation.b": torch.full((1, 1, 20_000), 0.04),
    }
    zero = {n: torch.zeros(1, 2, 20_000) for n in ("a", "b")}
    noised = part(Signal(zero, memory=memory), CLOCK, generators(0, "noise", [(0,)])).grads
    total = 20_000 * 0.05
    assert float(noised["a"].std()) == pytest.approx(3 * (0.01 * total) ** 0.5, rel=0.02)
    assert float(noised["b"].std()) == pytest.approx(3 * (0.04 * total) ** 0.5, rel=0.02)
    assert abs(float(torch.corrcoef(noised["a"][0])[0, 1])) < 0.03


def clients(lanes: int, size: int, scale: float) -> Signal:
    return Signal({"a": torch.zeros(lanes, 1, size)}, sensitivity=torch.full((lanes,), scale), local=BATCH)


def test_shares_add_up_to_the_servers_noise() -> None:
    """Over 500 rounds of m = 8 clients: the mean update is noised by sigma C / m = 3 * 2 / 8 either way, with mean 0."""
    m, rounds, size = 8, 500, 100
    clock = Clock(0, 0, 1, 1, cohort=m)
    drawn = generators(0, "noise", [(i,) for i in range(rounds * m)])
    at_clients = ShareOfNoise(3.0)(clients(rounds * m, size, 2.0), clock, drawn)
    assert float(at_clients.grads["a"].std()) == pytest.approx(6 / 8**0.5, rel=0.02)
    one = generators(0, "server noise", [(i,) for i in range(rounds)])
    at_server = GaussianNoise(3.0, "sum")(clients(rounds * m, size, 2.0).gathered(m), clock, one)
    for signal in (at_clients.gathered(m), at_server):
        means = signal.mean(m).grads["a"]
        assert float(means.std()) == pytest.approx(6 / 8, rel=0.02)
        assert abs(float(means.mean())) < 4 * 0.75 / (rounds * size) ** 0.5
        assert float((means / 0.75).pow(4).mean()) == pytest.approx(3, rel=0.05)  # As a Gaussian's.


def test_noise_on_the_count_of_a_batch_depends_on_the_batch_size() -> None:
    """s_b = m / 20 by default: at the batch station m is the batch's size, not the cohort's; z_delta follows from it."""
    clipped = ClipQuantile(2.0)(members(1.0, 2.0, 3.0, 4.0), CLOCK, None)
    noised = QuantileNoise(multiplier=0.3, to="sum")(clipped.mean(), Clock(0, 0, 1, 1, cohort=1000), None)
    told = f"the noise of the count of norms, 0.2, is in it (the values alone have {(0.3**-2 - 0.4**-2) ** -0.5:.4g})"
    assert noised.facts[-1].reason == told


def test_noise_of_a_quantile_clip_counts_in_units_of_its_bound() -> None:
    """Noise in units of its bound has its own multiplier, after any earlier clip."""
    narrow = ClipWhole(0.5)(members(1.0, 4.0), CLOCK, None)
    assert [f.rescales for f in ClipQuantile(2.0)(narrow, CLOCK, None).facts if f.kind == "clip"] == [False, True]


@pytest.mark.parametrize("to", ["sum", "share"])
def test_quantile_noise_has_its_two_standard_deviations(to: str) -> None:
    """z = 3 with s_b = 2 on the count: z_delta = (1/9 - 1/16)^(-1/2) = 4.5356 on the sum of values, C = 2."""
    m, lanes = 4, 4000
    clock = Clock(0, 0, 1, 1, cohort=m)
    clipped = ClipQuantile(2.0)(clients(lanes * m, 10, 2.0), clock, None)
    before = clipped.remembering("within_bound", torch.full((lanes * m, 1), 0.5))
    noise = QuantileNoise(multiplier=3.0, to=to, count_std=2.0)  # type: ignore[arg-type]
    if to == "share":
        after = noise(before, clock, generators(0, "noise", [(i,) for i in range(lanes * m)])).gathered(m)
    else:
        after = noise(before.gathered(m), clock, generators(0, "noise", [(i,) for i in range(lanes)]))
    total, count = after.grads["a"].sum(1), after.memory["within_bound"].sum(1)
    assert float(total.std()) == pytest.approx(4.535574 * 2, rel=0.02)
    assert float(count.std()) == pytest.approx(2.0, rel=0.03)
    assert float(count.mean()) == pytest.approx(2.0, abs=0.13)
    assert [f.kind for f in after.facts] == ["clip", "scale", "clip", "noise"]
    assert after.facts[-1].std == pytest.approx(6.0 if to == "sum" else 3.0)


def test_the_released_step_has_the_wrong_sign_and_its_noise_uses_the_new_bound() -> None:
    """All of 4 clipped at .1.

    The text's C rises to .1 e^.1, the released code's falls to .1 e^-.1, and its noise has that scale.
    """
    clock = Clock(0, 0, 1, 1, cohort=4)
    big = {"a": torch.ones(1, 4, 20_000)}
    clipped = ClipQuantile(initial=0.1)(Signal(big), clock, None)
    assert bound(AdaptClip()(clipped, clock, None)) == pytest.approx(0.1 * math.e**0.1)
    released = QuantileNoiseReleased(multiplier=1.0, count_std=5.0)
    assert bound(released(clipped, clock, None)) == pytest.approx(0.1 * math.e**-0.1)
    noised = released(clipped, clock, generators(0, "server noise", [(0,)]))
    spread = float((noised.grads["a"] - clipped.grads["a"]).sum(1).std())
    assert spread == pytest.approx(value_multiplier(1.0, 5.0, "") * bound(noised), rel=0.02)
    assert spread != pytest.approx(0.1, rel=0.05)
    said = noised.facts[-1]
    assert (said.kind, said.only) == ("noise", True) and said.std == pytest.approx(spread, rel=0.02)


LOUD = 1e9
NEUTRAL: dict[str, dict[str, tuple[Transform, ...]]] = {
    "flower fixed, server": {"client": (ClipWhole(LOUD),), "server": (GaussianNoise(0.0, "sum"),)},
    "flower fixed, client": {"client": (ClipWhole(LOUD), ShareOfNoise(0.0))},
    "flower adaptive, server": {
        "client": (ClipQuantile(LOUD),),
        "server": (QuantileNoise(0.0, "sum"), AdaptClip()),
    },
    "flower adaptive, client": {
        "client": (ClipQuantile(LOUD), QuantileNoise(0.0, "share")),
        "server": (AdaptClip(),),
    },
    "flower adaptive, released": {"server": (ClipQuantile(LOUD), QuantileNoiseReleased(0.0))},
    "quantile": {"example": (ClipQuantile(LOUD), GaussianNoise(0.0, "each")), "batch": (AdaptClip(),)},
    "adaclip": {"example": (AdaClip(multiplier=0.0, norm=LOUD),)},
    "adaclip, client": {"client": (AdaClip(multiplier=0.0, norm=LOUD),)},
}


def defense(**fields: object) -> Defense:
    return Defense(title="t", cite="c", **{"unit": "client", **fields})  # type: ignore[arg-type]


def rounds_of(some: Defense, rounds: int = 2, dropout: float = 0.0, done: Round | None = None) -> list[Round]:
    """Rounds of 3 of 6 clients on the digits."""
    _, recipe, digits = load_dataset("digits")
    model = build("mlp", digits.shape, digits.classes, generator(0, "model"))
    handed = recipe.federation.partition(digits.train_targets, 6, 20, generator(0, "partition"))
    federation = Federation(
        rounds, 4, 20, clients=6, clients_per_round=3, local_iterations=3, learning_rate=0.1, dropout=dropout
    )
    return list(train(Network(model, parameters(model)), digits, handed, federation, some, 0, done))


def start() -> Parameters:
    digits = load_dataset("digits")[2]
    return parameters(build("mlp", digits.shape, digits.classes, generator(0, "model")))


@pytest.mark.parametrize("name", NEUTRAL)
def test_an_infinite_clip_and_no_noise_are_plain_fedavg(name: str) -> None:
    """Two rounds give the parameters of FedAvg; AdaClip's change of coordinates has rounding errors."""
    plain, found = rounds_of(defense())[-1], rounds_of(defense(**NEUTRAL[name]))[-1]
    for p in plain.parameters:
        torch.testing.assert_close(found.parameters[p], plain.parameters[p], rtol=1e-4, atol=2e-6)
    assert found.memory.keys() == {k for k in found.memory if k.startswith("adaclip.")} | (
        set() if "adaclip" in name or "fixed" in name else {"clip_bound"}
    )


FEDERATION = Federation(3, 4, 20, clients=40, clients_per_round=16, local_iterations=2)


@pytest.mark.parametrize(
    ("name", "z"),
    [
        ("flower_fixed_server", 1.0),
        ("flower_fixed_client", 1.0),
        ("flower_fixed_client_as_released", 2**0.5),
        ("flower_adaptive_server", 1.0),
        ("flower_adaptive_client", 1.0),
        ("quantile_valid", 6.0),
        ("quantile_client_valid", 6.0),
    ],
)
def test_the_ledger_sees_the_noise_of_values_and_count_together(name: str, z: float) -> None:
    """Noise over bound on the sum of m = 16 is z, for clients and server.

    An adaptive noise reports that it includes the count's.
    """
    _, recipe = resolve("defenses", Defense, name)
    done = facts_of(recipe, FEDERATION)
    noises, why = calibrated(done, recipe.unit, 4)
    assert why == ""
    on_sum = sum((n.std / n.bound) ** 2 * (16 if n.each else 1) for n in noises)
    assert on_sum**0.5 == pytest.approx(z)
    said = [f.reason for station in done.values() for f in station if f.kind == "noise"]
    assert any("count" in reason for reason in said) == ("fixed" not in name)


@pytest.mark.parametrize("name", ["quantile", "quantile_client", "flower_adaptive_server_as_released"])
def test_no_epsilon_follows_from_a_count_without_noise(name: str) -> None:
    _, recipe = resolve("defenses", Defense, name)
    noises, why = calibrated(facts_of(recipe, FEDERATION), recipe.unit, 4)
    assert noises == ()
    assert "data-dependent" in why


@pytest.mark.parametrize("name", ["adaclip", "adaclip_client"])
def test_noises_of_adaclip_do_not_add_up(name: str) -> None:
    """The squares of each released member enter s, so each noise counts alone: 6, not 6 sqrt(m)."""
    _, recipe = resolve("defenses", Defense, name)
    noises, why = calibrated(facts_of(recipe, FEDERATION), recipe.unit, 4)
    assert why == ""
    assert [(n.std / n.bound, n.alone) for n in noises] == [(6.0, True)]


def test_noise_on_values_complements_noise_on_the_count() -> None:
    """Both together are worth z: (z_delta^-2 + (2 s_b)^-2)^(-1/2); settings of the reference: z = 6, m = 100 gives 7.5."""
    assert value_multiplier(6.0, 5.0, "") == pytest.approx(7.5)
    both = (value_multiplier(1.0, 0.7, "") ** -2 + 1.4**-2) ** -0.5
    assert both == pytest.approx(1.0)


ADAPTIVE = """
title: t
cite: c
unit: client
client: [{clip_quantile: {initial: 0.01}}]
server: [{quantile_noise: {multiplier: 1.0, to: sum}}, adapt_clip]
"""


def test_more_noise_than_the_count_has_is_refused_where_the_cell_is_resolved(tmp_path: Path) -> None:
    """Flower's default s_b = m / 20: z = 1 needs m > 10."""
    path = tmp_path / "adaptive.yaml"
    path.write_text(ADAPTIVE)
    with pytest.raises(
        InputError, match=r"multiplier 1 with a noise of 0\.5 on the count, expected less than"
    ) as refused:
        resolve_cell(Request(defense=str(path), dataset="digits", clients_per_round=10), None)
    assert "\n" not in str(refused.value)
    resolve_cell(Request(defense=str(path), dataset="digits", clients_per_round=11), None)


@pytest.mark.parametrize("part", [QuantileNoise(1.0, "sum"), QuantileNoiseReleased(1.0), AdaptClip()])
def test_without_a_count_there_is_nothing_to_adapt_to(part: Transform) -> None:
    with pytest.raises(InputError, match="put clip_quantile before it"):
        part(ClipWhole(1.0)(members(1.0), CLOCK, None), CLOCK, None)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (QuantileNoise(1.0, "sum", 5.0), "quantile_noise"),
        (QuantileNoiseReleased(1.0, 5.0), "quantile_noise_released"),
    ],
)
@pytest.mark.parametrize("between", [L2Max(), ClipWhole(1.0), GaussianNoise(1.0, "each")])
def test_no_part_may_be_between_a_clip_and_its_noise(part: Transform, name: str, between: Transform) -> None:
    """Otherwise the restated bound would hide the other part's effect on the scale."""
    with pytest.raises(InputError, match=f"^{name}: another part .* put it right after clip_quantile"):
        apply((ClipQuantile(1.0), between, part), members(2.0), CLOCK, None)


@pytest.mark.parametrize(
    ("part", "fields", "words"),
    [
        (ClipQuantile, {"initial": 0.0}, "greater than 0"),
        (AdaptClip, {"target": 1.0}, "less than 1"),
        (QuantileNoise, {"multiplier": 1.0, "to": "each"}, "'sum' or 'share'"),
        (QuantileNoise, {"multiplier": 1.0, "to": "sum", "count_std": 0.0}, "greater than 0"),
        (AdaClip, {"multiplier": 1.0, "floor": 0.1, "ceiling": 0.01}, "expected at most the ceiling"),
        (AdaClip, {"multiplier": -1.0}, "greater than or equal to 0"),
        (AdaClipReleased, {"floor": 1.0}, "expected at most the ceiling"),
    ],
)
def test_wrong_fields_are_refused(part: type, fields: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        construct(part, fields)


@pytest.mark.parametrize("part", [ShareOfNoise(1.0), AdaClip(multiplier=1.0)])
def test_noise_without_a_scale_is_refused(part: Transform) -> None:
    """A share needs an earlier clip; after AdaClip, whose noise has a shape, another noise has no scale."""
    with pytest.raises(InputError, match="no clip before it"):
        apply((part, GaussianNoise(1.0, "each")), members(1.0), CLOCK, None)


CLIENTS_ADAPT = {"client": (ClipQuantile(0.05),), "server": (AdaptClip(),)}


def test_adaptive_clips_resume_after_an_interruption() -> None:
    """Three rounds at once, and one round, an interruption and two more: bit-identical, including bound and noise."""
    for stations in (CLIENTS_ADAPT, NEUTRAL["quantile"], {"example": (AdaClip(multiplier=0.1),)}):
        some = defense(**stations)
        whole = rounds_of(some, 3)
        rest = rounds_of(some, 3, done=whole[0])
        assert [r.round for r in rest] == [1, 2]
        for before, after in zip(whole[1:], rest, strict=True):
            assert before.memory.keys() == after.memory.keys() != set()
            for held in ("memory", "parameters"):
                assert all(torch.equal(t, getattr(after, held)[n]) for n, t in getattr(before, held).items())
        assert any(not torch.equal(t, whole[2].memory[n]) for n, t in whole[0].memory.items())


def test_the_bound_rises_every_round_if_all_are_clipped() -> None:
    """Updates are far above .05: C = .05 e^.1, .05 e^.2, and the model moves by at most its round's C."""
    states = rounds_of(defense(**CLIENTS_ADAPT), 2)
    assert [float(s.memory["clip_bound"]) for s in states] == pytest.approx([0.05 * math.e**0.1, 0.05 * math.e**0.2])
    assert length(states[0].parameters, start()) <= 0.05 * 1.0001


def length(after: Parameters, before: Parameters) -> float:
    return float(torch.cat([(after[n] - before[n]).flatten() for n in before]).norm())


def test_example_bounds_carry_over_iterations_and_their_mean_over_rounds() -> None:
    """L = 3 iterations in which every gradient is clipped: C e^.3 after a round, at every client."""
    states = rounds_of(defense(unit="example", example=(ClipQuantile(1e-3),), batch=(AdaptClip(),)), 2)
    assert [float(s.memory["clip_bound"]) for s in states] == pytest.approx([1e-3 * math.e**0.3, 1e-3 * math.e**0.6])


def test_a_live_attacker_uses_the_bound_of_its_round(tmp_path: Path) -> None:
    """At round 1 the server sent C e^.1, and the leaked updates have exactly that length."""
    path = tmp_path / "adaptive.yaml"
    path.write_text(ADAPTIVE.replace("{quantile_noise: {multiplier: 1.0, to: sum}}, ", ""))
    request = Request(
        defense=str(path),
        attack="cpl",
        dataset="digits",
        protocol="live",
        leak_rounds=("1",),
        victims=3,
        taps=("type-1",),
        batch=2,
    )
    small = dataclasses.replace(request, train_rounds=1, clients=6, clients_per_round=3, local_iterations=2)
    cell = resolve_cell(small, None)
    partition = hand_out(cell)
    with open_run(tmp_path / "run", identity(cell, "test")) as run:
        train_federation(cell, run, partition, lambda phase, done, total: None)
        sent = _sent(cell, run, 1)
    expected = 0.01 * math.e**0.1
    assert float(sent.network.memory["clip_bound"]) == pytest.approx(expected)
    view = view_of(cell, "type-1", 1, draw_victims(cell, "type-1", 1, partition), torch.arange(3), sent)
    step = cell.settings.federation.learning_rate * 2
    norms = torch.cat([u.flatten(1) for u in view.update.values()], 1).norm(dim=1) * step
    assert norms.tolist() == pytest.approx([expected] * 3, rel=1e-4)


def came(states: list[Round]) -> list[int]:
    """The number of clients' updates in each round."""
    totals = [0, *(int(s.counts.rounds.sum()) for s in states)]
    return [b - a for a, b in itertools.pairwise(totals)]


def test_clients_drop_out_independently() -> None:
    """Probability 0 keeps all clients, 1 none, .2 a fifth less."""
    everyone = torch.arange(10_000)
    assert torch.equal(drop_out(everyone, 0.0, generator(0, "dropout", 0)), everyone)
    assert len(drop_out(everyone, 1.0, generator(0, "dropout", 0))) == 0
    assert len(drop_out(everyone, 0.2, generator(0, "dropout", 0))) == pytest.approx(8000, abs=160)


def test_a_round_that_aborts_changes_and_releases_nothing() -> None:
    """Of 6 rounds with dropout .3 some abort: model, memory and counts stay; all 3 clients take part in the others."""
    states = rounds_of(defense(**CLIENTS_ADAPT, on_dropout="abort"), 6, dropout=0.3)
    assert set(came(states)) == {0, 3}
    weights, memory = [start(), *(s.parameters for s in states)], [{}, *(s.memory for s in states)]
    for index, (number, state) in enumerate(zip(came(states), states, strict=True)):
        assert (length(weights[index + 1], weights[index]) == 0) == (number == 0)
        assert (memory[index] == memory[index + 1]) == (number == 0)
        assert math.isnan(state.update_scale) == (number == 0)
        assert math.isfinite(state.loss)
    none = rounds_of(defense(on_dropout="abort"), 2, dropout=1.0)[-1]
    assert length(none.parameters, start()) == 0
    assert int(none.counts.updates.sum()) == int(none.counts.uses.sum()) == 0


def test_a_continued_round_divides_the_remaining_sum_by_the_expected_cohort() -> None:
    """Each remaining client adds noise of 1, over K_t = 3: sqrt(left) / 3 in every coordinate."""
    loud = (ClipWhole(1e-6), GaussianNoise(1e6, "each"))
    states = rounds_of(defense(client=loud), 6, dropout=0.4)
    weights = [start(), *(s.parameters for s in states)]
    assert len(set(came(states))) > 1
    for index, left in enumerate(came(states)):
        moved = torch.cat([(weights[index + 1][n] - weights[index][n]).flatten() for n in weights[0]])
        assert float(moved.std()) == pytest.approx(left**0.5 / 3, rel=0.05, abs=1e-9)


def test_the_same_clients_are_drawn_whether_they_fail_or_not() -> None:
    """A first round in which no client failed equals the round without dropout."""
    plain = rounds_of(defense(), 1)[0]
    for dropout in (1e-9, 0.0):
        assert all(
            torch.equal(t, plain.parameters[n]) for n, t in rounds_of(defense(), 1, dropout)[0].parameters.items()
        )


def cell(**asked: object) -> Cell:
    small = {"attack": "cpl", "clients": 6, "clients_per_round": 3, "train_rounds": 2, "dataset": "digits"}
    return resolve_cell(Request(**{**small, **asked}), None)  # type: ignore[arg-type]


def test_dropout_is_part_of_the_identity_where_it_is_not_zero(tmp_path: Path) -> None:
    """on_dropout matters only then."""
    hashes = []
    for kind in ("continue", "abort"):
        path = tmp_path / kind / "mine.yaml"
        path.parent.mkdir()
        path.write_text(f"title: t\ncite: c\nunit: client\non_dropout: {kind}\n")
        hashes.append([cell(defense=str(path), dropout=d).hash for d in (None, 0.0, 0.2, 0.3)])
    assert hashes[0][0] == hashes[0][1] == hashes[1][0] == hashes[1][1]
    assert len({*hashes[0], *hashes[1]}) == 5
    with pytest.raises(InputError, match=r"dropout: got 1\.5, expected a probability"):
        cell(dropout=1.5)


@pytest.mark.slow
def test_noise_of_clients_that_may_drop_out_does_not_count() -> None:
    """Each client's 6 C counts alone against q = 1 if others may drop out; the rest is unchanged."""

    def valid(name: str, dropout: float) -> tuple[float | None, float | None, str]:
        some = cell(defense=name, dropout=dropout)
        found = cell_epsilon(some.defense, some.data, some.settings, hand_out(some), None)
        return found.valid, found.sigma_effective, found.reason

    full, sigma, _ = valid("fed_sdp_client_valid", 0.0)
    assert sigma == pytest.approx(6 * 3**0.5)
    fewer, alone, reason = valid("fed_sdp_client_valid", 0.2)
    assert alone == pytest.approx(6.0)
    assert full is not None
    assert fewer is not None
    assert fewer > full
    assert "clients drop out with probability 0.2" in reason
    assert valid("fed_sdp_valid", 0.2) == valid("fed_sdp_valid", 0.0)
    assert valid("flower_fixed_client", 0.2) == valid("flower_fixed_client", 0.0)


def test_adaptive_clips_are_differentiable() -> None:
    """An attacker unrolls the clip: the released gradient is differentiable in the input gradient, with no NaN at zero."""
    for part in (ClipQuantile(1.0), AdaClip(multiplier=1.0)):
        g = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]], requires_grad=True)
        after = part(Signal({"a": g}, memory={}), CLOCK, None)
        total: Tensor = after.grads["a"].square().sum() + sum(m.sum() for m in after.memory.values())
        (slope,) = torch.autograd.grad(total, g)
        assert slope.isfinite().all()
