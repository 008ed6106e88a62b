"""FedKL's lock against the layers of its module, the one key of a client, and a search that finds scales and shifts."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from leakbench.attack.methods.gradient_matching import GradientMatching, Points
from leakbench.attack.slots.descent import LbfgsDescent
from leakbench.attack.slots.distance import Cosine, Distance, Likelihood, SquaredL2, Tag
from leakbench.attack.slots.labels import Given
from leakbench.attack.slots.space import Pixels
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations
from leakbench.core.errors import InputError
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, HidesDraws, Network, Sampling, ShowsDraws
from leakbench.defense.dcs2 import Conceal
from leakbench.defense.key_lock import KeyLock, LockedNetwork, normalised
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.sampling import drawn
from leakbench.federated.view import Knowledge, View
from leakbench.models import build, one_hot, parameters

CLOCK = Clock(0, 0, 1, 1)
SHAPE = (1, 10, 10)
CLASSES = 3


def locked(activation: str = "relu", statistics: str = "example") -> Network:
    plain = build("lenet_cpl", SHAPE, CLASSES, generator(0, "model"))
    part = KeyLock(activation=activation, statistics=statistics)  # type: ignore[arg-type]
    model = part(plain, SHAPE, CLASSES, generator(0, "extension"))
    assert isinstance(model, LockedNetwork)
    return Network(model, parameters(model))


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("statistics", ["example", "initial"])
def test_a_locked_network_is_the_module_with_these_scales_and_shifts(activation, statistics) -> None:
    """One example after the other through torch's batch normalisation in train mode, or through none."""
    model = locked(activation, statistics).model
    x, draws = torch.rand(2, *SHAPE), torch.randn(2, 24)
    logits, penalty = model(x, draws)
    act = torch.relu if activation == "relu" else torch.sigmoid
    for n in range(2):
        features = model.first(x[n : n + 1])
        if statistics == "example":
            features = nn.functional.batch_norm(features, None, None, training=True)
        scale, shift = act(math.sqrt(1 / 9 + 1 / 3072) * draws[n]).reshape(2, 12, 1, 1)
        torch.testing.assert_close(logits[n : n + 1], model.rest(scale * features + shift))
    assert penalty.tolist() == [0, 0]


def test_the_law_of_the_draws_is_that_of_private_layers_of_a_key() -> None:
    """W k + b of PyTorch's linear layers and uniform keys: standard deviation, tails, and independence of two outputs."""
    rng, n, count = torch.Generator().manual_seed(0), 1024, 4000
    key = torch.rand(count, n, generator=rng)
    one, two = (2 * torch.rand(2, count, n, generator=rng) - 1) / math.sqrt(n)
    bias = (2 * torch.rand(count, generator=rng) - 1) / math.sqrt(n)
    first, second = (one * key).sum(1) + bias, (two * key).sum(1) + bias
    deviation = math.sqrt(1 / 9 + 1 / (3 * n))
    assert float(first.std()) == pytest.approx(deviation, rel=0.04)
    assert float((first.abs() > 1.96 * deviation).float().mean()) == pytest.approx(0.05, abs=0.015)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.06


def test_a_client_has_one_key_and_a_guess_the_usual_one() -> None:
    """All examples of a lane share the draws; lanes do not. The usual scale is the mean one."""
    net = locked()
    assert isinstance(net.model, Sampling)
    assert isinstance(net.model, HidesDraws)
    assert not isinstance(net.model, ShowsDraws)
    draws = drawn(net, torch.ones(2, 3, 4), generators(0, "draws", [(0,), (1,)]))
    assert draws is not None
    assert draws.shape == (2, 3, 4, 24)
    assert bool((draws == draws[:, :1, :1]).all())
    assert not torch.equal(draws[0], draws[1])
    usual = drawn(net, torch.ones(2, 1, 1), None)
    assert usual is not None
    assert float(usual.mean()) == pytest.approx(float(torch.randn(100_000).relu().mean()), abs=0.01)
    x = torch.rand(2, *SHAPE)
    torch.testing.assert_close(net.model(x), net.model(x, usual[:, 0, 0])[0])


def test_nothing_of_the_private_layers_is_a_parameter() -> None:
    """The parameters are those of the network without a lock, in its order."""
    plain = build("lenet_cpl", SHAPE, CLASSES, generator(0, "model"))
    sent = locked()
    assert [p.shape for p in sent.parameters.values()] == [p.shape for p in plain.parameters()]
    assert sent.statistics == {}


