"""Variants of clip and noise compared: shared layers against flat and layer-wise, Laplace noise, recipes and their variants."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import facts_of

from leakbench.core.errors import InputError
from leakbench.core.recipe import catalog_folder, construct, names, resolve
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipLayers, ClipLayersShared, ClipWhole
from leakbench.defense.noise import GaussianNoise, LaplaceNoise
from leakbench.privacy.calibration import calibrated

CLOCK = Clock(0, 0, 1, 1)
FEDERATION = Federation(rounds=3, batch=5, examples_per_client=20, clients=30, clients_per_round=10, local_iterations=4)
RECIPES = {name: resolve("defenses", Defense, name)[1] for name in names("defenses")}


def signal(*norms: float) -> Signal:
    """Return one member whose tensors have the given norms."""
    return Signal({f"p{i}": torch.full((1, 1, 4), n / 2) for i, n in enumerate(norms)})


def norms(signal: Signal) -> list[float]:
    return [float(g.norm()) for g in signal.grads.values()]


def test_shared_layers_keep_the_whole_within_its_bound() -> None:
    """C = 4 over 4 tensors: 2 each, so 4 together; the layer-wise clip at 4 allows 8."""
    before = signal(10.0, 20.0, 30.0, 1.0)
    assert norms(ClipLayersShared(4.0)(before, CLOCK, None)) == pytest.approx([2.0, 2.0, 2.0, 1.0])
    assert norms(ClipLayers(4.0)(before, CLOCK, None)) == pytest.approx([4.0, 4.0, 4.0, 1.0])
    shared, layers = ClipLayersShared(4.0)(before, CLOCK, None), ClipLayers(4.0)(before, CLOCK, None)
    assert (shared.facts[-1].norm, layers.facts[-1].norm) == (4.0, 8.0)
    assert shared.sensitivity is not None and layers.sensitivity is not None
    assert (shared.sensitivity.tolist(), layers.sensitivity.tolist()) == ([4.0], [4.0])


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 100), st.lists(st.floats(0, 1000), min_size=1, max_size=6))
def test_no_member_exceeds_a_shared_bound_and_small_members_are_unchanged(bound: float, sizes: list[float]) -> None:
    before = signal(*sizes)
    after = ClipLayersShared(bound)(before, CLOCK, None)
    assert math.hypot(*norms(after)) <= bound * (1 + 1e-5)
    if len(sizes) == 1:
        assert torch.allclose(after.grads["p0"], ClipWhole(bound)(before, CLOCK, None).grads["p0"])
    if max(sizes) <= 0.999 * bound / math.sqrt(len(sizes)):
        assert all(torch.equal(before.grads[n], after.grads[n]) for n in before.grads)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, "4"])
def test_a_shared_bound_is_positive_and_finite(norm) -> None:
    with pytest.raises(InputError, match=r"^norm: [^\n]*$"):
        construct(ClipLayersShared, {"norm": norm})


def test_laplace_noise_is_laplace() -> None:
    """Scale .5: standard deviation .707, mean magnitude .5, P(|x| > b ln 10) = .1, and members do not share it."""
    zero = Signal({"a": torch.zeros(2, 2, 100_000)})
    drawn = LaplaceNoise(0.5)(zero, CLOCK, generators(0, "noise", [(0,), (1,)])).grads["a"].flatten(0, 1)
    assert drawn.std(1).tolist() == pytest.approx([math.sqrt(0.5)] * 4, rel=0.02)
    assert drawn.abs().mean(1).tolist() == pytest.approx([0.5] * 4, rel=0.02)
    assert float((drawn.abs() > 0.5 * math.log(10)).float().mean()) == pytest.approx(0.1, rel=0.03)
    assert (torch.corrcoef(drawn) - torch.eye(4)).abs().max() < 0.02


@pytest.mark.parametrize("part", [LaplaceNoise(0.0), GaussianNoise(0.0, "each", uncalibrated=True)])
def test_without_a_scale_or_generators_there_is_no_noise(part) -> None:
    before = signal(3.0, 4.0)
    for made, rngs in ((part, generators(0, "noise", [(0,)])), (LaplaceNoise(1.0), None)):
        after = made(before, CLOCK, rngs)
        assert all(torch.equal(before.grads[n], after.grads[n]) for n in before.grads)


def test_no_epsilon_follows_from_laplace_noise() -> None:
    """Also not behind an L2 clip."""
    defense = Defense(title="t", cite="c", unit="example", example=(ClipWhole(4.0), LaplaceNoise(1.0)))
    noises, why = calibrated(facts_of(defense, FEDERATION), "example", FEDERATION.batch)
    assert noises == ()
    assert why


@pytest.mark.parametrize(("fields", "message"), [({"scale": -1.0}, "scale: "), ({"scale": math.nan}, "scale: ")])
def test_a_wrong_scale_is_refused_in_one_line(fields, message) -> None:
    with pytest.raises(InputError, match=f"^{message}[^\n]*$"):
        construct(LaplaceNoise, fields)


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("noise_gaussian", 0.1),
        ("noise_gaussian_client", 0.1),
        ("noise_gaussian_as_released", 0.01),
        ("noise_laplace", 0.1),
        ("noise_laplace_as_released", 0.01 * math.sqrt(2)),
    ],
)
def test_noise_has_the_standard_deviation_of_its_recipe(name: str, std: float) -> None:
    """A variance of .01 in the text; a standard deviation, or a Laplace scale, of .01 in the released notebook."""
    defense = RECIPES[name]
    [part] = (*defense.example, *defense.client)
    noised = part(Signal({"a": torch.zeros(1, 2, 50_000)}), CLOCK, generators(0, "noise", [(0,)]))
    assert float(noised.grads["a"].std()) == pytest.approx(std, rel=0.02)


def stations(name: str) -> list[tuple[object, ...]]:
    d = RECIPES[name]
    return [d.example, d.batch, d.client, d.server]


@pytest.mark.parametrize("name", [n for n in RECIPES if n.endswith("_flat")])
def test_a_flat_variant_differs_only_in_its_clip(name: str) -> None:
    """Same sigma, same C, same places: only clip_layers became clip_whole."""
    layered = stations(name.removesuffix("_flat"))
    assert any(isinstance(t, ClipLayers) for s in layered for t in s)
    flattened = [tuple(ClipWhole(t.norm) if isinstance(t, ClipLayers) else t for t in s) for s in layered]
    assert stations(name) == flattened
    assert RECIPES[name].batches == RECIPES[name.removesuffix("_flat")].batches


@pytest.mark.parametrize("name", [n for n in RECIPES if n.endswith("_valid")])
def test_a_valid_recipe_has_calibrated_noise(name: str) -> None:
    """The ledger counts noise for every `_valid` recipe."""
    noises, why = calibrated(facts_of(RECIPES[name], FEDERATION), RECIPES[name].unit, FEDERATION.batch)
    assert noises
    assert why == ""


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("geyer", "median"),
        ("geyer_as_released", "inverted"),
        ("prune_threshold", "no noise"),
        ("prune_threshold_as_released", "last"),
        ("dssgd", "no noise"),
        ("dssgd_noise", "which ones are sent"),
        ("noise_gaussian", "without a clip"),
        ("noise_laplace", "without a clip"),
        *((f"fed_alpha_cdp_{kind}", "data-dependent") for kind in ("linear", "staircase", "exponential", "cyclic")),
        *((f"fed_alpha_cdp_epsilon_{kind}", "data-dependent") for kind in ("linear", "staircase", "exponential")),
        *((f"fed_alpha_cdp_{kind}_as_released", "data-dependent") for kind in ("linear", "staircase", "cyclic")),
    ],
)
def test_a_recipe_without_a_guarantee_has_a_reason(name: str, word: str) -> None:
    defense = RECIPES[name]
    noises, why = calibrated(facts_of(defense, FEDERATION), defense.unit, FEDERATION.batch)
    assert noises == ()
    assert word in why


def test_every_recipe_that_differs_from_its_text_has_a_note() -> None:
    """Recipes named after Algorithm 1, released code or a variant have a note."""
    marks = ("_algorithm1", "_as_released", "_valid", "_flat")
    assert all(len(d.note) > 60 for n, d in RECIPES.items() if any(mark in n for mark in marks))
    texts = [p.read_text(encoding="utf-8") for p in catalog_folder("defenses").glob("*.yaml")]
    assert len(texts) == len(RECIPES)
    assert all(line == line.rstrip() for text in texts for line in text.splitlines())
