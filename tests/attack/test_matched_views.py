"""Which views squared distances are computed for without the gradients of guesses, and that the value stays the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.distance import Cosine, Likelihood, SquaredL2
from leakbench.attack.slots.space import Pixels
from leakbench.attack.squared_distances import squared_distances
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense import Defense
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import one_hot, parameters

VICTIMS, CLASSES, SHAPE = 3, 5, (3, 16, 16)


def view(
    point: str = "type-1",
    clients: int = 1,
    steps: int = 1,
    epochs: int = 1,
    batch: int = 1,
    defense: str = "none",
    oblivious: bool = False,
    clock: dict[str, Any] | None = None,
    **network: Any,
) -> View:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.Sigmoid(), nn.Flatten(), nn.Linear(384, 40), nn.Tanh(), nn.Linear(40, CLASSES)
    )
    model = model.double()
    rng = generator(0, "view")
    stations = resolve("defenses", Defense, defense)[1].stations
    sent = dataclasses.replace(Network(model, parameters(model)), **network)
    x = torch.rand(VICTIMS, clients, steps // epochs, batch, *SHAPE, generator=rng, dtype=torch.float64)
    y = torch.randint(CLASSES, x.shape[:4], generator=rng)
    x, y = torch.cat([x] * epochs, 2), one_hot(torch.cat([y] * epochs, 2), CLASSES).double()
    at = Clock(0, 0, 1, steps, cohort=clients, clients=clients, **(clock or {}))
    rngs = generators(0, "noise", [(v,) for v in range(VICTIMS * clients)])
    with torch.no_grad():
        update = leak(point, sent, x, y, 0.1, stations, at, rngs)
    known = Stations() if oblivious else stations
    sizes = {"cohort": clients, "local_steps": steps, "epochs": epochs}
    return View(point, sent, update, batch, SHAPE, CLASSES, 0.1, **sizes, stations=known, clock=at)


MATCHED: dict[str, dict[str, Any]] = {
    "an example": {"point": "type-2"},
    "a client update": {},
    "a cohort of one": {"point": "type-0"},
    "momentum of a first step": {"clock": {"momentum": 0.9}},
    "an attacker that does not know the defense": {"defense": "fed_cdp", "oblivious": True},
    "before the defense acts": {"point": "type-2", "defense": "fed_sdp_client"},
}

PLAIN: dict[str, dict[str, Any]] = {
    "a batch": {"batch": 3},
    "a cohort": {"point": "type-0", "clients": 2},
    "several steps": {"steps": 2},
    "several epochs": {"steps": 2, "epochs": 2},
    "Adam": {"clock": {"client_optimizer": "adam"}},
    "weight decay": {"clock": {"weight_decay": 0.01}},
    "a known defense": {"defense": "fed_cdp"},
    "a known change of the inputs": {"defense": "ats"},
    "the slow engine": {"engine": "reference"},
}


def points(space: Any, hidden: torch.Tensor | None = None) -> Any:
    """The part of `Points` that says which distances are needed."""
    return type("Points", (), {"hidden": hidden, "space": space})


def cpl(distance: Any) -> GradientMatching:
    method = resolve("attacks", Attack, "cpl")[1].method
    assert isinstance(method, GradientMatching)
    return dataclasses.replace(method, distance=distance)


@pytest.mark.parametrize("distance", [SquaredL2(), Likelihood(), Likelihood(floor=0.5), Cosine()])
@pytest.mark.parametrize("name", MATCHED)
def test_the_value_and_its_derivatives_stay_the_same(name: str, distance: Any) -> None:
    seen = dataclasses.replace(view(**MATCHED[name]), noise=0.3)
    found = squared_distances(seen)
    assert found is not None and found.seen.factors
    rng = generator(1, "guess")
    lanes = torch.tensor([2, 0, 1, 2])
    guess = torch.rand(4, seen.examples, *SHAPE, generator=rng, dtype=torch.float64)
    soft = torch.rand(4, seen.examples, CLASSES, generator=rng, dtype=torch.float64).softmax(-1)

    class Other(type(distance)):  # type: ignore[misc]
        """A subclass, for which the gradients of guesses are computed."""

    answers = []
    for one in (distance, Other(**dataclasses.asdict(distance))):
        x, y = guess.clone().requires_grad_(), soft.clone().requires_grad_()
        [value] = cpl(one)._distances((seen,), points(Pixels()(seen)))(x, y, lanes, None)
        answers.append((value.detach(), *torch.autograd.grad(value.sum(), (x, y))))
    for ours, slow in zip(*answers, strict=True):
        assert torch.allclose(ours, slow, rtol=1e-9, atol=1e-10 * float(slow.abs().max()))


@pytest.mark.parametrize("name", PLAIN)
def test_other_updates_need_the_gradients_of_guesses(name: str) -> None:
    assert squared_distances(view(**PLAIN[name])) is None


def test_a_network_that_was_sent_with_other_weights_or_other_numbers_needs_them() -> None:
    seen = view()
    network = seen.network
    for changed in (
        {"correction": {n: p[None] for n, p in network.parameters.items()}},
        {"own": {n: p[None] for n, p in network.parameters.items()}},
        {"parameters": {n: p.expand(VICTIMS, *p.shape) for n, p in network.parameters.items()}, "shared": False},
        {"parameters": {n: p.float() for n, p in network.parameters.items()}},
    ):
        other = {
            name: value for name, value in changed.items() if name in {f.name for f in dataclasses.fields(network)}
        }
        assert squared_distances(dataclasses.replace(seen, network=dataclasses.replace(network, **other))) is None


def test_several_observations_private_numbers_and_unreached_layers_need_them() -> None:
    seen, method = view(), cpl(SquaredL2())
    space = Pixels()(seen)
    assert method._squared((seen,), points(space)) is not None
    assert method._squared((seen, seen), points(space)) is None
    assert method._squared((seen,), points(space, torch.zeros(VICTIMS, 2))) is None
    assert method._squared((seen,), points(dataclasses.replace(space, unreached=frozenset({"0.bias"})))) is None


def test_two_networks_that_show_the_same_victims_are_added() -> None:
    one, other = view(), view()
    x, y = torch.rand(VICTIMS, 1, *SHAPE).double(), one_hot(torch.zeros(VICTIMS, 1).long(), CLASSES).double()
    distances = cpl(SquaredL2())._distances((one, other), points(Pixels()(one)))
    assert len([*distances(x, y, torch.arange(VICTIMS), None)]) == 2
    noisy = dataclasses.replace(other, noise=0.5)
    distances = cpl(Likelihood())._distances((dataclasses.replace(one, noise=0.1), noisy), points(Pixels()(one)))
    two = [*distances(x, y, torch.arange(VICTIMS), None)]
    torch.testing.assert_close(two[0], 25 * two[1])


def test_a_distance_of_a_user_is_not_replaced() -> None:
    class Half(SquaredL2):
        def __call__(self, *given: Any) -> torch.Tensor:
            return super().__call__(*given) / 2

    class Steep(Cosine):
        def __call__(self, *given: Any) -> torch.Tensor:
            return super().__call__(*given) * 2

    seen = view()
    for distance in (Half(), Steep()):
        assert cpl(distance)._squared((seen,), points(Pixels()(seen))) is None
