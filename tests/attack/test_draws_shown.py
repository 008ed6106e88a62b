"""The gradient of one example shows the draws of a sampling network: an adaptive attacker reads them from PRECODE's bottleneck."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.doubts import UNKNOWN
from leakbench.attack.looks import releases
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.methods.stage import Stage
from leakbench.attack.posterior import missed
from leakbench.attack.rankings.candidates import Candidates
from leakbench.core.answers import Reconstruction
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Generators, Network, ShowsDraws
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.precode import Precode, VariationalBottleneck
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import build, one_hot, parameters

CLOCK = Clock(0, 0, 1, 1)
SHAPE = (1, 10, 10)
CLASSES = 3


def sampling() -> Network:
    plain = build("lenet_cpl", SHAPE, CLASSES, generator(0, "model"))
    assert isinstance(plain, nn.Sequential)
    model = Precode(8, 0.5)(plain, SHAPE, CLASSES, generator(0, "extension"))
    assert isinstance(model, VariationalBottleneck)
    assert isinstance(model, ShowsDraws)
    return Network(model, parameters(model))


def leaked(batch: int = 1, knows: bool = True, tap: str = "type-2") -> tuple[View, Tensor, Tensor]:
    """Return the view of three victims behind a bottleneck, their inputs, and the draws of each."""
    net = sampling()
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(3, 1, 1, batch, *SHAPE, generator=generator)
    y = one_hot(torch.randint(CLASSES, (3, 1, 1, batch), generator=generator), CLASSES).float()
    draws = torch.randn(3, 1, batch, net.draws, generator=generator)
    update = leak(tap, net, x, y, 0.1, Stations(), CLOCK, None, draws)
    told = Knowledge(defense=knows)
    return View(tap, net, update, batch, SHAPE, CLASSES, 0.1, knowledge=told), x[:, 0, 0], draws[:, 0, 0]


def test_the_gradient_of_one_example_shows_the_draws() -> None:
    """Two biased linear layers: the quotient of their gradients is their input."""
    view, _, draws = leaked()
    torch.testing.assert_close(view.drawn(), draws, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(view.drawn(torch.tensor([2, 0])), draws[[2, 0]], rtol=1e-2, atol=1e-3)
    whole, _, draws = leaked(tap="type-1")
    torch.testing.assert_close(whole.drawn(), draws, rtol=1e-2, atol=1e-3)


def test_an_adaptive_attacker_guesses_with_the_draws() -> None:
    """The truth then gives exactly the gradient; the mean, which other attackers use, does not."""
    view, x, _ = leaked()
    labels = torch.stack([u for n, u in view.update.items() if n == "classifier.bias"])[0].argmin(1)
    y = one_hot(labels, CLASSES).float()[:, None]
    for name, g in view.respond(x, y, by_what_leaked=True).items():
        torch.testing.assert_close(g, view.update[name], rtol=1e-3, atol=1e-5)
    blind = dataclasses.replace(view, knowledge=Knowledge())
    apart = [(view.respond(x, y)[n] - u).abs().max() for n, u in view.update.items()]
    assert max(apart) > 0.01
    for name, g in blind.respond(x, y, by_what_leaked=True).items():
        torch.testing.assert_close(g, view.respond(x, y)[name])


def test_mixed_or_hidden_draws_are_not_read() -> None:
    """Two examples, noise, no knowledge; a gradient of zeros gives zero."""
    view, _, _ = leaked()
    noisy = Stations(example=(GaussianNoise(multiplier=0.1, to="each", uncalibrated=True),))
    others = (leaked(2, tap="type-1")[0], leaked(knows=False)[0], dataclasses.replace(view, stations=noisy))
    assert view.reads_draws
    for other in others:
        assert not other.reads_draws
        with pytest.raises(TypeError, match="does not show what was drawn"):
            other.drawn()
    behind = dataclasses.replace(view, stations=Stations(client=noisy.example))
    assert behind.reads_draws  # Stations after the leakage point have not acted yet.
    faint = dataclasses.replace(view, update={n: u * 1e-25 for n, u in view.update.items()})
    torch.testing.assert_close(faint.drawn(), view.drawn(), rtol=1e-3, atol=1e-4)
    dark = dataclasses.replace(view, update={n: torch.zeros_like(u) for n, u in view.update.items()})
    assert not dark.drawn().any()


def test_candidates_are_ranked_with_the_draws_of_each_observation() -> None:
    """The truth among ten comes first for each victim, with one observation and with two whose draws differ."""
    one, x, _ = leaked()
    generator = torch.Generator().manual_seed(8)
    labels = next(u for n, u in one.update.items() if n == "classifier.bias").argmin(1)
    others = torch.rand(7, *SHAPE, generator=generator)
    shown = Public(torch.cat([x[:, 0], others]), torch.cat([labels, torch.zeros(7, dtype=torch.int64)]))
    draws = torch.randn(3, 1, 1, one.network.draws, generator=generator)
    again = leak(
        "type-2",
        one.network,
        x[:, None, None],
        one_hot(labels, CLASSES).float()[:, None, None, None],
        0.1,
        Stations(),
        CLOCK,
        None,
        draws,
    )
    views = tuple(dataclasses.replace(one, update=update, candidates=shown) for update in (one.update, again))
    rngs = generators(0, "v", [(v,) for v in range(3)])
    for seen in (views[:1], views):
        assert Candidates()(seen, rngs).scores.argmax(1).tolist() == [0, 1, 2]
    assert len(releases(views)) == 2


@dataclasses.dataclass
class Grey:
    """Returns grey pictures of class 0."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        return answered(
            torch.full((views[0].victims, 1, *SHAPE), 0.5), torch.zeros(views[0].victims, 1, dtype=torch.int64)
        )


def answered(inputs: Tensor, labels: Tensor) -> Reconstruction:
    one = torch.ones(len(inputs), dtype=torch.int64)
    return Reconstruction(
        inputs,
        labels,
        torch.zeros(len(inputs), 1),
        torch.zeros(1, len(inputs)),
        one,
        one,
        inputs[None],
        (1,),
        one[None],
    )


def test_a_reconstruction_is_judged_with_the_draws():
    """The truth matches the leak exactly for an attacker that reads the draws; for others the mean differs."""
    view, x, _ = leaked()
    labels = next(u for n, u in view.update.items() if n == "classifier.bias").argmin(1)[:, None]
    told, length = missed(view, answered(x, labels))
    blind, _ = missed(dataclasses.replace(view, knowledge=Knowledge()), answered(x, labels))
    assert (told < 1e-6 * length).all()
    assert (blind > 1e-4 * length).all()


def test_only_unreadable_draws_cause_doubts():
    view, _, _ = leaked()
    leak_ = AutoLeak(stages=(Stage(method=Grey()),))
    rngs = generators(0, "v", [(v,) for v in range(3)])
    assert UNKNOWN not in leak_((view,), rngs).doubts
    assert leak_((dataclasses.replace(view, knowledge=Knowledge()),), rngs).doubts[UNKNOWN].all()
