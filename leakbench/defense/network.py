"""Slot `network`: changes of the network by a defense, made before training."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import nn

from leakbench.core.recipe import Slot

__all__ = ["NETWORK", "Extension", "extended"]


@runtime_checkable
class Extension(Protocol):
    """Changes a network. The server sends the changed network, so every client and every attacker knows it."""

    def __call__(self, model: nn.Module, shape: tuple[int, ...], classes: int, rng: torch.Generator) -> nn.Module:
        """Return the changed network.

        A network that draws random numbers in training follows `leakbench.core.types.Sampling`.

        Args:
            shape: (*s) of one input.
            rng: Source of new weights.

        Raises:
            InputError: For a network that it cannot change.
        """


def extended(
    extensions: tuple[Extension, ...], model: nn.Module, shape: tuple[int, ...], classes: int, rng: torch.Generator
) -> nn.Module:
    """Return the network after all extensions, in order; the same object for no extensions."""
    for extension in extensions:
        model = extension(model, shape, classes, rng)
    return model.eval()


NETWORK = Slot("network", ("leakbench.defense",))
