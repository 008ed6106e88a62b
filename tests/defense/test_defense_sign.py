"""signSGD as a defense, and an adaptive attacker against it."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.attack.one_step import answered_at_once
from leakbench.attack.posterior import posterior
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.slots.distance import Likelihood, SquaredL2
from leakbench.cell import Request, resolve_cell
from leakbench.cell.accounting import cell_epsilon
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Fact, Local, Signal
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.guess import Chooses, Explains, on_a_guess, unlikelihood
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.sign import SHARPNESS, Sign, SoftSign, margins
from leakbench.defense.transform import Stations
from leakbench.execute import _sent, hand_out
from leakbench.experiment.victims import aware, draw_victims, truth, view_of
from leakbench.models import one_hot
from leakbench.privacy.claim import MomentsClaim

NOW = Clock(0, 0, 1, 1)
GRADS = {"a": torch.tensor([[[0.5, -2.0, 0.0]], [[1e-20, 3.0, -1e9]]]), "b": torch.tensor([[[[-0.0]]], [[[7.0]]]])}
BESIDE = Local(None, torch.zeros(2, 1, 1), torch.zeros(2, 1, 1))  # type: ignore[arg-type]


def test_signs_and_their_bound():
    """For p = 4 coordinates the norm is at most 2 sizes."""
    after = Sign(size=0.5)(Signal(GRADS, local=BESIDE), NOW, None)
    assert after.grads["a"].tolist() == [[[0.5, -0.5, 0.0]], [[0.5, 0.5, -0.5]]]
    assert after.grads["b"].flatten().tolist() == [0.0, 0.5]
    assert after.sensitivity.tolist() == [1.0, 1.0]
    assert after.facts == (Fact("clip", norm=1.0, rescales=True),)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(1e-3, 10))
def test_signs_ignore_length_and_stay_within_their_bound(seed, length, size):
    g = {
        n: torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(seed))
        for n, shape in {"a": (5,), "b": (2, 2)}.items()
    }
    one, other = (Sign(size=size)(Signal({n: k * x for n, x in g.items()}), NOW, None) for k in (1.0, length))
    for name, x in one.grads.items():
        assert torch.equal(x, other.grads[name])
    norms = torch.cat([x.flatten(2) for x in one.grads.values()], 2).norm(dim=2)
    assert (norms <= one.sensitivity[:, None] * (1 + 1e-6)).all()
    torch.testing.assert_close(one.sensitivity, torch.full((2,), size * 3.0))


@pytest.mark.parametrize("size", [0, -1.0, math.nan, math.inf])
def test_a_size_is_positive(size):
    with pytest.raises((InputError, ValueError), match="size"):
        Sign(size=float(size))


def ledger(**stations):
    """Return the epsilons of signs with noise at a fixed multiple of their bound."""
    some = resolve_cell(Request(dataset="digits", victims=1, candidates=5, train_rounds=2), None)
    claim = MomentsClaim(unit="example", noise_multiplier=2.0)
    defense = Defense(title="t", cite="c", unit="example", claim=claim, batches="poisson", **stations)
    return cell_epsilon(defense, some.data, some.settings, hand_out(some), None)


def test_noise_over_the_bound_of_signs_has_the_epsilon_of_a_clip():
    """For any size and after any clip, since a sign vector may be longer than the clipped gradient."""
    noise = (GaussianNoise(2.0, "sum"),)
    clipped = ledger(example=(ClipWhole(4.0),), batch=noise)
    assert clipped.valid is not None
    for before in ((), (ClipWhole(1e-3),)):
        assert ledger(example=(*before, Sign(size=3.0)), batch=noise).valid == pytest.approx(clipped.valid)
    bare = ledger(example=(Sign(),))
    assert bare.valid is None
    assert "noise" in bare.reason


def test_signs_at_the_server_state_no_bound():
    """The ledger's probe has only one coordinate of each tensor there."""
    after = Sign()(dataclasses.replace(Signal(GRADS), local=None), NOW, None)
    assert after.facts[0].norm == math.inf
    assert "how many coordinates" in after.facts[0].reason


def test_a_soft_sign_has_the_signs_and_the_closed_form():
    """m / (1 + |m|), m = g / (.01 rms): (3, -4) of rms 5 / sqrt 2; a zero tensor stays zero, with a finite derivative."""
    g = torch.tensor([[[3.0, -4.0]], [[0.0, 0.0]]], requires_grad=True)
    soft = SoftSign(2.0)(Signal({"a": g}), NOW, None).grads["a"]
    m = torch.tensor([3.0, -4.0]) / (SHARPNESS * 5 / 2**0.5)
    torch.testing.assert_close(soft[0, 0], 2 * m / (1 + m.abs()))
    assert soft[1].tolist() == [[0.0, 0.0]]
    (into,) = torch.autograd.grad(soft[0].sum(), g)
    assert into[0].ne(0).all()
    assert into.isfinite().all()
    torch.testing.assert_close(margins(soft[:1, 0], torch.tensor([[2.0, 2.0]])), m[None], rtol=1e-4, atol=0)
    torch.testing.assert_close(
        margins(soft[:1, 0], torch.tensor([[-2.0, 0.0]])), m * torch.tensor([[-1.0, 0.0]]), rtol=1e-4, atol=0
    )


