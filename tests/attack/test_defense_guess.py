"""An attacker that knows a defense runs it on its guess with the choices that the observed update shows."""

import dataclasses

import pytest
import torch

from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.descent import LbfgsDescent
from leakbench.attack.slots.distance import Likelihood
from leakbench.attack.slots.labels import Given
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations
from leakbench.cell import Request, resolve_cell
from leakbench.core.types import Clock, Signal
from leakbench.defense.clip import ClipWhole
from leakbench.defense.guess import Chooses, Surviving, on_a_guess, surviving
from leakbench.defense.prune import PruneRandom, PruneThreshold, PruneThresholdReleased
from leakbench.defense.soteria import Soteria
from leakbench.defense.transform import Stations
from leakbench.execute import _sent, hand_out
from leakbench.experiment.victims import aware, draw_victims, truth, view_of
from leakbench.models import one_hot

NOW = Clock(0, 0, 1, 1)


def test_coordinates_that_did_not_leak_are_zero_in_every_member():
    seen = {"a": torch.tensor([[0.0, 2.0], [3.0, 0.0]]), "b": torch.tensor([[-1.0], [0.0]])}
    signal = Signal({"a": torch.ones(2, 3, 2), "b": torch.ones(2, 3, 1)})
    found = Surviving(seen)(signal, NOW, None).grads
    assert found["a"][:, 0].tolist() == found["a"][:, 2].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert found["b"][:, 1].tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize(
    "transform",
    [PruneThreshold(share=0.5), PruneThresholdReleased(share=0.5), PruneRandom(share=0.5), Soteria(share=0.5)],
)
def test_selecting_parts_are_replaced_by_their_selection_unless_noise_hides_it(transform):
    assert isinstance(transform, Chooses)
    seen, noisy = {"a": torch.tensor([[0.0, 1.0]])}, {"a": torch.tensor([[0.1, 1.0]])}
    assert on_a_guess(Stations(example=(transform,)), seen).example == (Surviving(seen),)
    assert on_a_guess(Stations(client=(transform,)), noisy).client == (transform,)
    assert surviving(transform, noisy) is transform


def test_parts_without_a_selection_stay():
    clip = Stations(batch=(ClipWhole(norm=1.0),))
    assert on_a_guess(clip, {"a": torch.zeros(1, 2)}) == clip


@pytest.mark.parametrize(
    ("defense", "tap"), [("prune_threshold", "type-1"), ("dssgd", "type-1"), ("soteria", "type-1")]
)
def test_the_guess_at_the_truth_equals_the_leak(defense, tap):
    """Up to rounding, although a random choice was made; an oblivious guess differs."""
    cell = resolve_cell(
        Request(defense=defense, attack="cpl", dataset="digits", victims=3, candidates=5, taps=(tap,), leak_batch=1),
        None,
    )
    victims = draw_victims(cell, tap, 0, hand_out(cell))
    blind = view_of(cell, tap, 0, victims, torch.arange(3), _sent(cell, None, None))
    view = aware(blind, cell)
    inputs, labels, _ = truth(cell, tap, victims)
    found = view.respond(inputs, one_hot(labels, 10), by_what_leaked=True)
    plain = blind.respond(inputs, one_hot(labels, 10), by_what_leaked=True)
    for name, update in view.update.items():
        torch.testing.assert_close(found[name], update)
    assert any(not torch.allclose(plain[name], update) for name, update in view.update.items())
    assert any((update == 0).any() for update in view.update.values())


@pytest.mark.slow
def test_an_adaptive_attacker_reconstructs_pruned_digits():
    """90 % of the coordinates are missing: whitened search with the mask against one without."""
    cell = resolve_cell(
        Request(defense="prune_threshold", attack="cpl", dataset="digits", victims=4, candidates=5, taps=("type-2",)),
        None,
    )
    pruned = dataclasses.replace(cell.defense, example=(), batch=(), client=(), server=())
    pruned = dataclasses.replace(pruned, example=(PruneThreshold(share=0.9),))
    cell = dataclasses.replace(cell, defense=pruned)
    victims = draw_victims(cell, "type-2", 0, hand_out(cell))
    blind = view_of(cell, "type-2", 0, victims, torch.arange(4), _sent(cell, None, None))
    inputs, labels, _ = truth(cell, "type-2", victims)
    search = GradientMatching(
        labels=Given(),
        space=Whitened(),
        start=Constant(value=0.5, deviation=0.02),
        distance=Likelihood(),
        descent=LbfgsDescent(),
        stop=Iterations(limit=8),
    )
    found = {}
    for name, view in (("blind", blind), ("aware", aware(blind, cell))):
        rngs = tuple(torch.Generator().manual_seed(v) for v in range(4))
        answer = search((dataclasses.replace(view, labels=labels),), rngs)
        found[name] = (answer.inputs - inputs).square().flatten(1).mean(1).sqrt().nan_to_num(nan=1.0)
    assert float(found["aware"].median()) < 0.6 * float(found["blind"].median())
