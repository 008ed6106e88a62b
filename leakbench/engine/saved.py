"""The memory of a gradient and of its derivative: weights, and the activations that a backward pass needs."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakbench.core.types import Network

__all__ = ["activations", "gradient_bytes", "recomputes", "search_bytes"]

BYTES = 4

USUAL = 3 * 64 * 64 - 1
"""Number of values of an input up to which activations are not counted: chunks of victims stay those of published rows."""

MOST_SAVED = 1_000_000_000
"""Largest number of bytes of a batch's activations that are saved."""

_counts: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], int]] = WeakKeyDictionary()


def activations(network: Network, shape: tuple[int, ...]) -> int:
    """Return the number of values that all layers of a network return for one input of shape (*s); 0 for a small input."""
    if math.prod(shape) <= USUAL:
        return 0
    cached = _counts.setdefault(network.model, {})
    if shape not in cached:
        cached[shape] = _counted(network, shape)
    return cached[shape]


def _counted(network: Network, shape: tuple[int, ...]) -> int:
    total = 0

    def count(module: nn.Module, given: object, answer: object) -> None:
        nonlocal total
        total += answer.numel() if isinstance(answer, Tensor) else 0

    leaves = [module for module in network.model.modules() if next(module.children(), None) is None]
    hooks = [module.register_forward_hook(count) for module in leaves]
    own = {name: p if network.shared else p[0] for name, p in network.parameters.items()}
    try:
        with torch.no_grad():
            like = next(iter(own.values()))
            functional_call(network.model, {**own, **network.statistics}, (like.new_zeros(2, *shape),))
    finally:
        for hook in hooks:
            hook.remove()
    return total // 2


def gradient_bytes(network: Network, shape: tuple[int, ...]) -> int:
    """Return the bytes that the gradient of one example takes while it is computed: 3 times the weights and the activations.

    Measured for ResNets and transformers of torchvision and timm (docs/performance.md).
    """
    return BYTES * 3 * (_weights(network) + activations(network, shape))


def recomputes(network: Network, shape: tuple[int, ...], examples: int) -> bool:
    """Return whether the activations of a batch are too many for memory, so that each example is computed alone if possible."""
    return examples > 1 and BYTES * 3 * examples * activations(network, shape) > MOST_SAVED


def search_bytes(network: Network, shape: tuple[int, ...], examples: int, mixes: bool) -> int:
    """Return the bytes of one evaluation of a search for one victim: the gradient of its guess and the derivative of that.

    These are about 7 times the weights, and 3 times the activations of all examples, or of one example where they are computed
    one by one.

    Args:
        mixes: Whether examples of a batch share its statistics or several local iterations, and cannot be computed one by one.
    """
    examples = 1 if not mixes and recomputes(network, shape, examples) else examples
    return BYTES * (7 * _weights(network) + 3 * examples * activations(network, shape))


def _weights(network: Network) -> int:
    lanes = 1 if network.shared else len(next(iter(network.parameters.values())))
    return sum(p.numel() for p in network.parameters.values()) // lanes
