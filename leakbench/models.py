"""The networks that are trained and attacked, each initialised from a passed generator.

`build` gives a plain `torch.nn.Module`; everything else in leakbench calls it functionally with parameters of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from leakbench.errors import InputError, nearest
from leakbench.types import Parameters

__all__ = ["MODELS", "build", "default_leak_model", "default_model", "parameters"]

Shape: TypeAlias = tuple[int, ...]
Builder: TypeAlias = Callable[[Shape, int, torch.Generator], nn.Module]


def build(name: str, shape: Shape, classes: int, rng: torch.Generator) -> nn.Module:
    """Build a network for inputs of `shape` ((C, H, W) or (F,)) and that many classes.

    Raises InputError for an unknown name or a shape that the network does not take.
    """
    if name not in MODELS:
        raise InputError(f"model: unknown name {name!r}{nearest(name, list(MODELS))}")
    return MODELS[name](shape, classes, rng).eval()


def parameters(model: nn.Module) -> Parameters:
    """Return the model's parameters, detached, in the model's order."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def default_model(shape: Shape) -> str:
    """Return the name of the network that the Fed-alphaCDP paper trains on data of this shape ("2 conv + 1 FC" for images)."""
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 10 else "mlp"


def default_leak_model(shape: Shape) -> str:
    """Return the name of the network from which the `paper` protocol leaks: the sigmoid LeNet, for tables a sigmoid MLP."""
    return "lenet_cpl" if len(shape) == 3 else "mlp_sigmoid"


def _image(name: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise InputError(
            f"model: {name!r} takes pictures (C, H, W) of at least {smallest} x {smallest}, got shape {shape};"
            " use 'mlp' or 'mlp_sigmoid'"
        )
    return shape[0], shape[1], shape[2]


def cnn(shape: Shape, classes: int, rng: torch.Generator) -> nn.Module:
    """The Fed-alphaCDP paper's CNN as released: conv3x3(32), conv3x3(64), each ReLU and 2x2 max pooling, one linear layer.

    No biases, Glorot uniform, 34,720 parameters on MNIST.
    """
    channels, height, width = _image("cnn", shape, 10)
    rows, columns = (((side - 2) // 2 - 2) // 2 for side in (height, width))
    model = nn.Sequential(
        nn.Conv2d(channels, 32, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, classes, bias=False),
    )
    return _glorot(model, rng)


def mlp(shape: Shape, classes: int, rng: torch.Generator) -> nn.Module:
    """Two hidden ReLU layers of 128 and 64, with biases (the paper gives the depth, not the widths); Glorot uniform."""
    features = int(torch.Size(shape).numel())
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes)
    )
    return _glorot(model, rng)


def mlp_256(shape: Shape, classes: int, rng: torch.Generator) -> nn.Module:
    """One hidden ReLU layer of 256, with biases: the priority paper's network, 203,530 parameters on MNIST; Glorot uniform."""
    features = int(torch.Size(shape).numel())
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, classes))
    return _glorot(model, rng)


def mlp_100(shape: Shape, classes: int, rng: torch.Generator) -> nn.Module:
    """The network that TabLeak attacks (arXiv:2210.01785): two hidden ReLU layers of 100, with biases.

    Weights and biases uniform within 1 / sqrt(inputs of the layer), PyTorch's default, which its released code leaves as it is.
    """
    features = int(torch.Size(shape).numel())
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(features, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, classes)
    )
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                for parameter in layer.parameters():
                    bound = layer.in_features**-0.5
                    parameter.uniform_(-bound, bound, generator=rng)
    return model


def mlp_sigmoid(shape: Shape, classes: int, rng: torch.Generator) -> nn.Module:
    """The sigmoid LeNet's twin for tables: hidden sigmoid layers of 128 and 64; weights and biases uniform in (-0.5, 0.5)."""
    features = int(torch.Size(shape).numel())
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(features, 128), nn.Sigmoid(), nn.Linear(128, 64), nn.Sigmoid(), nn.Linear(64, classes)
    )
    return _half_uniform(model, rng)


def lenet_dlg(shape: Shape, classes: int, rng: torch.Generator) -> nn.Module:
    """DLG's sigmoid LeNet: three 5x5 convolutions of 12 (strides 2, 2, 1), one linear layer; all uniform in (-0.5, 0.5)."""
    return _lenet("lenet_dlg", shape, classes, rng, strides=(2, 2, 1))


def lenet_cpl(shape: Shape, classes: int, rng: torch.Generator) -> nn.Module:
    """CPL's sigmoid LeNet: four 5x5 convolutions of 12 (strides 2, 2, 1, 1), one linear layer; all uniform in (-0.5, 0.5)."""
    return _lenet("lenet_cpl", shape, classes, rng, strides=(2, 2, 1, 1))


def _lenet(name: str, shape: Shape, classes: int, rng: torch.Generator, strides: tuple[int, ...]) -> nn.Module:
    channels, height, width = _image(name, shape, 4)
    layers: list[nn.Module] = []
    for stride in strides:
        layers += [nn.Conv2d(channels, 12, 5, padding=2, stride=stride), nn.Sigmoid()]
        channels, height, width = 12, -(-height // stride), -(-width // stride)
    layers += [nn.Flatten(), nn.Linear(channels * height * width, classes)]
    return _half_uniform(nn.Sequential(*layers), rng)


@torch.no_grad()
def _half_uniform(model: nn.Module, rng: torch.Generator) -> nn.Module:
    for parameter in model.parameters():
        parameter.uniform_(-0.5, 0.5, generator=rng)
    return model


@torch.no_grad()
def _glorot(model: nn.Module, rng: torch.Generator) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter, generator=rng)
        else:
            parameter.zero_()
    return model


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Return float targets (..., classes) for integer labels (...)."""
    return nn.functional.one_hot(labels, classes).float()


MODELS: dict[str, Builder] = {
    "cnn": cnn,
    "mlp": mlp,
    "mlp_256": mlp_256,
    "mlp_100": mlp_100,
    "mlp_sigmoid": mlp_sigmoid,
    "lenet_dlg": lenet_dlg,
    "lenet_cpl": lenet_cpl,
}
