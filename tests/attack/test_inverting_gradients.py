"""The recipe of Inverting Gradients against its loop written out for one victim, and its reconstructions."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.public import FEW, channel_moments
from leakbench.attack.slots.stop import Iterations
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Generators, Network
from leakbench.data.find import load_dataset
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View
from leakbench.models import build, one_hot, parameters

VARIANTS = ["", "_oracle_labels", "_short", "_short_oracle_labels"]


def method(name: str, iterations: int) -> GradientMatching:
    found = resolve("attacks", Attack, name)[1].method
    assert isinstance(found, GradientMatching)
    return dataclasses.replace(found, stop=Iterations(limit=iterations))


def rngs(victims: int) -> Generators:
    return generators(0, "attack", [(v,) for v in range(victims)])


def leaked(victims: int, dtype: torch.dtype) -> tuple[View, Tensor]:
    """Return digits and their gradients at a sigmoid LeNet, in float64, and the digits (V, 1, *s)."""
    data = load_dataset("digits")[2]
    model = build("lenet_cpl", data.shape, data.classes, generator(0, "leak model"))
    network = Network(model, parameters(model))
    chosen = data.victims[:victims]
    x, y = data.train_inputs[chosen, None], data.train_targets[chosen, None]
    targets = one_hot(y, data.classes)[:, None, None]
    update = leak("type-2", network, x[:, None, None], targets, 0.05, Stations(), Clock(0, 0, 1, 1), None)
    known = Public(data.test_inputs[:FEW], data.test_targets[:FEW])
    held = {n: u.detach() for n, u in update.items()}
    view = View("type-2", network, held, 1, data.shape, data.classes, 0.05, public=known, labels=y)
    return view.to(dtype), x


def one_by_one(view: View, victim: int, start: Tensor, limit: int) -> list[float]:
    """Its authors' loop: standardised pixels, cost `sim`, signed gradients, Adam, decay, box; the model gets plain pixels."""
    assert view.public is not None
    assert view.labels is not None
    mean, deviation = (m.double() for m in channel_moments(view.public))
    z = ((start - mean) / deviation).clone().requires_grad_()
    optimiser = torch.optim.Adam([z], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [limit * k // 8 for k in (3, 5, 7)], gamma=0.1)
    seen = []
    for _ in range(limit):
        optimiser.zero_grad()
        held = {n: p.clone().requires_grad_() for n, p in view.network.parameters.items()}
        x = z * deviation + mean
        loss = nn.functional.cross_entropy(
            torch.func.functional_call(view.network.model, held, (x,)), view.labels[victim]
        )
        gradient = torch.autograd.grad(loss, list(held.values()), create_graph=True)
        truth = [view.update[n][victim] for n in held]
        product = sum((g * t).sum() for g, t in zip(gradient, truth, strict=True))
        squares = [sum(g.pow(2).sum() for g in some) for some in (gradient, truth)]
        variation = (z[..., 1:] - z[..., :-1]).abs().mean() + (z[..., 1:, :] - z[..., :-1, :]).abs().mean()
        cost = 1 - product / squares[0].sqrt() / squares[1].sqrt() + 1e-4 * variation
        cost.backward()
        z.grad.sign_()
        optimiser.step()
        schedule.step()
        z.data = torch.max(torch.min(z, (1 - mean) / deviation), -mean / deviation)
        seen.append(float(cost.detach()))
    return seen


def test_the_recipe_follows_its_authors_loop() -> None:
    """Three digits in float64: every cost of 16 iterations, with three decays of the rate, equals that of one victim alone."""
    view, _ = leaked(3, torch.float64)
    attack = method("inverting_gradients", 16)
    answer = attack((view,), rngs(3))
    start = attack.start(view, rngs(3))
    slow = torch.tensor([one_by_one(view, v, start[v], 16) for v in range(3)], dtype=torch.float64).T
    torch.testing.assert_close(answer.trajectory, slow, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_it_reconstructs_digits() -> None:
    """Undefended: after 150 iterations nearly every digit is closer than the public mean, with every label right."""
    view, x = leaked(6, torch.float32)
    assert view.public is not None
    answer = method("inverting_gradients_short", 150)((view,), rngs(6))
    error = (answer.inputs - x).square().flatten(1).mean(1).sqrt()
    blind = (view.public.inputs.mean(0) - x).square().flatten(1).mean(1).sqrt()
    assert (error < blind).sum() >= 5
    assert torch.equal(answer.labels, view.labels)
    assert answer.inputs.min() >= 0
    assert answer.inputs.max() <= 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_differ_as_their_names_say(variant: str) -> None:
    """In the labels; in iterations and the weight of the prior."""
    plain, other = (resolve("attacks", Attack, "inverting_gradients" + v)[1] for v in ("", variant))
    assert isinstance(plain.method, GradientMatching)
    assert isinstance(other.method, GradientMatching)
    assert other.needs.labels == ("oracle" in variant)
    assert other.method.stop.limit == (4000 if "short" in variant else 24_000)
    for name in ("space", "start", "distance", "descent", "restarts"):
        assert getattr(other.method, name) == getattr(plain.method, name)
