"""Smooth chains: their limit, their derivatives, and the search that uses them."""

import dataclasses
import gc
import itertools
import weakref

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.features import read, readable
from leakbench.attack.front import Front
from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.attack.slots.descent import AdamDescent
from leakbench.attack.slots.priors import TotalVariation
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations
from leakbench.attack.smooth import smoothed
from leakbench.core.types import Network
from leakbench.engine.chain import chain_of
from leakbench.engine.once import answers_and_gradients
from leakbench.engine.steps import MaxPool, Pointwise
from leakbench.federated.view import View
from leakbench.models import one_hot, parameters

V, SHAPE, CLASSES = 3, (1, 9, 9), 4


def network() -> nn.Sequential:
    """Return a network whose pools leave a row and a column unused."""
    torch.manual_seed(2)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Conv2d(8, 16, 2, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(144, CLASSES, bias=False)).double().eval()


def leaked() -> tuple[View, Tensor]:
    """Return the leak of V victims, and their inputs."""
    model = network()
    coarse = torch.rand(V, 1, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    x = nn.functional.interpolate(coarse, SHAPE[1:], mode="bilinear", align_corners=True)[:, None]
    y = one_hot(torch.arange(V)[:, None] % CLASSES, CLASSES).double()
    empty = {n: p.new_zeros(V, *p.shape) for n, p in model.named_parameters()}
    blind = View("type-2", Network(model, parameters(model)), empty, 1, SHAPE, CLASSES, 0.1)
    return dataclasses.replace(blind, update=blind.respond(x, y)), x


def generators() -> tuple[torch.Generator, ...]:
    return tuple(torch.Generator().manual_seed(v) for v in range(V))


def test_features_and_gradients_tend_to_the_originals_as_the_sharpness_grows():
    view, x = leaked()
    features = read(view, readable(view), generators())
    front = Front.of(view.network, features.layer, SHAPE)
    entered, cotangents, lanes = features.entered[0], features.cotangents[0], torch.arange(V)
    apart = []
    for sharpness in (3.0, 30.0, 1e3, 1e6):
        h, gradients = front.smoothed(sharpness, entered)(x, cotangents, lanes)
        # The gradient of the last bias depends only on which units are active, which is known.
        weights = [n for n in gradients if n.endswith("weight")]
        pairs = [(h, entered), *((gradients[n], view.update[n]) for n in weights)]
        apart.append([float((one - other).norm() / other.norm()) for one, other in pairs])
    for farther, nearer in itertools.pairwise(apart):
        assert all(b < a for a, b in zip(farther, nearer, strict=True))
    assert max(apart[-1]) < 1e-12
    assert min(apart[0]) > 0.1


@pytest.mark.parametrize("sharpness", [1.0, 20.0])
def test_the_backward_pass_equals_finite_differences(sharpness):
    """The scale of each layer is treated as constant, so the test direction keeps it constant."""
    chain = chain_of(nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(2, 3, 1), nn.Flatten()).double())
    soft = smoothed(chain, sharpness, torch.zeros(1, 1, 12, dtype=torch.float64))
    generator = torch.Generator().manual_seed(5)
    for step in soft.steps[:2]:
        x = torch.randn(1, 1, 5, 5, 2, dtype=torch.float64, generator=generator)
        direction = torch.randn(x.shape, dtype=torch.float64, generator=generator)
        direction = direction - direction.mean()
        direction = direction - x * (direction * (x - x.mean())).sum() / (x - x.mean()).square().sum()
        direction = direction - direction.mean()
        passed = step({}, True, x)
        ahead, behind = (step({}, True, x + h * direction).answer for h in (1e-5, -1e-5))
        measured = (ahead - behind) / 2e-5
        delta = torch.randn(passed.answer.shape, dtype=torch.float64, generator=generator)
        torch.testing.assert_close(
            (delta * measured).sum(), (passed.back(delta) * direction).sum(), rtol=1e-4, atol=1e-7
        )
        torch.testing.assert_close((delta * passed.push(direction)).sum(), (passed.back(delta) * direction).sum())


