"""The fast engine equals the reference: gradients, gradients of gradients, clips and whole rounds, in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leakbench.cli import commands
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Network, Parameters, Signal
from leakbench.defense.by_norm import ByNorm
from leakbench.defense.clip import ClipLayers, ClipLayersShared, ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.prune import PruneThreshold
from leakbench.defense.sensitivity import L2Max, L2MaxReleased
from leakbench.defense.transform import Stations, Transform
from leakbench.engine.chain import Chain, chain_of
from leakbench.engine.once import gradients, gradients_once
from leakbench.engine.patches import Kernel, folded, patches
from leakbench.engine.steps import Affine, _narrow
from leakbench.engine.transposed import Transposed
from leakbench.federated.client import Examples, client_update
from leakbench.federated.merged import merges
from leakbench.models import MODELS
from leakbench.models.convnet import convnet


def shape_of(name: str) -> tuple[int, ...]:
    return (7,) if name.startswith("mlp") else (2, 12, 9) if name.startswith("convnet") else (2, 16, 12)


CHAINS = [
    name
    for name, architecture in MODELS.items()
    if not name.startswith(("resnet", "vit"))
    and not architecture.texts
    and chain_of(architecture.builder(shape_of(name), 5)) is not None
]
"""Every network of the catalog that is a chain of layers."""

CLOCK = Clock(0, 0, 1, 1)
LANES, MEMBERS, CLASSES = 3, 4, 5


def made(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    shape = shape_of(name)
    torch.manual_seed(0)
    if name == "tanh":
        return nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, CLASSES, bias=False)).double(), (7,)
    if name == "convnet_no_norm":  # Narrow: 2,904,970 parameters for each of twelve examples take seconds.
        return convnet(name, shape, CLASSES, norm=False, width=4).double(), shape
    return MODELS[name].builder(shape, CLASSES).double(), shape


def sent(model: nn.Module, shared: bool, rng: torch.Generator) -> Parameters:
    def near(p: Tensor) -> Tensor:
        axes = p.shape if shared else (LANES, *p.shape)
        return p.detach() + 0.1 * torch.randn(axes, generator=rng, dtype=torch.float64)

    return {n: near(p) for n, p in model.named_parameters()}


def examples(shape: tuple[int, ...], rng: torch.Generator, steps: int = 1) -> Examples:
    def uniform(*sizes: int) -> Tensor:
        return torch.rand(sizes, generator=rng, dtype=torch.float64)

    # Soft targets whose sum need not be one, and one example of padding.
    weights = torch.ones(LANES, steps, MEMBERS, dtype=torch.float64)
    weights[0, :, -1] = 0
    inputs = uniform(LANES, steps, MEMBERS, *shape).requires_grad_()
    return Examples(inputs, uniform(LANES, steps, MEMBERS, CLASSES), weights, MEMBERS)


def reference(model: nn.Module, parameters: Parameters, shared: bool, some: Examples) -> Parameters:
    def one(p: Parameters, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return -w * (y * functional_call(model, p, (x[None],)).log_softmax(-1)).sum()

    by_lane = vmap(vmap(grad(one), (None, 0, 0, 0)), (None if shared else 0, 0, 0, 0))
    found: Parameters = by_lane(parameters, *some.at(0))
    return found


def chained(model: nn.Module) -> Chain:
    chain = chain_of(model)
    assert chain is not None
    return chain


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_each_gradient_and_its_derivative_are_those_of_torch_func(name: str, shared: bool) -> None:
    check_gradients(*made(name), shared)


def check_gradients(model: nn.Module, shape: tuple[int, ...], shared: bool) -> None:
    rng = torch.Generator().manual_seed(1)
    parameters, some = sent(model, shared, rng), examples(shape, rng)
    layers = chained(model).gradient(parameters, shared, *some.at(0))
    ours = {n: g for layer in layers for n, g in layer.each().items()}
    theirs = reference(model, parameters, shared, some)
    assert list(ours) == list(theirs)
    target = {n: torch.randn(g.shape, generator=rng, dtype=torch.float64) for n, g in theirs.items()}
    pulled = []
    for found in (ours, theirs):
        distance = torch.stack([(found[n] - t).square().sum() for n, t in target.items()]).sum()
        pulled.append(torch.autograd.grad(distance, some.inputs)[0])
    for n, g in theirs.items():
        assert torch.allclose(ours[n], g, rtol=1e-9, atol=1e-12 * float(g.detach().abs().max())), n
    assert torch.allclose(*pulled, rtol=1e-8, atol=1e-12 * float(pulled[1].abs().max()))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "layers, places",
    [
        # 14 x 13 -> 12 x 11 -> 6 x 5 -> 4 x 3 -> 2 x 1: one column of the second convolution is unused, and more before it.
        ((nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), (12 * 8, 4 * 2)),
        # Only a ReLU may follow the pool: with other activations the largest output is not that of the largest input.
        ((nn.Conv2d(2, 3, 3), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), (12 * 8, 4 * 2)),
        # A stride with an unused row, before a convolution that pads.
        ((nn.Conv2d(2, 3, 3, stride=2), nn.Conv2d(3, 4, 3, padding=1)), (6 * 6, 6 * 6)),
        # After a padding layer, only outputs that the pool does not use can be omitted, and nothing before it.
        ((nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(3, 2), nn.Conv2d(3, 4, 2, 3)), (14 * 13, 2 * 2)),
        ((nn.Conv2d(2, 3, 2), nn.MaxPool2d(2, padding=1), nn.Conv2d(3, 4, 2, 3)), (13 * 12, 2 * 2)),
    ],
)
def test_only_unused_positions_are_omitted(
    layers: tuple[nn.Module, ...], places: tuple[int, ...], shared: bool
) -> None:
    body = nn.Sequential(*layers, nn.Flatten()).double()
    entering = body(torch.zeros(1, 2, 14, 13, dtype=torch.float64)).shape[1]
    model = nn.Sequential(*body, nn.Linear(entering, CLASSES).double())
    check_gradients(model, (2, 14, 13), shared)
    rng = torch.Generator().manual_seed(8)
    found = chained(model).gradient(sent(model, shared, rng), shared, *examples((2, 14, 13), rng).at(0))
    assert tuple(layer.columns.shape[2] for layer in found[:-1]) == places


SIDES = [(7,), (4, 3), (3, 3), (2, 3, 4), (2, 2, 3, 3), (1, 2, 1, 3, 2)]
"""Inputs: rows, time series, pictures, films and more."""


def flattened(sides: tuple[int, ...], before: bool) -> nn.Module:
    entering = nn.Sigmoid() if before else nn.Flatten()
    layers = (entering, nn.Flatten(), nn.Linear(math.prod(sides), 6), nn.Tanh(), nn.Linear(6, CLASSES))
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("sides", SIDES)
def test_flattened_inputs_have_the_order_of_pytorch(sides: tuple[int, ...], before: bool, shared: bool) -> None:
    model = flattened(sides, before)
    assert chained(model).takes(sides)
    check_gradients(model, sides, shared)


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("name", [*CHAINS, "tanh"])
def test_the_derivative_by_inputs_and_targets_in_one_pass_is_that_of_torch_func(name: str, merged: bool) -> None:
    check_once(*made(name), merged)


@pytest.mark.parametrize("sides", SIDES)
def test_the_derivative_by_flattened_inputs_is_that_of_torch_func(sides: tuple[int, ...]) -> None:
    check_once(flattened(sides, before=True), sides, merged=True)


def check_once(model: nn.Module, shape: tuple[int, ...], merged: bool) -> None:
    rng = torch.Generator().manual_seed(5)
    parameters, some = sent(model, True, rng), examples(shape, rng)
    x, y, w = some.inputs, some.targets.requires_grad_(), some.weights
    ours = gradients_once(chained(model), parameters, x[:, 0], y[:, 0], w[:, 0], merged)
    theirs = reference(model, parameters, True, some)
    theirs = {n: g.sum(1, keepdim=True) for n, g in theirs.items()} if merged else theirs
    target = {n: torch.randn(g.shape, generator=rng, dtype=torch.float64) for n, g in theirs.items()}
    pulled = []
    for found in (ours, theirs):
        distance = torch.stack([(found[n] - t).square().sum() for n, t in target.items()]).sum()
        pulled.append(torch.autograd.grad(distance, [x, y]))
    for n, g in theirs.items():
        assert torch.allclose(ours[n], g, rtol=1e-9, atol=1e-12 * float(g.detach().abs().max())), n
    for one, other in zip(*pulled, strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-12 * float(other.abs().max()))


@pytest.mark.parametrize("searched", ["inputs", "weights"])
def test_derivatives_by_the_weights_use_the_general_path(searched: str) -> None:
    """The single pass has no derivative by the weights, which must not be lost silently."""
    model, shape = made("lenet_cpl")
    rng = torch.Generator().manual_seed(3)
    parameters, some = sent(model, True, rng), examples(shape, rng)
    if searched == "weights":
        parameters = {n: p.requires_grad_() for n, p in parameters.items()}
    chain = chain_of(model)
    assert chain is not None
    x, y, w = some.inputs[:, 0], some.targets[:, 0], some.weights[:, 0]
    by = [x, *parameters.values()] if searched == "weights" else [x]

    def twice(grads: Parameters) -> tuple[Tensor, ...]:
        return torch.autograd.grad(torch.stack([g.square().sum() for g in grads.values()]).sum(), by)

    plain = {n: g for layer in chain.gradient(parameters, True, x, y, w) for n, g in layer.each().items()}
    for one, other in zip(twice(gradients(chain, parameters, True, x, y, w, False)), twice(plain), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    *(st.integers(1, 5) for _ in range(2)),
    *(st.integers(1, 3) for _ in range(2)),
    *(st.integers(0, 3) for _ in range(2)),
    st.integers(5, 9),
    st.integers(5, 8),
)
def test_gathering_is_the_adjoint_of_a_convolution(
    rows: int, columns: int, down: int, right: int, top: int, left: int, height: int, width: int
) -> None:
    rng = torch.Generator().manual_seed(6)
    kernel = Kernel((rows, columns), (down, right), (top, left))
    pictures = torch.randn(2, 3, height, width, generator=rng, dtype=torch.float64).requires_grad_()
    weight = torch.randn(4, 3, rows, columns, generator=rng, dtype=torch.float64)
    answer = nn.functional.conv2d(pictures, weight, stride=kernel.stride, padding=kernel.padding)
    delta = torch.randn(answer.shape, generator=rng, dtype=torch.float64)
    (expected,) = torch.autograd.grad(answer, pictures, delta)
    way = Transposed(kernel, height, width)
    entered = way.entered(way.columns(delta.permute(0, 2, 3, 1)) @ way.matrix(weight))
    assert torch.allclose(entered.permute(0, 3, 1, 2), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
def test_a_product_for_all_lanes_returns_what_grouped_convolutions_return(padding: tuple[int, int]) -> None:
    """The way of a GPU, which computes groups one after the other, against the derivative of each lane's convolution."""
    rng = torch.Generator().manual_seed(7)
    layer = Affine("w", None, Kernel((3, 2), (1, 1), padding))
    pictures = torch.randn(3, 2, 6, 5, 4, generator=rng, dtype=torch.float64).requires_grad_()
    weight = torch.randn(3, 8, 4, 3, 2, generator=rng, dtype=torch.float64)
    pairs = zip(pictures, weight, strict=True)
    each = [nn.functional.conv2d(x.permute(0, 3, 1, 2), w, padding=padding).permute(0, 2, 3, 1) for x, w in pairs]
    delta = torch.randn(3, *each[0].shape, generator=rng, dtype=torch.float64)
    (expected,) = torch.autograd.grad(torch.stack(each), pictures, delta)
    for found in (
        layer.returned(delta, weight, False, pictures.shape),
        layer.returned_by_columns(delta, weight, pictures.shape),
    ):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["lenet_cpl", "cnn", "mlp"])
