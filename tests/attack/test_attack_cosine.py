"""The cosine distance against its formula, and its invariances."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench.attack.slots.distance import DISTANCE, Cosine
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.types import Network
from leakbench.federated.view import View


def view() -> View:
    return View("type-2", Network(torch.nn.Identity(), {}), {}, 1, (2,), 2, 0.1)


def pair(seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two sets of gradients of three victims, two layers each."""
    rng = torch.Generator().manual_seed(seed)

    def draw() -> dict[str, Tensor]:
        shapes = {"a": (3, 4, 2), "b": (3, 5)}
        return {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in shapes.items()}

    return draw(), draw()


def as_released(guess: dict[str, Tensor], observed: dict[str, Tensor], victim: int) -> float:
    """Inverting Gradients' sum over layers for one victim: products and squares first, one division at the end."""
    cost = torch.zeros((), dtype=torch.float64)
    squares = [torch.zeros((), dtype=torch.float64) for _ in range(2)]
    for name, g in guess.items():
        cost -= (g[victim] * observed[name][victim]).sum()
        squares[0] += g[victim].pow(2).sum()
        squares[1] += observed[name][victim].pow(2).sum()
    return float(1 + cost / squares[0].sqrt() / squares[1].sqrt())


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6))
@settings(max_examples=30, deadline=None)
def test_it_is_the_global_cosine_and_blind_to_length(seed: int, scale: float) -> None:
    """As the released code, victim by victim; as torch's cosine of the flattened gradients; the same for any scale."""
    guess, observed = pair(seed)
    found = Cosine()(guess, observed, view())
    slow = torch.tensor([as_released(guess, observed, v) for v in range(3)], dtype=torch.float64)
    torch.testing.assert_close(found, slow)
    flat = [torch.cat([g.flatten(1) for g in some.values()], 1) for some in (guess, observed)]
    torch.testing.assert_close(found, 1 - torch.nn.functional.cosine_similarity(flat[0], flat[1]))
    torch.testing.assert_close(Cosine()({n: g * scale for n, g in guess.items()}, observed, view()), found)


def test_closed_forms() -> None:
    """0 for itself, 2 for its opposite, 1 for orthogonal or zero gradients; zero has a finite derivative."""
    one, other = {"a": torch.tensor([[3.0, 0.0]])}, {"a": torch.tensor([[0.0, 2.0]])}
    zero = torch.zeros(1, 2, requires_grad=True)
    assert Cosine()(one, one, view()).tolist() == [0.0]
    assert Cosine()(one, {"a": -one["a"]}, view()).tolist() == [2.0]
    assert Cosine()(one, other, view()).tolist() == [1.0]
    value = Cosine()({"a": zero}, one, view())
    assert value.tolist() == [1.0]
    assert torch.autograd.grad(value.sum(), zero)[0].isfinite().all()


def test_the_layers_are_not_compared_one_by_one() -> None:
    """If of two layers the long one points the right way and the short one the wrong way, the distance is nearly 0, not 1."""
    guess = {"long": torch.tensor([[100.0]]), "short": torch.tensor([[1.0]])}
    observed = {"long": torch.tensor([[100.0]]), "short": torch.tensor([[-1.0]])}
    assert float(Cosine()(guess, observed, view())) == pytest.approx(2 / 10_001, rel=1e-3)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match="unknown field 'weight'"):
        construct(DISTANCE.parts["cosine"], {"weight": 1.0})
