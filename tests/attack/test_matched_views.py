"""Which views squared distances are computed for without the gradients of guesses, and that the value stays the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from leakbench.attack import Attack
from leakbench.attack.looks import matched_of
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.distance import Likelihood, SquaredL2
from leakbench.attack.slots.space import Pixels
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
    "the slow engine": {"engine": "reference"},
}


@pytest.mark.parametrize("distance", [SquaredL2(), Likelihood()])
@pytest.mark.parametrize("name", MATCHED)
def test_the_value_and_its_derivatives_stay_the_same(name: str, distance: Any) -> None:
    seen = view(**MATCHED[name])
    method = resolve("attacks", Attack, "cpl")[1].method
    assert isinstance(method, GradientMatching)
    method, space, found = dataclasses.replace(method, distance=distance), Pixels()(seen), matched_of(seen)
    assert found is not None and found.seen.factors
    rng = generator(1, "guess")
    lanes = torch.tensor([2, 0, 1, 2])
    guess = torch.rand(4, seen.examples, *SHAPE, generator=rng, dtype=torch.float64)
    soft = torch.rand(4, seen.examples, CLASSES, generator=rng, dtype=torch.float64).softmax(-1)
    answers = []
    for matched in (((found, distance.divisor(seen)),), None):
        z, targets = space.encode(guess).requires_grad_(), soft.clone().requires_grad_()
        value = method._value((seen,), space, z, targets, None, lanes, matched)
        answers.append((value.detach(), *torch.autograd.grad(value.sum(), (z, targets))))
    for ours, slow in zip(*answers, strict=True):
        assert torch.allclose(ours, slow, rtol=1e-9, atol=1e-10 * float(slow.abs().max()))


@pytest.mark.parametrize("name", PLAIN)
def test_other_updates_need_the_gradients_of_guesses(name: str) -> None:
    assert matched_of(view(**PLAIN[name])) is None


def test_a_distance_of_a_user_is_not_replaced() -> None:
    class Half(SquaredL2):
        def __call__(self, *given: Any) -> torch.Tensor:
            return super().__call__(*given) / 2

    seen = view()
    method = resolve("attacks", Attack, "cpl")[1].method
    assert isinstance(method, GradientMatching)
    points: Any = type("Points", (), {"hidden": None, "space": Pixels()(seen)})
    assert method._matched((seen,), points) is not None
    assert dataclasses.replace(method, distance=Half())._matched((seen,), points) is None
