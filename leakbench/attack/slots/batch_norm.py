"""Slot `priors`: features with the mean and variance of the model's batch normalisation."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import vmap

from leakbench.attack.needs import PLAIN, Needs
from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, part
from leakbench.core.types import Parameters
from leakbench.federated.view import View
from leakbench.models.batch_norm import MEAN, VARIANCE, entering_norms

__all__ = ["BatchNormStatistics"]


@part("priors.batch_norm")
class BatchNormStatistics:
    """Add weight * sum over layers of |mean - running mean| + |variance - running variance| (Yin et al., CVPR 2021, R_BN).

    The mean and the biased variance are those of the layer's input, per channel over the M examples of a guess and all pixels. The
    running ones are those that the server sent. If the attacker has other statistics (`View.statistics`), they take the place of
    the running ones. Every module with `running_mean` and `running_var` is such a layer.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN, statistics=True)

    weight: Annotated[NonNegative, Field(description="Factor of the penalty.")]

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,); raises InputError if the model has no batch normalisation."""
        network = view.network
        statistics = {name: network.memory.get(name, buffer) for name, buffer in network.model.named_buffers()}
        layers = [name.removesuffix(MEAN) for name in statistics if name.endswith(MEAN)]
        if not layers:
            raise InputError(
                "priors: batch_norm needs a model with batch normalisation, this one has none; leave the prior out"
            )
        parameters = network.parameters
        if not network.shared:
            parameters = {name: p[victims] for name, p in parameters.items()}

        def entering(own: Parameters, x: Tensor) -> dict[str, Tensor]:
            return entering_norms(network.model, layers, {**own, **statistics}, x)

        wanted = statistics if view.statistics is None else {n: s[victims] for n, s in view.statistics.items()}

        penalty = inputs.new_zeros(len(inputs))
        for layer, x in vmap(entering, in_dims=(network.axis, 0))(parameters, inputs).items():
            over = (1, *range(3, x.dim()))  # all but the guess and the channel
            for moment, name in ((x.mean(over), MEAN), (x.var(over, correction=0), VARIANCE)):
                penalty = penalty + torch.linalg.vector_norm(moment - wanted[layer + name], dim=1)
        return self.weight * penalty
