"""The decoder: a variational autoencoder against closed forms, the result of its training, and the search in its latent space."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from leakbench.attack import Attack
from leakbench.attack.learn.vae import LEAST, DecoderTraining, Sides, Vae, divergence, loss, trained
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots import space_decoder as module
from leakbench.attack.slots.space_decoder import Decoder
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, resolve
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.federated.view import Public, View

SIDES = Sides(6, 16, 2)


def examples(count: int = 120, seed: int = 0) -> Tensor:
    """Return six numbers in [0, 1] that depend on two numbers."""
    rng = generator(seed, "examples")
    factors, mix = torch.randn(count, 2, generator=rng), torch.randn(2, 6, generator=generator(0, "mix"))
    return (2 * factors @ mix).sigmoid()


def vae(sides: Sides = SIDES, seed: int = 0) -> Vae:
    tensors = trained(torch.rand(4, sides.inputs), sides, DecoderTraining(1, 4, 1e-9), generator(seed, "vae"))
    return Vae.of(sides, tensors, torch.zeros(1))


def view(inputs: Tensor, double: bool = False) -> View:
    update = {"w": torch.zeros(2, 3, dtype=torch.float64 if double else torch.float32)}
    public = Public(inputs, torch.zeros(len(inputs), dtype=torch.int64))
    shape = tuple(inputs.shape[1:])
    return View("type-1", Network(nn.Linear(1, 1), {"w": torch.zeros(3)}), update, 1, shape, 4, 0.1, public=public)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(1, 5))
def test_the_divergence_is_that_of_normal_distributions(seed: int, size: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    mean, log_variance = torch.randn(2, 3, size, generator=rng, dtype=torch.float64)
    zero = torch.zeros_like(mean)
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(zero, zero + 1)).sum(1)
    found = divergence(mean, log_variance)
    torch.testing.assert_close(found, expected)
    assert (found >= 0).all()
    assert divergence(zero, zero).tolist() == [0.0] * 3


def test_the_loss_is_minus_the_evidence_bound_at_the_best_variance() -> None:
    """The density of all inputs under one variance, minimal at the minimising variance, and the divergence."""
    net, x = vae(), examples(20)
    noise = torch.randn(20, 2, generator=generator(1, "noise"))
    mean, log_variance = net.encode(x)
    drawn = net.decode(mean + log_variance.exp().sqrt() * noise)
    constant = 6 / 2 * (torch.log(torch.tensor(2 * torch.pi)) + 1)

    def bound(deviation: Tensor) -> Tensor:
        return -Normal(drawn, deviation).log_prob(x).sum(1).mean() + divergence(mean, log_variance).mean()

    best = (drawn - x).square().mean().sqrt()
    found = loss(net, x, noise)
    torch.testing.assert_close(found + constant, bound(best))
    assert all(bound(best * factor) > bound(best) for factor in (0.9, 1.1))


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 2, 3), (5,)])
@pytest.mark.parametrize("double", [False, True])
def test_shapes_of_pictures_and_tables(shape: tuple[int, ...], double: bool) -> None:
    space = Decoder(latent=3, hidden=8, epochs=1, weight=4.0)(view(torch.rand(10, *shape), double))
    z = torch.randn(2, 4, 3).double() if double else torch.randn(2, 4, 3)
    x = space.decode(z)
    assert x.shape == (2, 4, *shape)
    assert x.dtype == z.dtype
    assert ((x > 0) & (x < 1)).all()
    assert space.encode(x).shape == z.shape
    torch.testing.assert_close(space.energy(z, torch.zeros(*z.shape[:2], 2)), 2 * z.square().sum((1, 2)))
    torch.testing.assert_close(space.decode(z[1:, :2]), x[1:, :2])


def test_training_follows_its_description() -> None:
    """Written out again: weights, shuffles and noise drawn in the same order, and the rate along half a cosine."""
    x, rng = examples(10), generator(0, "t")
    sides = [(6, 16), (16, 16), (16, 4), (2, 16), (16, 16), (16, 6)]
    layers = [nn.Linear(*side) for side in sides]
    for layer in layers:
        for parameter in layer.parameters():
            bound = layer.in_features**-0.5
            nn.init.uniform_(parameter, -bound, bound, generator=rng)

    def through(some: list[nn.Linear], seen: Tensor) -> Tensor:
        first, second, third = some
        return third(nn.functional.silu(second(nn.functional.silu(first(seen)))))

    parameters = [p for layer in layers for p in layer.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=0.01)
    for step in range(9):
        if step % 3 == 0:
            order = torch.randperm(10, generator=rng)
        seen = x[order[4 * (step % 3) : 4 * (step % 3) + 4]]
        noise = torch.randn(len(seen), 2, generator=rng)
        mean, log_variance = through(layers[:3], seen).chunk(2, 1)
        drawn = through(layers[3:], mean + (log_variance / 2).exp() * noise).sigmoid()
        value = 3 * nn.functional.mse_loss(drawn, seen).log() + divergence(mean, log_variance).mean()
        for group in optimiser.param_groups:
            group["lr"] = 0.005 * (1 + torch.cos(torch.tensor(torch.pi * step / 9)).item())
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    found = trained(x, SIDES, DecoderTraining(3, 4, 0.01), generator(0, "t"))
    for one, expected in zip(found.values(), parameters, strict=True):
        torch.testing.assert_close(one, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_it_learns_more_than_the_mean() -> None:
    """If two numbers determine the examples, it draws unseen ones with a tenth of the mean's squared error."""
    known, fresh = examples(400), examples(100, seed=1)
    space = Decoder(latent=2, hidden=32, epochs=60, batch=20, learning_rate=3e-3)(view(known))
    for x in (known, fresh):
        drawn = space.decode(space.encode(x[:, None]))[:, 0]
        assert (drawn - x).square().mean() < 0.1 * (known.mean(0) - x).square().mean()


