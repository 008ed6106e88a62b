"""One example as a picture inside the page: a PNG as a data URI, no file beside it."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["SIDE", "picture", "picture_bytes", "shrinks"]

SIDE = 96
"""Pixels; a larger picture is shown at a whole fraction of its size, the mean of as many pixels each."""


def picture(example: NDArray[np.floating]) -> str:
    """Return one example as a PNG: (1 or 3, H, W) a picture; any other shape a strip of its features, dark is 0."""
    values = np.clip(example.astype(np.float64), 0, 1)
    plane = values.ndim == 3 and values.shape[0] in (1, 3)
    pixels = _shrunk(values).transpose(1, 2, 0) if plane else values.reshape(1, -1, 1)
    levels = np.ascontiguousarray((255 * pixels).round().astype(np.uint8))
    buffer = BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def picture_bytes(shape: tuple[int, ...]) -> int:
    """Return about how many characters the picture of one example of a shape takes at most: noise does not compress."""
    factor = shrinks(shape)
    return 200 + int(np.prod(shape) / factor**2 * 4 / 3)


def shrinks(shape: tuple[int, ...]) -> int:
    """Return by what factor pictures of a shape (C, H, W) are shown smaller; 1 for strips."""
    return -(-max(shape[1:]) // SIDE) if len(shape) == 3 and shape[0] in (1, 3) else 1


def _shrunk(values: NDArray[np.float64]) -> NDArray[np.float64]:
    factor = shrinks(values.shape)
    high, wide = (side // factor * factor for side in values.shape[1:])
    blocks = values[:, :high, :wide].reshape(values.shape[0], high // factor, factor, wide // factor, factor)
    means: NDArray[np.float64] = blocks.mean((2, 4))
    return means
