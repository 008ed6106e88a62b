"""The first and the last linear layer of a network, and the inputs of a layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakbench.core.types import Network

__all__ = ["begins_linear", "entering", "first_layer", "last_layer"]


def begins_linear(model: nn.Module, shape: tuple[int, ...] | None = None) -> bool:
    """Return whether the first layer of a network, other than a flattening, is linear with a bias; see `first_layer`."""
    return first_layer(model, shape) is not None


def first_layer(model: nn.Module, shape: tuple[int, ...] | None = None) -> str | None:
    """Return the prefix of the first layer's parameters; None if it is not a linear layer with a trained bias.

    A model with a forward pre-hook gives None too, since the hook may change the inputs.

    Args:
        shape: (*s) of one input; the layer has to accept the whole input. None does not check this.
    """
    if model._forward_pre_hooks:
        return None
    for name, module in model.named_modules():
        if next(module.children(), None) is not None or isinstance(module, nn.Flatten | nn.Identity):
            continue
        if not (isinstance(module, nn.Linear) and module.bias is not None and module.weight.requires_grad):
            return None
        whole = shape is None or module.in_features == math.prod(shape)
        return (f"{name}." if name else "") if whole and module.bias.requires_grad else None
    return None


def last_layer(model: nn.Module) -> str | None:
    """Return the prefix of the last linear layer's parameters; None without a linear layer."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return None if not names else f"{names[-1]}." if names[-1] else ""


CHUNK = 500
"""Number of inputs in a forward pass."""


def entering(network: Network, layer: str, inputs: Tensor) -> Tensor:
    """Return the inputs (n, d) of a layer for inputs (n, *s) of the network.

    Args:
        layer: Prefix of the layer's parameters.
    """
    pieces: list[Tensor] = []
    hook = network.model.get_submodule(layer.removesuffix(".")).register_forward_pre_hook(
        lambda _, entered: pieces.append(entered[0])
    )
    try:
        with torch.no_grad():
            for some in torch.split(inputs, CHUNK):
                functional_call(network.model, {**network.parameters, **network.statistics}, (some,))
    finally:
        hook.remove()
    return torch.cat(pieces)
