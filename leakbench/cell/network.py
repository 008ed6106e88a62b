"""The networks of a cell, with the extensions of its defense."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from leakbench.cell.settings import Settings
from leakbench.core.request import CLASS, NEXT_TOKEN, SQUARED, TARGETS
from leakbench.core.task import Heads, loss_function, squared_error, with_task
from leakbench.core.types import Network
from leakbench.data.dataset import Dataset
from leakbench.defense import Defense, FactProbe
from leakbench.defense.network import extended
from leakbench.models import build, parameters
from leakbench.models.batch_norm import in_client_mode

__all__ = ["build_for", "probe", "probe_of"]


def probe_of(defense: Defense, data: Dataset, settings: Settings) -> FactProbe:
    """Return the network that is trained in a cell, with the extensions of the defense, and the federation."""
    return probe(defense, data, settings, settings.model)


def build_for(data: Dataset, settings: Settings, name: str, rng: torch.Generator, field: str = "model") -> nn.Module:
    """Return the network of a name at first weights that `rng` draws, with the task of a cell, without extensions.

    Args:
        field: The option that names the network, for messages.
    """
    s, heads = settings, _heads(data, settings.loss)
    model = build(name, data.layout, data.outputs, rng, s.init, data.padding, s.trainable, s.loss, heads, field)
    return model if heads is None else with_task(model, heads)


def _heads(data: Dataset, loss: str) -> Heads | None:
    """Return the task of a loss; None for classes by cross-entropy and for next tokens, which a network has by itself."""
    if loss in (CLASS, NEXT_TOKEN):
        return None
    heads = data.heads
    if loss == TARGETS:
        return heads
    function = squared_error if loss == SQUARED else loss_function(loss)
    return dataclasses.replace(heads, function=function, name=loss.partition("@")[0])


def probe(defense: Defense, data: Dataset, settings: Settings, name: str) -> FactProbe:
    """Return the network of a name at some first weights, in the mode of a cell, and the federation."""
    rng = torch.Generator().manual_seed(0)
    plain = build_for(data, settings, name, rng, "model" if name == settings.model else "leak-model")
    model = in_client_mode(extended(defense.network, plain, data.shape, data.outputs, rng), settings.victim_mode)
    return FactProbe(Network(model, parameters(model)), data.shape, data.outputs, settings.federation)
