"""A small U-Net with a head for each pixel and a head for the whole picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.task import Head, Heads
from leakbench.models.shapes import Shape

__all__ = ["UNetTiny", "unet_tiny", "unet_tiny_of"]

WIDTHS = (8, 16)
"""Channels of the two levels."""


class UNetTiny(nn.Module):
    """Two levels of convolutions with skip connections (Ronneberger et al., MICCAI 2015), sigmoid, without normalisation.

    Heads with places read the last level at full resolution by a convolution of 1 x 1. The others read all features of the lowest
    level by a linear layer.

    Args:
        shape: (C, H, W), H and W divisible by 4.
        heads: The heads; the outputs are a tuple in their order, a tensor for a single head.
    """

    def __init__(self, shape: Shape, heads: Heads) -> None:
        super().__init__()
        channels, height, width = shape
        first, second = WIDTHS
        self.down1 = nn.Conv2d(channels, first, 3, 1, 1)
        self.down2 = nn.Conv2d(first, second, 4, 2, 1)
        self.low = nn.Conv2d(second, second, 4, 2, 1)
        self.up2 = nn.Conv2d(2 * second, second, 3, 1, 1)
        self.up1 = nn.Conv2d(second + first, first, 3, 1, 1)
        flat = second * (height // 4) * (width // 4)
        self.heads = nn.ModuleList(
            nn.Conv2d(first, head.width, 1) if head.places else nn.Linear(flat, head.width) for head in heads.heads
        )
        self.of_places = tuple(bool(head.places) for head in heads.heads)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the heads' outputs (n, width, H, W) or (n, width)."""
        one = torch.sigmoid(self.down1(x))
        two = torch.sigmoid(self.down2(one))
        low = torch.sigmoid(self.low(two))
        two = torch.sigmoid(self.up2(torch.cat([_doubled(low), two], 1)))
        one = torch.sigmoid(self.up1(torch.cat([_doubled(two), one], 1)))
        outputs = tuple(
            head(one if places else low.flatten(1)) for head, places in zip(self.heads, self.of_places, strict=True)
        )
        return outputs[0] if len(outputs) == 1 else outputs


def _doubled(x: Tensor) -> Tensor:
    """Return pictures of twice the height and width, each pixel four times."""
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def unet_tiny(shape: Shape, classes: int) -> nn.Module:
    """U-Net of two levels with 8 and 16 channels, sigmoid; with masks as targets, one output for each pixel."""
    return unet_tiny_of(shape, Heads((Head("class", "classes", classes),)))


def unet_tiny_of(shape: Shape, heads: Heads) -> nn.Module:
    """Return `unet_tiny` with a head for each part of a target.

    Raises:
        InputError: For other inputs than pictures whose sides are divisible by 4, and for masks of another size.
    """
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise InputError(f"model: 'unet_tiny' takes pictures whose sides are divisible by 4, got shape {shape}")
    if any(head.places and head.places != shape[1:] for head in heads.heads):
        raise InputError(f"model: 'unet_tiny' has masks of {shape[1:]}, got {[head.places for head in heads.heads]}")
    return UNetTiny(shape, heads)
