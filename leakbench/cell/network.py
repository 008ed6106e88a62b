"""The networks of a cell, with the extensions of its defense."""

from __future__ import annotations

import torch

from leakbench.cell.settings import Settings
from leakbench.core.types import Network
from leakbench.data.dataset import Dataset
from leakbench.defense import Defense, FactProbe
from leakbench.defense.network import extended
from leakbench.models import build, parameters
from leakbench.models.batch_norm import in_client_mode

__all__ = ["probe", "probe_of"]


def probe_of(defense: Defense, data: Dataset, settings: Settings) -> FactProbe:
    """Return the network that is trained in a cell, with the extensions of the defense, and the federation."""
    return probe(defense, data, settings, settings.model)


def probe(defense: Defense, data: Dataset, settings: Settings, name: str) -> FactProbe:
    """Return the network of a name at some first weights, in the mode of a cell, and the federation."""
    rng = torch.Generator().manual_seed(0)
    plain = build(name, data.layout, data.classes, rng, settings.init, data.padding, settings.trainable, settings.loss)
    model = in_client_mode(extended(defense.network, plain, data.shape, data.classes, rng), settings.victim_mode)
    return FactProbe(Network(model, parameters(model)), data.shape, data.classes, settings.federation)
