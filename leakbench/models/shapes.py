"""What inputs a network takes."""

from __future__ import annotations

from typing import TypeAlias

import torch

from leakbench.errors import InputError

__all__ = ["Shape", "features", "picture"]

Shape: TypeAlias = tuple[int, ...]
"""Of one input: (C, H, W) of a picture, (F,) of a row of a table."""


def features(shape: Shape) -> int:
    """Return how many numbers one input has."""
    return int(torch.Size(shape).numel())


def picture(name: str, shape: Shape, smallest: int, patch: int = 1) -> tuple[int, int, int]:
    """Return (C, H, W); raise InputError for a table, for sides under `smallest` or sides that are no multiple of `patch`."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise InputError(
            f"model: {name!r} takes pictures (C, H, W) of at least {smallest} x {smallest}, got shape {shape};"
            " give --model, or --leak-model for the network that leaks, 'mlp' or 'mlp_sigmoid'"
        )
    if any(side % patch for side in shape[1:]):
        raise InputError(
            f"model: {name!r} cuts pictures into patches of {patch} x {patch}, got {shape[1]} x {shape[2]}, expected"
            f" sides that are multiples of {patch}; use a network of convolutions, such as 'cnn'"
        )
    return shape[0], shape[1], shape[2]
