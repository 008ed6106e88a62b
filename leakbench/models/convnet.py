"""The ConvNet of the Inverting Gradients paper."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from leakbench.models.batch_norm import BatchNorm
from leakbench.models.shapes import Shape, picture

__all__ = ["convnet"]

WIDTHS = (1, 2, 2, 4, 4, 4, 4, 4)
"""Channels of the eight convolutions, in units of the width; max pooling follows the sixth and the last."""


def convnet(name: str, shape: Shape, classes: int, norm: bool, width: int = 64) -> nn.Module:
    """Eight 3x3 convolutions with biases, each with batch norm, if any, and ReLU, two 3x3 max poolings, one linear layer.

    Geiping et al., NeurIPS 2020, as released: width 64, independent of the number in its name, and eight convolutions, because
    one of the nine in the code overwrites another one with the same name. 2,904,970 parameters on CIFAR-10. `norm=False` omits
    the batch norm. The initialisation is PyTorch's default.
    """
    channels, height, rows = picture(name, shape, 9)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, factor in enumerate(WIDTHS):
        layers[f"conv{index}"] = nn.Conv2d(channels, factor * width, 3, padding=1)
        channels = factor * width
        if norm:
            layers[f"bn{index}"] = BatchNorm(channels)
        layers[f"relu{index}"] = nn.ReLU()
        if index in (5, 7):
            layers[f"pool{index // 6}"] = nn.MaxPool2d(3)
            height, rows = height // 3, rows // 3
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(channels * height * rows, classes)
    return nn.Sequential(layers)
