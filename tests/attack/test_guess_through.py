"""The defense's deterministic part is differentiable in a guess, and at the truth it gives the leak."""

import dataclasses

import pytest
import torch
from torch import Tensor

from leakbench.attack.slots.distance import SquaredL2
from leakbench.cell import Request, resolve_cell
from leakbench.core.types import Clock, Signal
from leakbench.defense.clip import ClipLayers, ClipLayersShared, ClipWhole
from leakbench.defense.transform import Stations
from leakbench.execute import _sent, hand_out
from leakbench.experiment.victims import draw_victims, truth, view_of
from leakbench.federated.view import Knowledge, View
from leakbench.models import one_hot

NOW = Clock(0, 0, 1, 1)


def seen(defense: str, *transforms) -> tuple[View, Tensor, Tensor]:
    """Return (an adaptive attacker's view of a digit in float64, the digit, its label)."""
    cell = resolve_cell(
        Request(defense=defense, knows="defense", dataset="digits", victims=1, candidates=5, taps=("type-2",)), None
    )
    if transforms:
        cell = dataclasses.replace(cell, defense=dataclasses.replace(cell.defense, example=transforms))
    victims = draw_victims(cell, "type-2", 0, hand_out(cell))
    view = view_of(cell, "type-2", 0, victims, torch.arange(1), _sent(cell, None, None)).to(torch.float64)
    inputs, labels, _ = truth(cell, "type-2", victims)
    return view, inputs.double(), one_hot(labels, 10).double()


@pytest.mark.parametrize("clip", [ClipWhole(norm=1.0), ClipLayers(norm=1.0), ClipLayersShared(norm=1.0)])
def test_a_clip_is_differentiated_as_a_scale_above_its_bound_and_as_the_identity_below(clip):
    """Against finite differences; along the gradient itself it is zero if the clip is active."""
    signal = {"above": torch.tensor([[[3.0, 4.0]]]).double(), "below": torch.tensor([[[0.01]]]).double()}

    def clipped(above: Tensor, below: Tensor) -> tuple[Tensor, ...]:
        return tuple(clip(Signal({"above": above, "below": below}), NOW, None).grads.values())

    leaves = tuple(g.clone().requires_grad_() for g in signal.values())
    assert torch.autograd.gradcheck(clipped, leaves)
    (along,) = torch.autograd.functional.jvp(clipped, leaves, tuple(signal.values()))[1][:1]
    assert along.abs().max() < 1e-12


@pytest.mark.parametrize("clip", [ClipWhole(norm=1e-2), ClipLayers(norm=1e-2)])
def test_a_guess_is_matched_through_an_active_clip(clip):
    """At the truth the distance is zero; elsewhere its derivative by a pixel equals finite differences."""
    view, inputs, targets = seen("none", clip)
    plain = dataclasses.replace(view, stations=Stations()).respond(inputs, targets)
    assert all(g.norm() > 1e-2 for g in plain.values())

    def distance(x: Tensor) -> Tensor:
        return SquaredL2()(view.respond(x, targets, by_what_leaked=True), view.update, view).sum()

    # The leak itself has single precision.
    assert distance(inputs) < 1e-9 < 1e-3 * SquaredL2()(plain, view.update, view)
    guess = (0.5 * inputs + 0.2).requires_grad_()
    (slope,) = torch.autograd.grad(distance(guess), guess)
    for pixel in (3, 27, 60):
        step = torch.zeros(64).double().index_fill(0, torch.tensor(pixel), 1e-5).reshape(inputs.shape)
        by_hand = (distance(guess + step) - distance(guess - step)) / 2e-5
        torch.testing.assert_close(slope.flatten()[pixel], by_hand.detach(), rtol=1e-5, atol=1e-10)


def test_precode_uses_its_draws_for_adaptive_attackers_and_its_mean_for_others():
    """The leak contains draws: the truth reproduces it only for an attacker that reads them, each time with the same result."""
    view, inputs, targets = seen("precode")
    told, again, blind = (
        v.respond(inputs, targets, by_what_leaked=True)
        for v in (view, view, dataclasses.replace(view, knowledge=Knowledge()))
    )
    assert view.network.draws
    mean = view.respond(inputs, targets)
    for name, one in told.items():
        assert torch.equal(one, again[name])
        assert torch.equal(blind[name], mean[name])
    assert SquaredL2()(told, view.update, view) < 1e-9
    assert SquaredL2()(blind, view.update, view) > 1e-6
