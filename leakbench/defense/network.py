"""Slot `network`: what a defense changes in the network itself, before anybody trains it or reads from it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import nn

from leakbench.recipe import Slot

__all__ = ["NETWORK", "Extension", "extended"]


@runtime_checkable
class Extension(Protocol):
    """Changes a network; the server sends what comes out, so every participant and every attacker knows it."""

    def __call__(self, model: nn.Module, shape: tuple[int, ...], classes: int, rng: torch.Generator) -> nn.Module:
        """Return the changed network for inputs of `shape` and that many classes; new weights are drawn from `rng`.

        A network that draws random numbers in training keeps to `leakbench.types.Sampling`. Raises InputError for a network
        that it cannot change.
        """


def extended(
    extensions: tuple[Extension, ...], model: nn.Module, shape: tuple[int, ...], classes: int, rng: torch.Generator
) -> nn.Module:
    """Return the network after all extensions, in order; the very same network where there is none."""
    for extension in extensions:
        model = extension(model, shape, classes, rng)
    return model.eval()


NETWORK = Slot("network", ("leakbench.defense",))