def test_examples_that_do_not_differ_are_learned_without_harm() -> None:
    space = Decoder(latent=2, hidden=8, epochs=80, learning_rate=0.05)(view(torch.full((20, 3), 0.25)))
    found = space.decode(torch.zeros(1, 1, 2))
    assert (found - 0.25).abs().max() < 0.05
    assert LEAST > 0


def test_the_result_depends_only_on_the_seed() -> None:
    small, z, seen = Decoder(latent=2, hidden=8, epochs=2), torch.ones(1, 1, 2), view(examples())
    state = torch.random.get_rng_state()
    one, again, other = (d(seen).decode(z) for d in (small, small, dataclasses.replace(small, seed=1)))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_unsuitable_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="public: got no public example, which 'decoder' needs"):
        Decoder()(dataclasses.replace(view(examples()), public=None))
    search = {"labels": "last_layer", "start": "uniform", "distance": "likelihood", "descent": "lbfgs"}
    for fields, word in (
        ({"latent": 0}, "latent"),
        ({"hidden": 0}, "hidden"),
        ({"epochs": 0}, "epochs"),
        ({"public": 0}, "public"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"weight": -1.0}, "weight"),
        ({"floor": 1.0}, "unknown field 'floor'"),
    ):
        with pytest.raises(InputError, match=word):
            construct(GradientMatching, {**search, "space": {"decoder": fields}})


def test_the_recipe_reads_the_decoder_and_its_public_examples() -> None:
    attack = resolve("attacks", Attack, "decoder")[1]
    assert isinstance(attack.method, GradientMatching)
    assert attack.method.space == Decoder()
    assert (attack.needs.public, attack.needs.alone, attack.knows) == (10_000, False, "defense")


RECIPE = """
title: mine
cite: none
knows: defense
method:
  gradient_matching:
    labels: last_layer
    space: {decoder: {latent: 16, hidden: 128, epochs: 100, batch: 50}}
    start: {public_mean: {deviation: 0.05}}
    distance: likelihood
    descent: lbfgs
    stop: {iterations: {limit: 8}}
"""
RUN = ["run", "--quiet", "--json", "--candidates", "12", "--train-rounds", "0"]


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Return a list with one entry for each training; decoders are cached in a folder of this test."""
    monkeypatch.setenv("LEAKBENCH_FITS", str(tmp_path / "fits"))
    done: list[int] = []

    def counted(*given):
        done.append(1)
        return trained(*given)

    monkeypatch.setattr(module, "trained", counted)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "more"),
    [
        ("digits", ("--taps", "type-2,type-1", "--leak-batch", "2", "--victims", "6")),
        ("cancer", ("--taps", "type-2", "--victims", "4")),
        pytest.param(
            "digits",
            ("--taps", "type-2", "--protocol", "live", "--clients", "4", "--victims", "2"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_from_the_command_line_it_is_learned_once(dataset, more, times, tmp_path, monkeypatch, capsys):
    """For a single example, a batch and a table; in a live run the rehearsal has learned it already."""
    line = (*RUN, "--dataset", dataset, "--attack", str(tmp_path / "mine.yaml"), *more)
    code, out, _ = called(monkeypatch, capsys, *line, "--out", str(tmp_path / "run"))
    assert code == 0
    assert len(times) == 1
    taps = json.loads(out)["taps"].values()
    for shown in taps:
        assert shown["failures"] == 0
        assert shown["fit_public"] > 100
    if dataset == "digits":  # The public mean has .25. Where one search ends depends on its last digits.
        assert sum(shown["rmse"] for shown in taps) / len(taps) < 0.22
