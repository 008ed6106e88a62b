"""Runs defenses for the tests: on the paper's CNN of three tensors or on any other network, in a federation."""

import dataclasses

import torch

from leakbench.cell import Request, resolve_cell
from leakbench.core.types import Fact, Network
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, FactProbe, phases
from leakbench.defense.transform import Transform
from leakbench.execute import _sent, hand_out
from leakbench.experiment.victims import aware, draw_victims, truth, view_of
from leakbench.federated.view import View
from leakbench.models import build, one_hot, parameters


def probe(
    federation: Federation, model: str = "cnn", shape: tuple[int, ...] = (1, 28, 28), classes: int = 10
) -> FactProbe:
    """A network at its initial weights, in a federation."""
    built = build(model, shape, classes, torch.Generator().manual_seed(0))
    return FactProbe(Network(built, parameters(built)), shape, classes, federation)


def facts_of(defense: Defense, federation: Federation) -> dict[str, tuple[Fact, ...]]:
    """Return the operations of the stations in the first phase."""
    return dict(phases(defense, probe(federation, defense.model or "cnn"))[0].facts)


def leaked(
    stations: dict[str, tuple[Transform, ...]], tap: str = "type-1", knows: str = "defense", dataset: str = "digits"
) -> tuple[View, torch.Tensor, torch.Tensor]:
    """Return the view of three victims that leak alone under transforms {station: transforms}, with their inputs and targets."""
    request = Request(attack="cpl", dataset=dataset, victims=3, candidates=5, taps=(tap,), leak_batch=1)
    cell = resolve_cell(request, None)
    cell = dataclasses.replace(cell, defense=dataclasses.replace(cell.defense, **stations))
    victims = draw_victims(cell, tap, 0, hand_out(cell))
    view = view_of(cell, tap, 0, victims, torch.arange(3), _sent(cell, None, None))
    inputs, labels, _ = truth(cell, tap, victims)
    return (aware(view, cell) if knows == "defense" else view), inputs, one_hot(labels, view.classes).to(inputs)
