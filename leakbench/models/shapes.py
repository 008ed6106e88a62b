"""Shapes of the inputs of networks."""

from __future__ import annotations

from typing import TypeAlias

import torch

from leakbench.core.errors import InputError

__all__ = ["Shape", "features", "picture"]

Shape: TypeAlias = tuple[int, ...]
"""Shape of one input: (C, H, W) of a picture, (F,) of a row of a table, (T, tokens) of a text of T tokens."""


def features(shape: Shape) -> int:
    """Return the number of values of one input."""
    return int(torch.Size(shape).numel())


def picture(name: str, shape: Shape, smallest: int, patch: int = 1) -> tuple[int, int, int]:
    """Return (C, H, W) of a picture.

    Args:
        name: Name of the network, for the message.
        smallest: Least height and width.
        patch: Divisor of height and width.

    Raises:
        InputError: For a table, or a height or width that does not fit.
    """
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