def test_an_adaptive_attacker_runs_the_soft_sign_only_on_signs():
    stations = Stations(example=(Sign(size=2.0),))
    assert isinstance(stations.example[0], Chooses)
    seen = {"a": torch.tensor([[2.0, -2.0]]), "b": torch.tensor([[0.0]])}
    assert on_a_guess(stations, seen).example == (SoftSign(2.0),)
    assert isinstance(stations.example[0], Explains)
    guess = {n: torch.full_like(u, 0.5) for n, u in seen.items()}
    for leaked in (seen, {n: -0.25 * u for n, u in seen.items()}):
        assert unlikelihood(stations, guess, leaked) is not None
        assert unlikelihood(Stations(), guess, leaked) is None
    assert unlikelihood(stations, guess, {"a": torch.tensor([[2.0, 0.4]])}) is None  # A mean of several, or noise.


@dataclasses.dataclass(frozen=True)
class Laplace:
    """Noise with a known non-Gaussian law, whose likelihood the attacker uses for comparison."""

    scale: float

    def __call__(self, signal, clock, rngs):
        return signal

    def unlikelihood(self, guess, seen):
        return sum(((seen[n] - g).abs() / self.scale).flatten(1).sum(1) for n, g in guess.items())


class Silent:
    """A part that cannot say how likely this gradient is."""

    def __call__(self, signal, clock, rngs):
        return signal

    def unlikelihood(self, guess, seen):
        return None


@pytest.mark.parametrize("before", [(), (Silent(),)])
def test_a_transform_is_judged_by_its_own_law(before):
    """In the search and in the posterior, with a likelihood that neither knows; parts without one are skipped."""
    view, inputs, targets = seen_by("oblivious", "type-2")
    view = dataclasses.replace(
        view, stations=Stations(example=(*before, Laplace(0.5))), update=view.respond(inputs, targets)
    )
    grey = torch.full_like(inputs, 0.5)
    guess = view.respond(grey, targets)
    by_hand = sum((view.update[n] - g).abs().flatten(1).sum(1) / 0.5 for n, g in guess.items())
    torch.testing.assert_close(Likelihood()(guess, view.update, view), by_hand)
    answer = answered_at_once((view,), grey, generators(0, "labels", [(v,) for v in range(3)]))
    flat = Coordinates(lambda z: z, lambda x: x, lambda z, _: z.new_zeros(len(z)))
    answer = dataclasses.replace(answer, labels=targets.argmax(-1))
    torch.testing.assert_close(posterior((view,), answer, flat), by_hand)


def seen_by(knows: str, tap: str, size: float = 1.0, station: str = "example"):
    cell = resolve_cell(
        Request(attack="cpl", dataset="digits", victims=3, candidates=5, taps=(tap,), leak_batch=1), None
    )
    cell = dataclasses.replace(cell, defense=dataclasses.replace(cell.defense, **{station: (Sign(size=size),)}))
    victims = draw_victims(cell, tap, 0, hand_out(cell))
    view = view_of(cell, tap, 0, victims, torch.arange(3), _sent(cell, None, None))
    inputs, labels, _ = truth(cell, tap, victims)
    return (aware(view, cell) if knows == "defense" else view), inputs, one_hot(labels, 10).to(inputs)


@pytest.mark.parametrize(("tap", "station"), [("type-2", "example"), ("type-1", "batch"), ("type-1", "client")])
def test_the_likelihood_of_signs_is_logistic_and_finds_the_truth(tap, station):
    """By hand from the plain gradient; the truth is likelier than others, and the size of a sign changes nothing."""
    view, inputs, targets = seen_by("defense", tap, station=station)
    plain = dataclasses.replace(view, stations=Stations()).respond(inputs, targets)
    by_hand = torch.zeros(3)
    for name, g in plain.items():
        rms = g.flatten(1).square().mean(1).sqrt().reshape(-1, *[1] * (g.dim() - 1))
        by_hand += torch.log1p(torch.exp(-view.update[name].sign() * g / (SHARPNESS * rms))).flatten(1).sum(1)
    values = {}
    for name, guess in (("truth", inputs), ("other", inputs.roll(1, 0)), ("grey", torch.full_like(inputs, 0.5))):
        leaf = guess.clone().requires_grad_()
        values[name] = Likelihood()(view.respond(leaf, targets, by_what_leaked=True), view.update, view)
        (into,) = torch.autograd.grad(values[name].sum(), leaf)
        assert into.isfinite().all()
        assert into.flatten(1).norm(dim=1).gt(0).all()
    torch.testing.assert_close(values["truth"], by_hand, rtol=1e-3, atol=1e-2)
    assert (values["truth"] < values["grey"]).all()
    assert (values["truth"] < values["other"]).all()
    large, *_ = seen_by("defense", tap, size=8.0, station=station)
    again = Likelihood()(large.respond(inputs, targets, by_what_leaked=True), large.update, large)
    torch.testing.assert_close(again, values["truth"], rtol=1e-4, atol=1e-2)


def test_an_oblivious_attacker_compares_gradients_with_signs():
    view, inputs, targets = seen_by("oblivious", "type-2")
    guess = view.respond(inputs, targets, by_what_leaked=True)
    torch.testing.assert_close(Likelihood()(guess, view.update, view), SquaredL2()(guess, view.update, view) / 2e-6)


def test_a_recipe_refuses_another_size():
    text = {
        "title": "t",
        "cite": "c",
        "unit": "example",
        "claim": {"none": {"reason": "r"}},
        "example": [{"sign": {"size": 0}}],
    }
    with pytest.raises(InputError, match="size"):
        construct(Defense, text)
