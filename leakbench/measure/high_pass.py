"""High-passed pictures: what is left of a picture without its brightness and slow gradients of illumination."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLUR", "FLAT", "gaussian", "high_passed", "scaled"]

BLUR = 1 / 8
"""Standard deviation of the blur that the high-pass subtracts, as a share of the shorter side: 4 pixels of 32.

It passes half of the amplitude at sqrt(log(2) / 2) / (pi * BLUR) = 1.5 cycles per picture. People recognise faces by 8 to 13 cycles
per face (Nasanen, Vision Research 39, 1999), which it passes whole. Brightness and a gradient of illumination have fewer cycles. A
narrower blur would leave only the finest details, and a slightly blurred original would then no longer be recognised.
"""

FLAT = 1e-6
"""Root mean square of a high-passed picture below which the picture is constant."""


def high_passed(pictures: Tensor) -> Tensor:
    """Return pictures (n, C, H, W) minus their blur by a Gaussian of standard deviation `BLUR` times the shorter side.

    At the border the blur averages over the pixels inside the picture, so that a constant picture becomes zero.
    """
    height, width = pictures.shape[2:]
    sigma = BLUR * min(height, width)
    down, across = (gaussian(torch.arange(side), torch.arange(side), sigma).to(pictures) for side in (height, width))
    return pictures - down @ pictures @ across.T


def scaled(pictures: Tensor) -> Tensor:
    """Return pictures (n, C, H, W) with a root mean square of 1; one below `FLAT` becomes zero."""
    size = pictures.square().mean((1, 2, 3), keepdim=True).sqrt()
    return pictures.masked_fill(size <= FLAT, 0.0) / size.clamp_min(FLAT)


def gaussian(centres: Tensor, positions: Tensor, sigma: float) -> Tensor:
    """Return (centres, positions) weights of a Gaussian, which sum to 1 for each centre."""
    weights = torch.exp(-(centres[:, None] - positions).double().square() / (2 * sigma**2))
    return weights / weights.sum(1, keepdim=True)
