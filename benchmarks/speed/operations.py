"""The least number of floating-point operations of a gradient, and the number per second of this machine.

Counted are products of matrices alone, which is where the work is: a layer with P places, Q numbers that enter at each and O that
leave multiplies and adds P * Q * O times in one of them, for one example. What is added elsewhere (activations, patches, clips,
noise, distances) is left out, so that the count is a floor of a plain backward. Places that a pool leaves over count too, although
the engine skips them (21 of 121 in the papers' second convolution). Letters as in `leakbench.engine.steps`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from leakbench.engine.chain import Chain, chain_of
from leakbench.engine.steps import Crop
from leakbench.reproduce.cost import seconds

__all__ = ["ceiling", "gradient_operations", "layer_products", "matching_operations"]

SIDE, TRIES = 2048, 3
"""Side of the matrices that measure the ceiling, and the number of products; the fastest one counts."""


def layer_products(model: nn.Module, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
    """Return P * Q * O of each layer with weights, first to last.

    Raises ValueError for a model that is not a chain of layers.
    """
    chain = chain_of(model)
    if chain is None:
        raise ValueError(f"{type(model).__name__}: no chain of layers, so its products cannot be counted")
    chain = Chain(tuple(step for step in chain.steps if not isinstance(step, Crop)))
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    one = torch.ones(1, 1)
    layers = chain.gradient(parameters, True, torch.zeros(1, 1, *shape), torch.zeros(1, 1, classes), one)
    return tuple(f.columns.shape[2] * f.columns.shape[3] * f.deltas.shape[3] for f in layers)


def gradient_operations(layers: Sequence[int]) -> int:
    """Return the operations of one example's gradient: 3 products per layer, 2 in the first.

    These are the forward pass, the gradient by the weight, and the derivative by the input, which the first layer does not
    need. Clipping needs no more: a clipped sum is the sum of these products with other factors, and norms follow from the
    products.
    """
    return 2 * (3 * sum(layers) - layers[0])


def matching_operations(layers: Sequence[int]) -> int:
    """Return the operations of one evaluation of gradient matching, the distance and its derivative by the input.

    7 products per layer, 5 in the first: those of the gradient (3; 2), the derivative of the gradient by the weight, which is a
        product
    of two matrices that both depend on the input (2; 2), that of the derivative by the layer's input (1; 0), and that of the
    forward product (1; 1).
    """
    return 2 * (7 * sum(layers) - 2 * layers[0])


def ceiling() -> float:
    """Return the operations per second of a large float32 matrix product on this machine, with PyTorch's current threads."""
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    return 2 * SIDE**3 / min(seconds(lambda: a @ b) for _ in range(TRIES))