def test_norms_and_weighted_sums_are_those_of_the_gradients_one_by_one(name: str) -> None:
    rng = torch.Generator().manual_seed(2)
    model, shape = made(name)
    parameters, some = sent(model, False, rng), examples(shape, rng)
    theirs = reference(model, parameters, False, some)
    factors = {n: torch.rand(LANES, MEMBERS, generator=rng, dtype=torch.float64) for n in theirs}
    for norms_first in (False, True):  # A sum uses the gradients if they are computed already.
        for layer in chained(model).gradient(parameters, False, *some.at(0)):
            if norms_first:
                for n, norm in layer.norms().items():
                    assert torch.allclose(norm, theirs[n].flatten(2).norm(dim=2), rtol=1e-9, atol=1e-15), n
            for n, merged in layer.merged(factors).items():
                expected = torch.einsum("kb,kb...->k...", factors[n], theirs[n])
                assert torch.allclose(merged[:, 0], expected, rtol=1e-9, atol=1e-14), n


@settings(max_examples=40, deadline=None)
@given(
    *(st.integers(1, 3) for _ in range(2)),
    *(st.integers(1, 2) for _ in range(2)),
    *(st.integers(0, 2) for _ in range(2)),
    st.integers(4, 7),
    st.integers(3, 6),
    st.sampled_from([1, 3]),
)
def test_patches_are_unfolds_and_folding_is_their_adjoint(
    rows: int, columns: int, down: int, right: int, top: int, left: int, height: int, width: int, channels: int
) -> None:
    rng = torch.Generator().manual_seed(3)
    kernel = Kernel((rows, columns), (down, right), (top, left))
    pictures = torch.randn(2, height, width, channels, generator=rng, dtype=torch.float64)
    taken = patches(pictures, kernel)
    unfolded = nn.functional.unfold(
        pictures.permute(0, 3, 1, 2), kernel.size, padding=kernel.padding, stride=kernel.stride
    )
    expected = unfolded.reshape(2, channels, rows * columns, -1).permute(0, 3, 2, 1).reshape(taken.shape)
    assert torch.equal(taken, expected)
    other = torch.randn(taken.shape, generator=rng, dtype=torch.float64)
    product = (folded(other, kernel, height, width) * pictures).sum()
    assert torch.allclose((taken * other).sum(), product)


