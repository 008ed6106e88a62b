"""The squared distance of gradients from factors of linear layers: equal to the sum of squared differences, and as exact."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from leakbench.core.rng import generator
from leakbench.engine.chain import Chain, chain_of
from leakbench.engine.matched import observed, one_minus_cosine, squared_distance
from leakbench.engine.once import gradients_once
from leakbench.models import one_hot

NETWORKS = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, 1), nn.Sigmoid(), nn.Conv2d(4, 4, 3, 1, 1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5)
    ),
    "many classes": lambda: nn.Sequential(
        nn.Conv2d(2, 12, 5, 2, 2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, 1, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(192, 62),
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


def leaked(
    chain: Chain, parameters: dict[str, Tensor], like: Tensor, y: Tensor, w: Tensor, noise: float
) -> dict[str, Tensor]:
    """Return the gradients of other inputs, with noise."""
    other = torch.rand(like.shape, generator=generator(1, "other"), dtype=like.dtype)
    with torch.no_grad():
        seen = {n: g[:, 0] for n, g in gradients_once(chain, parameters, other, y, w, True).items()}
    return {n: g + noise * torch.randn(g.shape, generator=generator(1, n), dtype=g.dtype) for n, g in seen.items()}


def summed(chain: Chain, parameters: dict[str, Tensor], seen: dict[str, Tensor], *rest: Tensor) -> Tensor:
    """The slow reference: the squared differences of the gradients, summed."""
    found = gradients_once(chain, parameters, *rest, merged=True)
    return torch.stack([(g[:, 0] - seen[n]).square().flatten(1).sum(1) for n, g in found.items()]).sum(0)


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_distance_and_its_derivatives_are_those_of_the_gradients(name: str, noise: float) -> None:
    chain, parameters, x, y, w = setting(name, torch.float64)
    parameters = {n: p.detach() for n, p in parameters.items()}
    seen = leaked(chain, parameters, x, y, w, noise)
    answers = []
    for way in (summed, squared_distance):
        guess, soft = x.clone().requires_grad_(), y.clone().requires_grad_()
        given = seen if way is summed else observed(chain, seen)
        value = way(chain, parameters, given, guess, soft, *([w] if way is summed else []))
        factors = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
        answers.append((value.detach(), *torch.autograd.grad((value * factors).sum(), (guess, soft))))
    for ours, slow in zip(answers[1], answers[0], strict=True):
        assert torch.allclose(ours, slow, rtol=1e-9, atol=1e-12 * float(slow.abs().max()))


def by_quotient(chain: Chain, parameters: dict[str, Tensor], seen: dict[str, Tensor], *rest: Tensor) -> Tensor:
    """The slow reference of the cosine: one minus the quotient of sums over all gradients."""
    grads = gradients_once(chain, parameters, *rest, merged=True)
    own = torch.cat([g[:, 0].flatten(1) for g in grads.values()], 1)
    return 1 - nn.functional.cosine_similarity(own, torch.cat([seen[n].flatten(1) for n in grads], 1))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_cosine_and_its_derivatives_are_those_of_the_gradients(name: str, noise: float, size: float) -> None:
    """Also in float32 for observed gradients that are much longer or shorter, such as those with noise."""
    chain, parameters, x, y, w = setting(name, torch.float64)
    parameters = {n: p.detach() for n, p in parameters.items()}
    seen = {n: size * g for n, g in leaked(chain, parameters, x, y, w, noise).items()}
    answers = []
    for way, dtype in (
        (by_quotient, torch.float64),
        (one_minus_cosine, torch.float64),
        (one_minus_cosine, torch.float32),
    ):
        own, given = ({n: t.to(dtype) for n, t in each.items()} for each in (parameters, seen))
        guess, soft, weights = (t.to(dtype).requires_grad_() for t in (x, y, w))
        extra = [weights] if way is by_quotient else []
        value = way(chain, own, given if extra else observed(chain, given), guess, soft, *extra)
        factors = torch.tensor([1.0, 0.5, 2.0], dtype=dtype)
        answers.append((value.detach(), *torch.autograd.grad((value * factors).sum(), (guess, soft))))
    for slow, ours, single in zip(*answers, strict=True):
        assert torch.allclose(ours, slow, rtol=1e-9, atol=1e-11 * float(slow.abs().max()))
        assert torch.allclose(single.double(), slow, rtol=1e-4, atol=1e-5 * float(slow.abs().max()))


def test_an_evaluation_of_a_cosine_is_freed_without_the_garbage_collector() -> None:
    chain, parameters, x, y, _ = setting("wide", torch.float32)
    parameters = {n: p.detach() for n, p in parameters.items()}
    seen = observed(chain, {n: torch.rand(3, *p.shape) for n, p in parameters.items()})
    gc.disable()
    try:
        for way in (one_minus_cosine, squared_distance):
            value = way(chain, parameters, seen, x.clone().requires_grad_(), y)
            alive = weakref.ref(value.grad_fn.passage)
            assert alive() is not None
            del value
            assert alive() is None
    finally:
        gc.enable()


def test_gradients_without_a_direction_are_orthogonal() -> None:
    chain, parameters, x, y, w = setting("many classes", torch.float32)
    parameters = {n: p.detach() for n, p in parameters.items()}
    seen = {n: g[:, 0] for n, g in gradients_once(chain, parameters, x, y, w, True).items()}
    seen = {n: torch.cat([torch.zeros_like(g[:1]), g[1:]]) for n, g in seen.items()}
    y = y.clone()
    y[1] = 0  # Labels without weight: no gradient.
    guess = (x + 0.1).requires_grad_()
    found = one_minus_cosine(chain, parameters, observed(chain, seen), guess, y)
    assert found[:2].tolist() == [1, 1] and 0 < found[2] < 1
    (slope,) = torch.autograd.grad(found.sum(), guess)
    assert slope[:2].abs().max() == 0 < slope[2].abs().max() and slope.isfinite().all()


def test_a_square_that_overflows_has_no_direction() -> None:
    chain = chain_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    assert chain is not None
    own = {"1.weight": torch.eye(3, 4), "1.bias": torch.zeros(3)}
    seen = observed(chain, {"1.weight": torch.ones(1, 3, 4), "1.bias": torch.ones(1, 3)})
    x = torch.tensor([[[1e25, 0.0, 0.0, 0.0]]]).requires_grad_()
    found = one_minus_cosine(chain, own, seen, x, torch.tensor([[[0.0, 1.0, 0.0]]]))
    assert found.tolist() == [1]
    assert torch.autograd.grad(found.sum(), x)[0].abs().max() == 0


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
            assert torch.allclose(f.left @ f.middle @ f.right.mT, given[name].double(), atol=1e-5)
            assert torch.allclose(f.right.mT @ f.right, torch.eye(f.right.shape[2]).double().expand(3, -1, -1))


def test_gradients_of_half_precision_are_not_factored() -> None:
    chain = setting("wide", torch.float32)[0]
    seen = {"1.weight": torch.zeros(3, 40, 128), "3.weight": torch.zeros(3, 40, 40), "5.weight": torch.zeros(3, 3, 40)}
    assert observed(chain, seen).factors
    assert not observed(chain, {name: g.bfloat16() for name, g in seen.items()}).factors


def test_a_gradient_of_one_example_has_low_rank_among_many_and_at_any_width() -> None:
    """In float32 with 3,072 columns and 64 lanes; noise of a millionth of its length is not left out."""
    rng = generator(0, "rank")
    chain = chain_of(nn.Sequential(nn.Flatten(), nn.Linear(3072, 128)))
    assert chain is not None
    d, h = torch.randn(64, 128, generator=rng), torch.rand(64, 3072, generator=rng)
    product = {"1.weight": d[:, :, None] * h[:, None], "1.bias": d}
    [factors] = observed(chain, product).factors.values()
    assert factors.middle.shape[1:] == (5, 5)
    noise = torch.randn(product["1.weight"].shape, generator=rng)
    noise[:-1] = 0  # One lane is enough.
    size = product["1.weight"][-1].norm() / noise[-1].norm()
    noisy = {**product, "1.weight": product["1.weight"] + 1e-6 * size * noise}
    [factors] = observed(chain, noisy).factors.values()
    assert factors.middle.shape[1:] == (128, 128)


def test_a_gradient_of_several_examples_is_refused() -> None:
    chain, parameters, x, y, w = setting("wide", torch.float32)
    with torch.no_grad():
        seen = observed(chain, {n: g[:, 0] for n, g in gradients_once(chain, parameters, x, y, w, True).items()})
    with pytest.raises(ValueError, match="inputs: got 2 examples for each gradient, expected 1"):
        squared_distance(chain, parameters, seen, torch.cat([x, x], 1), torch.cat([y, y], 1))


@pytest.mark.parametrize("step", [1e-5, 1e-3])
@pytest.mark.parametrize("spread", [None, 0.3])
def test_close_to_the_truth_the_distance_is_about_as_exact_as_a_sum_of_differences(
    spread: float | None, step: float
) -> None:
    """In float32, against float64; with PyTorch's own weights the gradient barely depends on the inputs."""
    chain, parameters, x, y, w = setting("many classes", torch.float32)
    if spread is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            parameters = dict(NETWORKS["many classes"]().named_parameters())
    parameters = {n: p.detach() for n, p in parameters.items()}
    seen = {n: g[:, 0] for n, g in gradients_once(chain, parameters, x, y, w, True).items()}
    whole = sum(float(g.square().sum()) for g in seen.values())
    near = x + step * torch.randn(x.shape, generator=generator(2, "near"))
    exact = {n: p.double() for n, p in parameters.items()}
    double = {n: g.double() for n, g in seen.items()}
    answers = []
    for way, own, given, *rest in (
        (squared_distance, parameters, observed(chain, seen), y),
        (summed, parameters, seen, y, w),
        (summed, exact, double, y.double(), w.double()),
    ):
        guess = near.to(own["0.weight"].dtype).requires_grad_()
        value = way(chain, own, given, guess, *rest)
        answers.append((value.detach().double(), torch.autograd.grad(value.sum(), guess)[0].double()))
    for ours, plain, right in zip(*answers, strict=True):
        apart = [float((found - right).norm() / right.norm()) for found in (ours, plain)]
        assert apart[0] <= 2 * apart[1] + 1e-3, apart
    same = squared_distance(chain, parameters, observed(chain, seen), x, y)
    assert float(same.min()) >= 0 and float(same.max()) < 1e-12 * whole
