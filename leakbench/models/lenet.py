"""The LeNets of DLG and CPL, as published with sigmoids, with ReLU or GELU, and DLG's with batch normalisation."""

from __future__ import annotations

from torch import nn

from leakbench.models.batch_norm import BatchNorm
from leakbench.models.shapes import Shape, picture

__all__ = ["LENETS", "lenet", "lenet_batch_norm"]

STRIDES: dict[str, tuple[int, ...]] = {"lenet_dlg": (2, 2, 1), "lenet_cpl": (2, 2, 1, 1)}
ACTIVATIONS: dict[str, type[nn.Module]] = {"": nn.Sigmoid, "_relu": nn.ReLU, "_gelu": nn.GELU}

LENETS: dict[str, tuple[tuple[int, ...], type[nn.Module]]] = {
    name + suffix: (strides, activation)
    for name, strides in STRIDES.items()
    for suffix, activation in ACTIVATIONS.items()
}
"""{name: (strides of its convolutions, activation)}."""


def lenet(name: str, shape: Shape, classes: int) -> nn.Module:
    """Convolutions 5x5 of 12 channels, each with its activation, and one linear layer.

    lenet_dlg has three convolutions (Zhu et al., NeurIPS 2019), lenet_cpl has four (Wei et al., ESORICS 2020). With sigmoids, all
    weights and biases start uniform in (-0.5, 0.5). With ReLU and GELU they start with PyTorch's default, as in CPL's ReLU
    notebook: after the wide start, an unbounded activation grows layer by layer until the softmax saturates. `--init
    uniform:0.5` gives all of them the same start. Features after a GELU can be negative, and then iDLG's rule for labels
    (`last_layer`) can be wrong.
    """
    strides, activation = LENETS[name]
    return _lenet(name, shape, classes, strides, activation, norm=False)


def lenet_batch_norm(name: str, shape: Shape, classes: int, activation: type[nn.Module]) -> nn.Module:
    """DLG's LeNet with batch normalisation between each convolution, which then has no bias, and its activation.

    Not from a paper: the smallest network here on which attacks with and without the statistics of batches can be compared. It
    starts with PyTorch's default.
    """
    return _lenet(name, shape, classes, STRIDES["lenet_dlg"], activation, norm=True)


def _lenet(
    name: str, shape: Shape, classes: int, strides: tuple[int, ...], activation: type[nn.Module], norm: bool
) -> nn.Module:
    channels, height, width = picture(name, shape, 4)
    layers: list[nn.Module] = []
    for stride in strides:
        layers.append(nn.Conv2d(channels, 12, 5, padding=2, stride=stride, bias=not norm))
        layers += [BatchNorm(12), activation()] if norm else [activation()]
        channels, height, width = 12, -(-height // stride), -(-width // stride)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))