def leaked(knows: bool = True, statistics: str = "initial") -> tuple[View, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the view of three victims behind locks, their inputs and targets, and their draws."""
    net, rng = locked(statistics=statistics), torch.Generator().manual_seed(5)
    x = torch.rand(3, 1, 1, 1, *SHAPE, generator=rng)
    y = one_hot(torch.randint(CLASSES, (3, 1, 1, 1), generator=rng), CLASSES).float()
    draws = torch.randn(3, 1, 1, 24, generator=rng)
    update = leak("type-1", net, x, y, 0.1, Stations(), CLOCK, None, draws)
    view = View("type-1", net, update, 1, SHAPE, CLASSES, 0.1, knowledge=Knowledge(defense=knows))
    return view, x[:, 0, 0], y[:, 0, 0], draws[:, 0, 0]


@pytest.mark.parametrize("statistics", ["example", "initial"])
def test_a_scale_of_zero_shows_and_the_true_draws_give_the_leak(statistics) -> None:
    """A search starts below zero where the channel has no gradient, above elsewhere; an oblivious attacker searches nothing."""
    view, x, y, draws = leaked(statistics=statistics)
    start = view.hidden()
    assert start is not None
    assert torch.equal(start[:, :12] > 0, draws[:, :12] > 0)
    assert bool((start[:, 12:] > 0).all())
    found = view.respond(x, y, by_what_leaked=True, hidden=draws)
    for name, u in view.update.items():
        torch.testing.assert_close(found[name], u)
    usual = view.respond(x, y, by_what_leaked=True)
    assert any(not torch.allclose(usual[n], u, rtol=0.1) for n, u in view.update.items())
    assert leaked(knows=False)[0].hidden() is None
    adam = dataclasses.replace(view.clock, client_optimizer="adam")
    assert dataclasses.replace(view, clock=adam).hidden() is None


def test_sigmoid_scales_start_at_their_mean() -> None:
    """A sigmoid is never zero, so that no channel is without a gradient."""
    model = locked("sigmoid").model
    assert not model.searched_from({"first.weight": torch.zeros(12, 1, 5, 5)}).any()


def test_a_search_finds_the_scales_with_the_image() -> None:
    """Squared distance over draws and image, by L-BFGS in double precision; with the usual draws no image fits."""
    view, x, y, draws = leaked()
    view, x, y = view.to(torch.float64), x.double(), y.double()
    start = view.hidden()
    assert start is not None
    errors = {}
    for searched in (True, False):
        z = torch.cat([torch.full((3, 100), 0.5), start.float()], 1).double().requires_grad_()
        lbfgs = torch.optim.LBFGS([z], max_iter=150, history_size=30, line_search_fn="strong_wolfe", tolerance_change=0)

        def value(z=z, searched=searched) -> torch.Tensor:
            hidden = z[:, 100:] if searched else None
            guess = view.respond(z[:, :100].reshape(x.shape), y, by_what_leaked=True, hidden=hidden)
            return 1e4 * sum((g - view.update[n]).square().sum() for n, g in guess.items())

        def closure(z=z, value=value, lbfgs=lbfgs) -> torch.Tensor:
            lbfgs.zero_grad()
            loss = value()
            loss.backward()
            return loss

        lbfgs.step(closure)
        errors[searched] = float((z.detach()[:, :100] - x.flatten(1)).square().mean().sqrt())
        if searched:
            apart = z.detach()[:, 100:112].relu() - draws[:, :12].relu()
            assert float(apart.square().mean().sqrt()) < 0.2
    assert errors[True] < 0.1
    assert errors[False] > 0.2


def test_the_private_numbers_of_a_lock_and_of_a_transform_are_refused() -> None:
    """The transform would read the numbers of the lock."""
    view = dataclasses.replace(leaked()[0], stations=Stations(batch=(Conceal(),)))
    with pytest.raises(InputError, match="defense: got 2 parts with private numbers, LockedNetwork and conceal"):
        view.hidden()


def matching(distance: Distance) -> GradientMatching:
    """Return a search by L-BFGS from a grey image, with the true label."""
    stop = Iterations(limit=100)
    return GradientMatching(
        labels=Given(), start=Constant(value=0.5), distance=distance, descent=LbfgsDescent(), stop=stop
    )


def test_an_attack_that_knows_the_defense_searches_the_scales() -> None:
    """The same search finds every image with the scales and none without them."""
    errors = {}
    for knows in (True, False):
        view, x, y, _ = leaked(knows=knows)
        view = dataclasses.replace(view.to(torch.float64), labels=y.argmax(-1))
        found = matching(SquaredL2())((view,), generators(0, "start", [(0,), (1,), (2,)])).inputs
        errors[knows] = (found - x).square().flatten(1).mean(1).sqrt()
    assert float(errors[True].max()) < 0.1
    assert float(errors[False].min()) > 0.2


@pytest.mark.parametrize(
    ("distance", "share"), [(Likelihood(), 0.5), (SquaredL2(), 0.0), (Tag(), 0.0), (Cosine(), 0.0)]
)
def test_private_numbers_have_a_prior_only_in_units_of_a_likelihood(distance: Distance, share: float) -> None:
    """At the truth a distance is zero, so that minus the logarithm of the prior is left: |draws|^2 / 2 or nothing."""
    view, x, y, draws = leaked()
    view, x, y, draws = view.to(torch.float64), x.double(), y.double(), draws.double()
    exact = view.respond(x, y, by_what_leaked=True, hidden=draws)
    view = dataclasses.replace(view, update={n: g.detach() for n, g in exact.items()})
    z = x.flatten(2)
    points = Points(Pixels()(view), z.shape[1:], y, joint=False, hidden=draws)
    value = matching(distance)._value((view,), points)(z, y, draws, torch.arange(3))
    torch.testing.assert_close(value, share * draws.square().sum(1))


def test_normalising_hides_the_contrast_of_a_channel() -> None:
    """Features times a constant plus a constant are normalised to the same."""
    features = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(normalised(features), normalised(5 * features - 2), rtol=1e-3, atol=1e-3)


def test_a_network_without_a_first_convolution_has_no_lock() -> None:
    """An MLP starts with Flatten."""
    with pytest.raises(InputError, match="key_lock: got a network that starts with Flatten"):
        KeyLock()(build("mlp", SHAPE, CLASSES, generator(0, "model")), SHAPE, CLASSES, generator(0, "extension"))
