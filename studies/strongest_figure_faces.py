"""The images of one face, from all attacks at all noises, on one sheet, which is stored without loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread, imsave
from numpy.typing import NDArray
from strongest_figure_numbers import PICTURES, SIGMAS
from torch import Tensor

from leakbench.core.errors import InputError

__all__ = ["Sheet"]

SIDE = 32


class Sheet:
    """A PNG of tiles: a row for each attack, a column for each noise multiplier, and before them truth and public mean.

    A tile that was never put, and one of an attack without an answer, is transparent.
    """

    def __init__(self, path: Path) -> None:
        """Read the sheet that is there, or begin an empty one; raises InputError for a picture of another size."""
        self.path = path
        shape = (SIDE * len(PICTURES), SIDE * (len(SIGMAS) + 1), 4)
        self.pixels: NDArray[np.uint8] = np.zeros(shape, dtype=np.uint8)
        if path.exists():
            held = np.round(255 * imread(path)).astype(np.uint8)
            if held.shape != shape:
                raise InputError(f"{path.name}: got {held.shape}, expected {shape}; move it away and measure again")
            self.pixels = held

    def put(self, what: str, sigma: float | None, picture: Tensor) -> None:
        """Place a picture (3, 32, 32) in [0, 1], which is clamped; `truth` and `mean` have no multiplier."""
        tile, pixels = self._tile(what, sigma), picture.permute(1, 2, 0).clamp(0, 1)
        tile[...] = 0
        if pixels.isfinite().all():
            tile[..., :3] = (255 * pixels).round().cpu().numpy().astype(np.uint8)
            tile[..., 3] = 255

    def get(self, what: str, sigma: float | None = None) -> NDArray[np.uint8] | None:
        """Return an image (32, 32, 3), or None if it is missing."""
        tile = self._tile(what, sigma)
        return tile[..., :3] if tile[..., 3].all() else None

    def save(self) -> None:
        """Write the sheet."""
        unsigned: dict[str, Any] = {"Software": None}  # The stubs know of texts alone, None leaves the field out.
        imsave(self.path, self.pixels, metadata=unsigned)

    def _tile(self, what: str, sigma: float | None) -> NDArray[np.uint8]:
        if sigma is None:
            row, column = ("truth", "mean").index(what), 0
        else:
            row, column = list(PICTURES).index(what), 1 + list(SIGMAS).index(sigma)
        return self.pixels[SIDE * row : SIDE * (row + 1), SIDE * column : SIDE * (column + 1)]
