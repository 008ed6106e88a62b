"""Starts and coordinates from constants and from public examples: closed forms, draws, and refusals."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.public import channel_moments
from leakbench.attack.slots.labels import LastLayer
from leakbench.attack.slots.space import SPACE, Standardised
from leakbench.attack.slots.start import START, Colour, Constant
from leakbench.attack.slots.start_public import PublicMean, PublicNormal, Surrogate
from leakbench.cli import main
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, resolve
from leakbench.core.rng import generators
from leakbench.core.types import Generators, Network
from leakbench.federated.view import Public, View
from leakbench.models import parameters

CLASSES = 4


def rngs(victims: int = 3, seed: int = 0) -> Generators:
    return generators(seed, "attack", [(v,) for v in range(victims)])


def view(shape: tuple[int, ...] = (3, 6, 5), public: int = 40, batch: int = 2, victims: int = 3) -> View:
    """An update whose last layer shows victim v the labels v and v + 1, and random public examples of uneven channels."""
    rng = torch.Generator().manual_seed(1)
    features = math.prod(shape)
    rows = torch.ones(victims, CLASSES, features, dtype=torch.float64)
    for v in range(victims):
        for m in range(batch):
            rows[v, (v + m) % CLASSES] = -1
    x = torch.rand(public, *shape, generator=rng) * torch.linspace(0.2, 1, shape[0]).reshape(
        -1, *[1] * (len(shape) - 1)
    )
    known = Public(x, torch.arange(public) % CLASSES)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(features, CLASSES, bias=False)).double()
    return View(
        "type-1", Network(model, parameters(model)), {"1.weight": rows}, batch, shape, CLASSES, 0.1, public=known
    )


def test_constants_are_constant() -> None:
    for value in (0.0, 0.5, 1.0):
        start = Constant(value)(view(), rngs())
        assert start.shape == (3, 2, 3, 6, 5)
        assert start.dtype == torch.float64
        assert (start == value).all()


@given(st.floats(0, 1), st.floats(0.01, 2), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_constant_with_noise_has_that_mean_and_deviation(value: float, deviation: float, seed: int) -> None:
    start = Constant(value, deviation)(view(shape=(3, 32, 32)), rngs(seed=seed))
    assert float(start.mean()) == pytest.approx(value, abs=0.05 * deviation)
    assert float(start.std()) == pytest.approx(deviation, rel=0.05)
    assert not torch.equal(start[0, 0], start[0, 1])
    assert not torch.equal(start[0], start[1])


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_a_colour_is_one_channel(channel: int) -> None:
    start = Colour(channel)(view(), rngs())
    assert (start[:, :, channel] == 1).all()
    assert start.sum() == 3 * 2 * 6 * 5


@pytest.mark.parametrize("shape", [(3, 6, 5), (7,)])
def test_moments_are_those_of_standardisation(shape: tuple[int, ...]) -> None:
    """For each channel of a picture and each feature of a table; a constant feature keeps its unit."""
    public = view(shape).public
    assert public is not None
    public.inputs[:, 0] = 0.25
    mean, deviation = channel_moments(public)
    slow = [(public.inputs[:, c].mean(), public.inputs[:, c].std(correction=0)) for c in range(shape[0])]
    torch.testing.assert_close(mean.flatten(), torch.stack([m for m, _ in slow]))
    torch.testing.assert_close(deviation.flatten()[1:], torch.stack([d for _, d in slow])[1:])
    assert float(deviation.flatten()[0]) == 1.0


@pytest.mark.parametrize("shape", [(3, 6, 5), (7,)])
def test_standardised_coordinates_are_affine_and_invertible(shape: tuple[int, ...]) -> None:
    """Public examples get mean 0 and deviation 1 in each channel, decoding undoes it, no energy."""
    of = view(shape)
    assert of.public is not None
    space = Standardised()(of)
    x = of.public.inputs.to(torch.float64)[None]
    z = space.encode(x)
    torch.testing.assert_close(space.decode(z), x)
    channels = z.reshape(-1, shape[0], x[0, 0].numel() // shape[0]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(channels.mean(1), torch.zeros(shape[0]).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(channels.std(1, correction=0), torch.ones(shape[0]).double(), atol=1e-6, rtol=0)
    assert space.energy(z, torch.zeros(1, 1, 2)).tolist() == [0.0]


def test_the_public_mean_and_spread() -> None:
    """The mean picture plus noise; N(m, s^2) by channel, which is N(0, 1) in the standardised space."""
    of = view(shape=(3, 32, 32))
    assert of.public is not None
    mean = of.public.inputs.mean(0)
    exact = PublicMean(deviation=0.0)(of, rngs())
    torch.testing.assert_close(exact, mean.double().expand(3, 2, 3, 32, 32))
    noise = PublicMean(deviation=0.5)(of, rngs()) - mean
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert not torch.equal(noise[0, 0], noise[0, 1])
    z = Standardised()(of).encode(PublicNormal()(of, rngs()))
    assert float(z.mean()) == pytest.approx(0, abs=0.03)
    assert float(z.std()) == pytest.approx(1, rel=0.03)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_surrogate_is_a_public_example_of_another_class(seed: int) -> None:
    of = view()
    assert of.public is not None
    start: Tensor = Surrogate()(of, rngs(seed=seed))
    shown = LastLayer()(of, ()).targets.argmax(-1)
    for v in range(3):
        for m in range(2):
            [which] = torch.nonzero((of.public.inputs == start[v, m]).flatten(1).all(1)).flatten().tolist()
            assert of.public.labels[which] != shown[v, m]


def test_surrogates_differ_from_victim_to_victim() -> None:
    start = Surrogate()(view(victims=6), rngs(6))
    assert len(torch.unique(start.flatten(0, 1).flatten(1), dim=0)) > 6


@pytest.mark.parametrize("name", ["public_mean", "public_normal", "surrogate"])
def test_without_public_examples_they_are_refused(name: str) -> None:
    of = view()
    object.__setattr__(of, "public", None)
    with pytest.raises(InputError, match=rf"public.*{name}"):
        construct(START.parts[name], {})(of, rngs())
    with pytest.raises(InputError, match=r"public.*standardised"):
        construct(SPACE.parts["standardised"], {})(of)


def test_surrogates_without_another_class_are_refused() -> None:
    """Unless no layer answers with the class: no label is known then, and any public example is taken."""
    of = view(batch=1, victims=2)
    assert of.public is not None
    of.public.labels[:] = 1
    with pytest.raises(InputError, match="another"):
        Surrogate()(of, rngs(2))
    unknown = dataclasses.replace(of, network=Network(torch.nn.Identity(), {}))
    for start in Surrogate()(unknown, rngs(2))[:, 0]:
        assert (of.public.inputs == start).flatten(1).all(1).any()


@pytest.mark.parametrize(
    ("name", "fields", "word"),
    [
        ("constant", {}, "value"),
        ("constant", {"value": 1.5}, "value"),
        ("constant", {"value": 0, "deviation": -1}, "deviation"),
        ("colour", {"channel": -1}, "channel"),
        ("public_mean", {"deviation": "much"}, "deviation"),
        ("surrogate", {"same": True}, "unknown field 'same'"),
    ],
)
def test_wrong_input_is_refused(name: str, fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        construct(START.parts[name], fields)


@pytest.mark.parametrize("shape", [(7,), (2, 6, 5)])
def test_a_colour_that_inputs_lack_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="start: colour"):
        Colour(2)(view(shape), rngs())


CPL = ["tile4", "tile16", "tile64", "uniform", "normal", "black", "white", "colour", "surrogate", "grey", "public_mean"]


@pytest.mark.parametrize("variant", CPL)
def test_variants_of_cpl_differ_from_it_in_the_start_alone(variant: str) -> None:
    plain, other = (resolve("attacks", Attack, name)[1].method for name in ("cpl", f"cpl_{variant}"))
    assert isinstance(plain, GradientMatching)
    assert isinstance(other, GradientMatching)
    for name in ("labels", "space", "distance", "descent", "priors", "stop", "restarts"):
        assert getattr(other, name) == getattr(plain, name)
    assert (other.start == plain.start) == (variant == "tile4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "start"),
    [
        ("digits", "{constant: {value: 0.5, deviation: 0.1}}"),
        ("digits", "colour"),
        ("cancer", "public_mean"),
        ("digits", "public_normal"),
        ("cancer", "surrogate"),
    ],
)
def test_from_the_command_line(dataset: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the coordinates of standardised inputs, on a table and on small pictures."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "title: mine\ncite: me\nmethod:\n  gradient_matching:\n    labels: last_layer\n    space: standardised\n"
        f"    start: {start}\n    distance: squared_l2\n    descent: {{adam: {{box: true}}}}\n"
    )
    line = f"leakbench run --quiet --dataset {dataset} --attack {recipe} --iterations 2 --victims 2 --candidates 9"
    monkeypatch.setattr(
        "sys.argv", [*line.split(), *f"--taps type-1 --train-rounds 0 --out {tmp_path / 'run'}".split()]
    )
    main()
    assert pd.read_parquet(tmp_path / "run" / "rows.parquet")["rmse"].between(0, 1).all()