def test_patches_can_be_differentiated_twice() -> None:
    kernel = Kernel((2, 3), (2, 1), (1, 1))
    pictures = torch.randn(1, 4, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert torch.autograd.gradgradcheck(lambda x: patches(x.square(), kernel), pictures.requires_grad_())


STATIONS: dict[str, tuple[Transform, ...]] = {
    "none": (),
    "whole": (ClipWhole(norm=0.3),),
    "layers": (ClipLayers(norm=0.1),),
    "shared": (ClipLayersShared(norm=0.2),),
    "l2_max": (ClipLayers(norm=0.1), L2Max()),
    "twice": (ClipLayers(norm=0.1), ClipWhole(norm=0.15)),
    "released": (L2MaxReleased(floor=0.01, ceiling=0.1),),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet_cpl", "cnn"])
@pytest.mark.parametrize("station", list(STATIONS))
def test_an_update_of_two_iterations_is_that_of_the_reference(station: str, name: str) -> None:
    rng = torch.Generator().manual_seed(5)
    model, shape = made(name)
    network = Network(model, sent(model, True, rng))
    some = examples(shape, rng, steps=2)
    stations = Stations(example=STATIONS[station], batch=(GaussianNoise(multiplier=0.5, to="sum", uncalibrated=True),))

    rngs = [(i,) for i in range(LANES)]

    def update(engine: str, alone: bool) -> Signal:
        by = dataclasses.replace(network, engine=engine)
        return client_update(by, dataclasses.replace(some, alone=alone), 0.1, stations, CLOCK, generators(0, "n", rngs))

    expected = update("reference", True)
    for alone in (True, False):
        found = update("fast", alone)
        assert (found.facts, found.averaged) == (expected.facts, expected.averaged)
        if expected.sensitivity is not None and found.sensitivity is not None:
            assert torch.allclose(found.sensitivity, expected.sensitivity)
        for n, g in expected.grads.items():
            assert torch.allclose(found.grads[n], g, rtol=1e-6, atol=1e-9 * float(g.detach().abs().max())), n
    # An attacker that unrolls the update differentiates it by the examples, without padding.
    whole = dataclasses.replace(some, weights=torch.ones_like(some.weights))
    pulled = []
    for engine, alone in (("fast", True), ("fast", False), ("reference", True)):
        by = dataclasses.replace(network, engine=engine)
        grads = client_update(
            by, dataclasses.replace(whole, alone=alone), 0.1, stations, CLOCK, generators(0, "n", rngs)
        ).grads
        length = torch.stack([g.square().sum() for g in grads.values()]).sum()
        pulled.append(torch.autograd.grad(length, whole.inputs)[0])
    for one in pulled[:2]:
        assert torch.allclose(one, pulled[2], rtol=1e-6, atol=1e-9 * float(pulled[2].abs().max()))


def test_a_network_is_a_chain_for_examples_that_its_layers_take_and_activations_are_plain() -> None:
    rows, pictures = nn.Sequential(nn.Linear(6, 2)), nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(9, 2))
    assert chained(rows).takes((6,)) and not chained(rows).takes((3, 6)) and not chained(rows).takes((1, 3, 6))
    assert chained(pictures).takes((2, 5, 3)) and not chained(pictures).takes((30,))
    assert not chained(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(3, 2))).takes((2, 5, 5))
    assert chain_of(nn.Sequential(nn.Linear(6, 2), nn.ReLU(inplace=True))) is not None
    assert chain_of(nn.Sequential(nn.Linear(6, 2), nn.GELU(approximate="tanh"))) is None
    assert not chained(nn.Sequential(nn.Conv2d(2, 3, 3))).takes((2, 3, 3))  # Logits are rows.


