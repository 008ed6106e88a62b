"""One example as a picture inside the page: a PNG as a data URI."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["SIDE", "picture", "picture_bytes", "shown_size", "shrinks"]

SIDE = 96
"""Pixels; a larger picture is reduced by a whole factor, each pixel the mean of a block. On the page a tile is never smaller."""

STRIP = (208, 24)
"""Width and height of the tile of a record in CSS pixels."""


def picture(example: NDArray[np.floating]) -> str:
    """Return one example as a PNG: a picture for the shape (1 or 3, H, W), else a strip of features; 0 is dark."""
    values = np.clip(example.astype(np.float64), 0, 1)
    plane = values.ndim == 3 and values.shape[0] in (1, 3)
    pixels = _shrunk(values).transpose(1, 2, 0) if plane else values.reshape(1, -1, 1)
    levels = np.ascontiguousarray((255 * pixels).round().astype(np.uint8))
    buffer = BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def picture_bytes(shape: tuple[int, ...]) -> int:
    """Return an upper estimate of the characters that the picture of one example takes; noise does not compress."""
    factor = shrinks(shape)
    return 200 + int(np.prod(shape) / factor**2 * 4 / 3)


def shrinks(shape: tuple[int, ...]) -> int:
    """Return the whole factor of reduction of pictures of a shape (C, H, W); 1 for strips."""
    return -(-max(shape[1:]) // SIDE) if len(shape) == 3 and shape[0] in (1, 3) else 1


def shown_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the width and height in CSS pixels of the tile of an example; pixels of a picture are enlarged by a whole factor.

    Args:
        shape: Shape of one example: (1 or 3, H, W) for a picture; any other is a record.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        return STRIP
    high, wide = (max(1, side // shrinks(shape)) for side in shape[1:])
    enlarged = -(-SIDE // wide)
    return enlarged * wide, enlarged * high


def _shrunk(values: NDArray[np.float64]) -> NDArray[np.float64]:
    factor = shrinks(values.shape)
    high, wide = (side // factor * factor for side in values.shape[1:])
    blocks = values[:, :high, :wide].reshape(values.shape[0], high // factor, factor, wide // factor, factor)
    means: NDArray[np.float64] = blocks.mean((2, 4))
    return means
