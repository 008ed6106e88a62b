"""The network of the R-GAP paper, whose layers determine their inputs."""

from __future__ import annotations

from torch import nn

from leakbench.models.shapes import Shape, picture

__all__ = ["cnn6"]

CONVOLUTIONS = ((12, 4, 2, 2), (36, 3, 2, 1), (36, 3, 1, 1), (36, 3, 1, 1), (64, 3, 2, 1), (128, 3, 1, 1))
"""Channels, kernel size, stride and padding of each convolution."""


def cnn6(shape: Shape, classes: int, slope: float = 0.2) -> nn.Module:
    """Six convolutions with leaky ReLUs of slope 0.2, one linear layer, no biases (Zhu and Blaschko, "R-GAP", ICLR 2021, CNN6).

    The released network has one output and a logistic loss; this one has an output for each class. 154,256 parameters on
    CIFAR-10. The initialisation is PyTorch's default.
    """
    channels, height, width = picture("cnn6", shape, 4)
    layers: list[nn.Module] = []
    for after, size, stride, padding in CONVOLUTIONS:
        layers += [nn.Conv2d(channels, after, size, stride, padding, bias=False), nn.LeakyReLU(slope)]
        channels, height, width = after, *((side + 2 * padding - size) // stride + 1 for side in (height, width))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes, bias=False))
