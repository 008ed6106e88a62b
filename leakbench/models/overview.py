"""A list of the networks for users: their sizes, activations and normalisations."""

from __future__ import annotations

import inspect
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from leakbench.models.batch_norm import BatchNorm
from leakbench.models.catalog import MODELS, Architecture
from leakbench.models.language import LIBRARY
from leakbench.models.shapes import Shape

__all__ = ["CLASSES", "SHAPE", "SIGNS", "TEXTS", "list_models"]

SHAPE: Shape = (3, 32, 32)
CLASSES = 10
"""Shape and classes of CIFAR-10, whose pictures all networks of pictures accept."""

TEXTS: Shape = (32, 4096)
SIGNS = 2
"""Shape and classes of the texts of `reviews`."""

ACTIVATIONS = {nn.Sigmoid: "sigmoid", nn.ReLU: "ReLU", nn.LeakyReLU: "leaky ReLU", nn.GELU: "GELU"}
NORMALISATIONS = {BatchNorm: "batch", nn.GroupNorm: "group", nn.LayerNorm: "layer"}


def list_models() -> list[dict[str, Any]]:
    """Return [{name, title, parameters, activation, normalisation}] of all networks.

    `title` is the first line of the builder's docstring, `parameters` the number of parameters for inputs of `SHAPE` in `CLASSES`,
    or for texts of `TEXTS` in `SIGNS`.
    `activation` and `normalisation` name the kinds among the layers, or `none`.
    For a network of texts whose package is not installed, all three have no value.
    """
    return [_described(name, architecture) for name, architecture in MODELS.items()]


def _described(name: str, architecture: Architecture) -> dict[str, Any]:
    builder = architecture.builder
    function = builder.func if isinstance(builder, partial) else builder
    entry: dict[str, Any] = {"name": name, "title": (inspect.getdoc(function) or "").partition("\n")[0]}
    if architecture.texts and find_spec(LIBRARY) is None:
        return entry | {"parameters": None, "activation": None, "normalisation": None}
    with torch.device("meta"):  # The weights are only counted.
        model = builder(TEXTS, SIGNS) if architecture.texts else builder(SHAPE, CLASSES)
    return entry | {
        "parameters": sum(p.numel() for p in model.parameters()),
        "activation": _kinds(model, ACTIVATIONS),
        "normalisation": _kinds(model, NORMALISATIONS),
    }


def _kinds(model: nn.Module, known: dict[type[nn.Module], str]) -> str:
    held = {type(layer) for layer in model.modules()}
    # The library of transformers has its own classes for forms of the same activation.
    own = {
        word
        for kind, word in known.items()
        if any(each.__name__.endswith(f"{kind.__name__}Activation") for each in held)
    }
    return ", ".join(word for kind, word in known.items() if kind in held or word in own) or "none"
