"""Shapes of the inputs of networks."""

from __future__ import annotations

from typing import TypeAlias

import torch

from leakbench.core.errors import InputError

__all__ = ["Shape", "ShapeError", "features", "picture"]

Shape: TypeAlias = tuple[int, ...]
"""Shape of one input: (C, H, W) of a picture, (F,) of a row of a table, (T, tokens) of a text of T tokens."""


class ShapeError(InputError):
    """A network does not accept the shape of the inputs.

    Args:
        problem: What was given, what is accepted, and the remedy.
        field: The option that names the network.
    """

    def __init__(self, problem: str, field: str = "model") -> None:
        super().__init__(f"{field}: {problem}")
        self.problem = problem


COMMON = 16
"""Size of pictures that a message suggests for a network that takes no smaller ones."""


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
        ShapeError: For a table, or a height or width that does not fit.
    """
    if len(shape) != 3 or min(shape[1:]) < smallest:
        larger = f"--size {max(COMMON, smallest)}, or " if len(shape) == 3 else ""
        raise ShapeError(
            f"{name!r} takes pictures (C, H, W) of at least {smallest} x {smallest}, got shape {shape};"
            f" give {larger}'mlp' or 'mlp_sigmoid'"
        )
    if any(side % patch for side in shape[1:]):
        side = max(shape[1] // patch, 2) * patch
        raise ShapeError(
            f"{name!r} cuts pictures into patches of {patch} x {patch}, got {shape[1]} x {shape[2]}, expected"
            f" sides that are multiples of {patch}; give --size {side}, or --dataset cifar10"
        )
    return shape[0], shape[1], shape[2]