@pytest.mark.parametrize("sharpness", [None, 1.0, 20.0])
def test_the_derivative_in_one_pass_equals_that_of_autograd(sharpness):
    """Of any function of the features and of the gradients along them, also with ReLUs and pools before the first weights."""
    torch.manual_seed(6)
    layers = (nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(2, 3, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2))
    chain = chain_of(nn.Sequential(*layers, nn.ReLU(), nn.Flatten()).double())
    own = {n: p.detach() for n, p in nn.Sequential(*layers).double().named_parameters()}
    x, cotangents = torch.randn(3, 2, 2, 9, 9).double(), torch.randn(3, 2, 2).double()
    if sharpness is not None:
        chain = smoothed(chain, sharpness, chain.there_and_back_along(own, True, x + 0.3, cotangents).answer)
        assert not any(type(step) in (MaxPool, Pointwise) for step in chain.steps)
    derivatives = []
    for shared in (
        own,
        {n: p.clone().requires_grad_() for n, p in own.items()},
    ):  # In one pass only for constant weights.
        leaf = x.clone().requires_grad_()
        answer, grads = answers_and_gradients(chain, shared, True, leaf, cotangents)
        value = answer.sin().sum() + sum((g.cos() * (1 + n)).sum() for n, g in enumerate(grads.values()))
        derivatives.append((answer.detach(), *grads.values(), *torch.autograd.grad(value, leaf)))
        assert (type(answer.grad_fn).__name__ == "_AnswerAndGradientsBackward") == (shared is own)
    assert derivatives[0][-1].abs().amax((2, 3, 4)).min() > 0
    for one, other in zip(*derivatives, strict=True):
        torch.testing.assert_close(one, other)


def test_an_evaluation_is_freed_without_the_garbage_collector():
    chain = chain_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten()))
    own = {"0.weight": torch.randn(2, 1, 3, 3), "0.bias": torch.zeros(2)}
    gc.disable()
    try:
        x = torch.rand(1, 1, 1, 5, 5, requires_grad=True)
        answer, _ = answers_and_gradients(chain, own, True, x, torch.rand(1, 1, 18))
        alive = weakref.ref(answer.grad_fn.passage)
        assert alive() is not None
        del answer, _
        assert alive() is None
    finally:
        gc.enable()


def test_cotangents_that_need_a_derivative_get_it():
    chain = chain_of(nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()))
    own = {"0.weight": torch.randn(2, 3), "0.bias": torch.zeros(2)}
    x, cotangents = torch.rand(1, 1, 3, requires_grad=True), torch.rand(1, 1, 2, requires_grad=True)
    _, grads = answers_and_gradients(chain, own, True, x, cotangents)
    for slope in torch.autograd.grad(grads["0.weight"].square().sum(), (x, cotangents)):
        assert slope.abs().min() > 0


def test_a_chain_without_kinks_is_unchanged():
    chain = chain_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten()))
    assert smoothed(chain, 1.0, torch.zeros(1, 1, 98)).steps == chain.steps


@pytest.mark.slow
def test_a_search_through_relus_and_maxima_comes_closer_if_they_are_smooth_at_first():
    view, x = leaked()
    descent = AdamDescent(learning_rate=0.1, signed=True, box=True, factor=0.5, milestones=(0.4, 0.6, 0.75, 0.9))
    sharp = FeatureInversion(
        start=Constant(value=0.5, deviation=0.02),
        descent=descent,
        priors=(TotalVariation(weight=0.02),),
        stop=Iterations(limit=200),
        weight=0.1,
    )
    smooth = dataclasses.replace(sharp, weight=3.0, sharpness=(1.0, 100.0), fading=(1 / 30, 0.1))
    missed = [
        (method((view,), generators()).inputs - x).flatten(1).square().mean(1).sqrt() for method in (sharp, smooth)
    ]
    assert float(missed[1].mean()) < 0.8 * float(missed[0].mean())
