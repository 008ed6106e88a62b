"""How many floating-point operations a gradient takes at the least, and how many this machine does a second.

Counted are products of matrices alone, which is where the work is: a layer with P places, Q numbers that enter at each and O that
leave multiplies and adds P * Q * O times in one of them, for one example. What is added elsewhere (activations, patches, clips,
noise, distances) is left out, so that the count is a floor of a plain backward. Places that a pool leaves over count too, although
the engine skips them (21 of 121 in the papers' second convolution). Letters as in `leakbench.engine.steps`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from leakbench.bench.timing import seconds
from leakbench.engine.chain import Chain, chain_of
from leakbench.engine.steps import Crop

__all__ = ["ceiling", "gradient_operations", "layer_products", "matching_operations"]

SIDE, TRIES = 2048, 3
"""Of the matrices by which the ceiling is measured, and how often: the best counts."""


def layer_products(model: nn.Module, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
    """Return P * Q * O of each layer with weights, first to last.

    Raises ValueError for a model that is no chain of layers.
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
    """Return the operations of one example's gradient: 3 products a layer, 2 in the first.

    Forward, the gradient by the weight, and the derivative by what entered, which the first layer owes to nobody. Clipping asks
    for no more: a clipped sum is the sum of these products with other factors, and norms follow from the products.
    """
    return 2 * (3 * sum(layers) - layers[0])


def matching_operations(layers: Sequence[int]) -> int:
    """Return the operations of one evaluation of gradient matching, the distance and its derivative by the input.

    7 products a layer, 5 in the first: the gradient's own (3; 2), the derivative of the gradient by the weight, which is a product
    of two matrices that both depend on the input (2; 2), that of the derivative by what entered (1; 0), and that of the forward
    product (1; 1).
    """
    return 2 * (7 * sum(layers) - 2 * layers[0])


def ceiling() -> float:
    """Return how many operations a second a large float32 product of matrices reaches here, with PyTorch's threads as they are."""
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    return 2 * SIDE**3 / min(seconds(lambda: a @ b) for _ in range(TRIES))