def test_a_layer_used_twice_acts_twice() -> None:
    twice, pool = nn.Tanh(), nn.MaxPool2d(2)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), twice, pool, nn.Conv2d(3, 4, 3), twice, pool, nn.Flatten(), nn.Linear(8, CLASSES)
    )
    check_gradients(model.double(), (2, 14, 13), shared=True)


def test_a_layer_with_user_code_is_not_part_of_a_chain() -> None:
    def of(layer: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 3), layer, nn.Linear(3, 2))

    patched, hooked, before = (nn.Linear(3, 3) for _ in range(3))
    assert chain_of(of(patched)) is not None and chain_of(of(hooked)) is not None
    patched.forward = torch.sin  # type: ignore[method-assign]
    hooked.register_full_backward_hook(lambda *_: None)
    before.register_full_backward_pre_hook(lambda *_: None)
    assert chain_of(of(patched)) is None and chain_of(of(hooked)) is None and chain_of(of(before)) is None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert chain_of(of(nn.Sigmoid())) is None
    finally:
        handle.remove()


@pytest.mark.slow
def test_both_engines_agree_up_to_rounding(tmp_path: Path) -> None:
    """L-BFGS without a line search turns float32's rounding into 1 to 4 % of the RMSE in twenty evaluations, by machine."""
    found = {}
    for engine in ("fast", "reference"):
        out = str(tmp_path / engine)
        asked = "run --quiet --dataset faces --attack cpl --victims 3 --iterations 1 --train-rounds 0 --taps type-2"
        CliRunner().invoke(commands, [*asked.split(), "--out", out, "--engine", engine], catch_exceptions=False)
        [rows] = Path(out).rglob("rows.parquet")
        found[engine] = torch.tensor(pd.read_parquet(rows)["rmse"].to_numpy())
    assert bool((found["reference"] < 0.32).all())  # Searches that start from noise have an RMSE above 1.
    torch.testing.assert_close(found["fast"], found["reference"], rtol=0.1, atol=0.0)


