"""Slot `priors`: features with the mean and variance of the model's batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, vmap

from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, part
from leakbench.core.types import Parameters
from leakbench.federated.view import View

__all__ = ["BatchNormStatistics"]


@part("priors.batch_norm")
class BatchNormStatistics:
    """Add weight * sum over layers of |mean - running mean| + |variance - running variance| (Yin et al., CVPR 2021, R_BN).

    The mean and the biased variance are those of the layer's input, per channel over the M examples of a guess and all pixels. The
    running ones are those that the server sent. Every module with `running_mean` and `running_var` is such a layer.
    """

    weight: Annotated[NonNegative, Field(description="Factor of the penalty.")]

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,); raises InputError if the model has no batch normalisation."""
        network = view.network
        statistics = {name: network.memory.get(name, buffer) for name, buffer in network.model.named_buffers()}
        layers = [n.removesuffix("running_mean") for n in statistics if n.endswith("running_mean")]
        if not layers:
            raise InputError(
                "priors: batch_norm needs a model with batch normalisation, this one has none; leave the prior out"
            )
        parameters = network.parameters
        if not network.shared:
            parameters = {name: p[victims] for name, p in parameters.items()}

        def entering(own: Parameters, x: Tensor) -> dict[str, Tensor]:
            return _entering(network.model, layers, {**own, **statistics}, x)

        penalty = inputs.new_zeros(len(inputs))
        for layer, x in vmap(entering, in_dims=(network.axis, 0))(parameters, inputs).items():
            over = (1, *range(3, x.dim()))  # all but the guess and the channel
            for moment, name in ((x.mean(over), "running_mean"), (x.var(over, correction=0), "running_var")):
                penalty = penalty + torch.linalg.vector_norm(moment - statistics[layer + name], dim=1)
        return self.weight * penalty


def _entering(model: nn.Module, layers: list[str], tensors: Parameters, x: Tensor) -> dict[str, Tensor]:
    """Return the input {layer: (M, C, *)} of each layer (prefix of its tensors' names) when the model reads x (M, *s)."""
    inputs: dict[str, Tensor] = {}

    def keep(layer: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            inputs[layer] = arguments[0]

        return hook

    handles = [model.get_submodule(n.removesuffix(".")).register_forward_pre_hook(keep(n)) for n in layers]
    try:
        functional_call(model, tensors, (x,))
    finally:
        for handle in handles:
            handle.remove()
    return inputs
