"""The squared distance of gradients from factors of linear layers: equal to the sum of squared differences, and as exact."""

import pytest
import torch
from torch import Tensor, nn

from leakbench.core.rng import generator
from leakbench.engine.chain import Chain, chain_of
from leakbench.engine.matched import observed, squared_distance
from leakbench.engine.once import gradients_once
from leakbench.models import one_hot

NETWORKS = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, 1), nn.Sigmoid(), nn.Conv2d(4, 4, 3, 1, 1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5)
    ),
    "wide": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(128, 40), nn.GELU(), nn.Linear(40, 40, bias=False), nn.ReLU(), nn.Linear(40, 3)
    ),
    "tall": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(128, 6), nn.Sigmoid(), nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3)
    ),
}


def setting(name: str, dtype: torch.dtype) -> tuple[Chain, dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Return a chain with its parameters, and inputs, targets and weights of three lanes."""
    rng = generator(0, name)
    model = NETWORKS[name]().to(dtype)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3, generator=rng)
    chain = chain_of(model)
    assert chain is not None
    x = torch.rand(3, 1, 2, 8, 8, generator=rng, dtype=dtype)
    classes = model[-1].out_features
    y = one_hot(torch.randint(classes, (3, 1), generator=rng), classes).to(dtype)
    return chain, dict(model.named_parameters()), x, y, torch.ones(3, 1, dtype=dtype)


def summed(chain: Chain, parameters: dict[str, Tensor], seen: dict[str, Tensor], *rest: Tensor) -> Tensor:
    """The slow reference: the squared differences of the gradients, summed."""
    found = gradients_once(chain, parameters, *rest, merged=True)
    return torch.stack([(g[:, 0] - seen[n]).square().flatten(1).sum(1) for n, g in found.items()]).sum(0)


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_distance_and_its_derivatives_are_those_of_the_gradients(name: str, noise: float) -> None:
    chain, parameters, x, y, w = setting(name, torch.float64)
    parameters = {n: p.detach() for n, p in parameters.items()}
    other = torch.rand(x.shape, generator=generator(1, "other"), dtype=x.dtype)
    with torch.no_grad():
        seen = {n: g[:, 0] for n, g in gradients_once(chain, parameters, other, y, w, True).items()}
        seen = {n: g + noise * torch.randn(g.shape, generator=generator(1, n), dtype=g.dtype) for n, g in seen.items()}
    answers = []
    for way in (summed, squared_distance):
        guess, soft = x.clone().requires_grad_(), y.clone().requires_grad_()
        given = seen if way is summed else observed(chain, seen)
        value = way(chain, parameters, given, guess, soft, w)
        factors = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
        answers.append((value.detach(), *torch.autograd.grad((value * factors).sum(), (guess, soft))))
    for ours, slow in zip(answers[1], answers[0], strict=True):
        assert torch.allclose(ours, slow, rtol=1e-9, atol=1e-12 * float(slow.abs().max()))


def test_only_matrices_of_low_rank_or_with_a_short_side_are_factored() -> None:
    chain, parameters, x, y, w = setting("wide", torch.float32)
    parameters = {n: p.detach() for n, p in parameters.items()}
    seen = {n: g[:, 0] for n, g in gradients_once(chain, parameters, x, y, w, True).items()}
    weights = [n for n, g in seen.items() if g.dim() == 3]
    assert set(observed(chain, seen).factors) == set(weights)
    noisy = {n: g + torch.randn(g.shape, generator=generator(0, n)) for n, g in seen.items()}
    found = observed(chain, noisy)
    assert set(found.factors) == {weights[2]} and {weights[0], weights[1]} <= set(found.gradients)
    for given, each in ((seen, observed(chain, seen)), (noisy, found)):
        for name, f in each.factors.items():
            assert torch.allclose(f.left @ f.middle @ f.right.mT, given[name], atol=1e-5)
            assert torch.allclose(f.right.mT @ f.right, torch.eye(f.right.shape[2]).expand(3, -1, -1), atol=1e-5)


def test_gradients_of_half_precision_are_not_factored() -> None:
    chain = setting("wide", torch.float32)[0]
    seen = {"1.weight": torch.zeros(3, 40, 128), "3.weight": torch.zeros(3, 40, 40), "5.weight": torch.zeros(3, 3, 40)}
    assert observed(chain, seen).factors
    assert not observed(chain, {name: g.bfloat16() for name, g in seen.items()}).factors


def test_close_to_the_truth_the_distance_is_as_exact_as_a_sum_of_differences() -> None:
    """In float32, one step of 1e-4 from the truth: terms of the length of the gradient would hide the distance."""
    chain, parameters, x, y, w = setting("convolutions", torch.float32)
    parameters = {n: p.detach() for n, p in parameters.items()}
    seen = {n: g[:, 0] for n, g in gradients_once(chain, parameters, x, y, w, True).items()}
    whole = sum(float(g.square().sum()) for g in seen.values())
    near = x + 1e-4 * torch.randn(x.shape, generator=generator(2, "near"))
    ours = squared_distance(chain, parameters, observed(chain, seen), near, y, w)
    exact = {n: p.double() for n, p in parameters.items()}
    double = {n: g[:, 0] for n, g in gradients_once(chain, exact, x.double(), y.double(), w.double(), True).items()}
    slow = summed(chain, exact, double, near.double(), y.double(), w.double())
    assert float(slow.max()) < 1e-6 * whole
    assert torch.allclose(ours.double(), slow, rtol=0.05, atol=1e-13 * whole)
    same = squared_distance(chain, parameters, observed(chain, seen), x, y, w)
    assert float(same.min()) >= 0 and float(same.max()) < 1e-12 * whole
