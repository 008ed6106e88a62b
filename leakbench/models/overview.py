"""The networks as a user sees them: how large each is, and what is between its layers."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn

from leakbench.models.batch_norm import BatchNorm
from leakbench.models.catalog import MODELS, Architecture
from leakbench.models.shapes import Shape

__all__ = ["CLASSES", "SHAPE", "list_models"]

SHAPE: Shape = (3, 32, 32)
CLASSES = 10
"""CIFAR-10's, of which all networks take the pictures."""

ACTIVATIONS = {nn.Sigmoid: "sigmoid", nn.ReLU: "ReLU", nn.GELU: "GELU"}
NORMALISATIONS = {BatchNorm: "batch", nn.GroupNorm: "group", nn.LayerNorm: "layer"}


def list_models() -> list[dict[str, Any]]:
    """Return [{name, title, parameters, activation, normalisation}] of all networks.

    title: what its builder says of it.  parameters: how many it has for inputs of SHAPE in CLASSES.  activation, normalisation:
    the kinds among its layers, in a word each; `none` where there is none.
    """
    return [_described(name, architecture) for name, architecture in MODELS.items()]


def _described(name: str, architecture: Architecture) -> dict[str, Any]:
    builder = architecture.builder
    with torch.device("meta"):  # Its weights are counted, not drawn.
        model = builder(SHAPE, CLASSES)
    function = builder.func if isinstance(builder, partial) else builder
    return {
        "name": name,
        "title": (inspect.getdoc(function) or "").partition("\n")[0],
        "parameters": sum(p.numel() for p in model.parameters()),
        "activation": _kinds(model, ACTIVATIONS),
        "normalisation": _kinds(model, NORMALISATIONS),
    }


def _kinds(model: nn.Module, known: dict[type[nn.Module], str]) -> str:
    held = {type(layer) for layer in model.modules()}
    return ", ".join(word for kind, word in known.items() if kind in held) or "none"