def test_merged_noise_keeps_the_size_of_the_batch() -> None:
    """The batch station scales the declared noise of the sum by the batch size."""
    rng = torch.Generator().manual_seed(9)
    model, shape = made("mlp")
    network, some = Network(model, sent(model, True, rng)), examples(shape, rng)
    example = (ClipLayers(norm=0.1), GaussianNoise(multiplier=1e-6, to="each"))
    sums = GaussianNoise(multiplier=2.0, to="sum", uncalibrated=True)
    found = []
    for stations in (Stations(example=example, batch=(sums,)), Stations(example=example)):
        rngs = generators(0, "n", [(i,) for i in range(LANES)])
        update = client_update(network, dataclasses.replace(some, alone=False), 0.1, stations, CLOCK, rngs)
        found.append(torch.cat([g.detach().flatten() for g in update.grads.values()]) / 0.1)
    scale = float((found[0] - found[1]).std())
    alone = client_update(network, some, 0.1, Stations(example=example, batch=(sums,)), CLOCK, rngs)
    apart = torch.cat([g.detach().flatten() for g in alone.grads.values()]) / 0.1
    assert scale == pytest.approx(float((apart - found[1]).std()), rel=0.1)


def test_noise_on_the_mean_excludes_padding() -> None:
    rng = torch.Generator().manual_seed(6)
    model, shape = made("mlp")
    network = Network(model, sent(model, True, rng))
    stations = Stations(example=(ClipLayers(norm=0.1), GaussianNoise(multiplier=2.0, to="each")))
    some = examples(shape, rng)
    drawn: dict[bool, list[Tensor]] = {True: [], False: []}
    for alone, seen in drawn.items():
        for trial in range(40):
            rngs = generators(trial, f"noise {alone}", [(i,) for i in range(LANES)])
            read = dataclasses.replace(some, alone=alone)
            went = client_update(network, read, 1.0, stations, CLOCK, rngs).grads
            still = client_update(network, read, 1.0, stations, CLOCK, None).grads
            seen.append(torch.cat([(went[n] - still[n]).detach().flatten(1) for n in went], 1))
    noise = {alone: torch.stack(t) for alone, t in drawn.items()}  # (trials, lanes, numbers)
    # Lane 0 has one example of padding: three of four draw noise.
    for lane, count in enumerate((3, 4, 4)):
        expected = 0.1 * 2.0 * count**0.5 / MEMBERS
        for alone in (True, False):
            there = noise[alone][:, lane]
            # 40 trials of some 10,000 numbers: a standard error of .001 of the deviation.
            assert float(there.std()) == pytest.approx(expected, rel=0.005)
            assert abs(float(there.mean())) < 0.01 * expected
            assert float((there**4).mean() / there.var() ** 2) == pytest.approx(3, abs=0.05)
    # Drawn independently for each lane and each number.
    flat = noise[False].reshape(40, LANES, -1)
    assert abs(float(torch.corrcoef(flat[0])[0, 1])) < 0.05


