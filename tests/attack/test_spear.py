"""SPEAR reconstructs batches behind a ReLU layer exactly, with a certificate that needs no truth, and reports its limits."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.methods.spear import Spear
from leakbench.core.errors import InputError
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import build, one_hot, parameters

SHAPE, CLASSES = (1, 8, 8), 4


def view(
    victims: int, many: int, stations: Stations | None = None, name: str = "mlp_relu", noise: float = 0.0
) -> tuple[View, Tensor]:
    model = build(name, SHAPE, CLASSES, generator(0, "m"))
    network = Network(model, parameters(model))
    rng = torch.Generator().manual_seed(many)
    x = torch.rand(victims, 1, 1, many, *SHAPE, generator=rng)
    y = one_hot(torch.randint(CLASSES, (victims, 1, 1, many), generator=rng), CLASSES)
    update = leak("type-1", network, x, y, 0.1, stations or Stations(), Clock(0, 0, 1, 1), None)
    if noise:
        deviation = noise * update["1.weight"].square().mean().sqrt()
        update = {n: u + deviation * torch.randn(u.shape, generator=rng) for n, u in update.items()}
    return View("type-1", network, update, many, SHAPE, CLASSES, 0.1), x[:, 0, 0]


def rngs(victims: int) -> tuple[torch.Generator, ...]:
    return generators(0, "v", [(v,) for v in range(victims)])


def exact(found: Tensor, truth: Tensor) -> Tensor:
    """Return (V, M): which reconstructions equal one of the truths to 1e-3."""
    apart = (found[:, :, None] - truth[:, None]).flatten(3).square().mean(3).sqrt()
    return (apart.nan_to_num(nan=torch.inf) < 1e-3).any(2)


@pytest.mark.slow
@pytest.mark.parametrize("many", [1, 2, 5, 8])
def test_batches_are_reconstructed_with_a_certificate(many):
    shown, x = view(3, many)
    found = Spear()((shown,), rngs(3))
    assert exact(found.inputs, x).all()
    assert (found.certainty > 0.9).all()
    assert found.labels.shape == (3, many)


def test_a_clip_of_each_example_does_not_stop_it():
    """It scales each example's gradient, which keeps the factors' zeros."""
    shown, x = view(2, 4, Stations(example=(ClipWhole(norm=1e-2),)))
    assert exact(Spear()((shown,), rngs(2)).inputs, x).all()


def test_noise_reduces_reconstructions():
    """Noise of a hundred-thousandth of the gradient's own deviation changes nothing, noise of that deviation everything."""
    little, x = view(2, 4, noise=1e-5)
    assert exact(Spear()((little,), rngs(2)).inputs, x).all()
    loud, x = view(2, 4, noise=1.0)
    found = Spear(draws=4000)((loud,), rngs(2))
    assert not exact(found.inputs, x).any()
    assert not (found.certainty > 0.97).any()


def test_a_batch_with_equal_examples_has_no_reconstruction():
    """The same example twice: the rank is too small, and nothing is invented."""
    shown, _ = view(2, 4)
    twice, _ = view(2, 3)
    found = Spear(draws=2000)((dataclasses.replace(shown, update=twice.update),), rngs(2))
    assert found.inputs.isnan().all()
    assert (found.certainty == -torch.inf).all()


def test_the_same_generators_give_the_same_bits():
    shown, _ = view(2, 6)
    one, other = (Spear()((shown,), rngs(2)).inputs for _ in range(2))
    assert torch.equal(one, other)


def test_unsuitable_networks_are_refused():
    convolved, _ = view(1, 2, name="lenet_cpl")
    with pytest.raises(InputError, match="spear reads a biased linear first layer"):
        Spear()((convolved,), rngs(1))
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, CLASSES))
    shown, _ = view(1, 4)
    few = {name: torch.zeros(1, *p.shape) for name, p in parameters(small).items()}
    with pytest.raises(InputError, match="got 4 examples, expected fewer than the 3"):
        Spear()((dataclasses.replace(shown, network=Network(small, parameters(small)), update=few),), rngs(1))
