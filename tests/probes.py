"""Runs defenses for the tests: on the paper's CNN of three tensors or on any other network, in a federation."""

import torch

from leakbench.core.types import Fact, Network
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, FactProbe, phases
from leakbench.models import build, parameters


def probe(
    federation: Federation, model: str = "cnn", shape: tuple[int, ...] = (1, 28, 28), classes: int = 10
) -> FactProbe:
    """A network at its initial weights, in a federation."""
    built = build(model, shape, classes, torch.Generator().manual_seed(0))
    return FactProbe(Network(built, parameters(built)), shape, classes, federation)


def facts_of(defense: Defense, federation: Federation) -> dict[str, tuple[Fact, ...]]:
    """Return the operations of the stations in the first phase."""
    return dict(phases(defense, probe(federation, defense.model or "cnn"))[0].facts)