def test_parts_that_need_single_examples_are_not_merged() -> None:
    clip, noise = ClipLayers(norm=1.0), GaussianNoise(multiplier=1.0, to="each")
    assert merges((clip, noise)) and merges((clip, L2Max())) and merges((noise,))
    assert not merges(())
    assert not merges((noise, clip))
    assert not merges((PruneThreshold(share=0.5), clip))
    assert not merges((clip, GaussianNoise(multiplier=1.0, to="sum")))
    assert isinstance(clip, ByNorm) and not isinstance(noise, ByNorm)


class Doubled(nn.Sequential):
    """A chain by its parts that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda layer, entered, answered: 2 * answered)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    "build",
    [
        lambda: Doubled(nn.Linear(3, 2)),
        lambda: nn.Sequential(Doubled(nn.Linear(3, 2))),
        hooked,
        tied,
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout()),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, dilation=2)),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding="same")),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.MaxPool2d(2, ceil_mode=True)),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.GELU(approximate="tanh")),
        lambda: nn.Sequential(nn.ReLU()),
        lambda: nn.Linear(3, 2),
    ],
)
def test_unknown_networks_use_torch_func(build: Callable[[], nn.Module]) -> None:
    assert chain_of(build()) is None


def test_nested_chains_and_layers_that_overwrite_are_chains() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), nn.Tanh(), nn.Linear(4, 2)).double()
    rng = torch.Generator().manual_seed(7)
    some = examples((3,), rng)
    some = dataclasses.replace(some, targets=some.targets[..., :2])
    parameters = sent(model, True, rng)
    theirs = reference(model, parameters, True, some)
    layers = chained(model).gradient(parameters, True, *some.at(0))
    ours = {n: g for layer in layers for n, g in layer.each().items()}
    for n, g in theirs.items():
        assert torch.allclose(ours[n], g, rtol=1e-9), n


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("width", [4, 5, 12, 15, 16])
def test_convolutions_of_few_channels_equal_those_of_pytorch(width: int, shared: bool) -> None:
    """Products of 5 to 15 columns are computed transposed: value, gradient by weights and tangents along them."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(3, 2, 9, 9, 6, dtype=torch.float64, generator=generator)
    weight = torch.randn(3, width, 6, 3, 3, dtype=torch.float64, generator=generator)
    bias = torch.randn(3, width, dtype=torch.float64, generator=generator)
    own = {"w": weight[0], "b": bias[0]} if shared else {"w": weight, "b": bias}
    layer = Affine("w", "b", Kernel((3, 3), (1, 1), (1, 1)))
    done = layer(own, shared, x)
    assert done.answer.is_contiguous()
    assert done.columns is not None
    moved = layer.moved(done.columns, weight, bias).reshape(done.answer.shape)
    alone = layer.moved(done.columns, weight, None).reshape(done.answer.shape)
    for lane in range(3):
        pictures, at = x[lane].permute(0, 3, 1, 2), 0 if shared else lane
        expected = torch.conv2d(pictures, weight[at], bias[at], padding=1).permute(0, 2, 3, 1)
        torch.testing.assert_close(done.answer[lane], expected)
        expected = torch.conv2d(pictures, weight[lane], None, padding=1).permute(0, 2, 3, 1)
        torch.testing.assert_close(alone[lane], expected)
        torch.testing.assert_close(moved[lane], expected + bias[lane])


def test_the_order_of_a_product_does_not_depend_on_the_number_of_lanes() -> None:
    matrix = torch.rand(54, 12)
    for places, narrow in ((31, False), (32, True)):
        assert [_narrow(torch.rand(lanes, places, 54), matrix) for lanes in (1, 2, 100)] == [narrow] * 3
    assert not _narrow(torch.rand(1, 64, 54), torch.rand(54, 16))
    assert not _narrow(torch.rand(1, 64, 27), torch.rand(27, 12))
