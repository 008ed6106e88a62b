"""Slot `priors`: an oracle that knows the logits of the victims, which no attacker has."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor
from torch.func import functional_call, vmap

from leakbench.attack.needs import Needs
from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, part
from leakbench.core.types import Parameters
from leakbench.federated.view import View

__all__ = ["OracleLogits"]


@part("priors.oracle_logits")
class OracleLogits:
    """Add weight * |f(x) - f(x_true)|^2 over the M examples and all classes, where f is the model that the server sent.

    The released code of CPL (LFW64, LFW128, LFW_tanhrelu) adds this term with the private logits themselves. A stochastic network
    is evaluated without its random numbers.
    """

    needs: ClassVar[Needs] = Needs(logits=True)

    weight: Annotated[NonNegative, Field(description="Factor of the penalty.")]

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,); raises InputError if the view does not contain the true logits."""
        if view.logits is None:
            raise InputError("priors: 'oracle_logits' needs a view that shows the true logits; this one does not")
        network = view.network
        parameters = network.parameters
        if not network.shared:
            parameters = {name: p[victims] for name, p in parameters.items()}

        def logits(own: Parameters, x: Tensor) -> Tensor:
            values: Tensor = functional_call(network.model, {**own, **network.statistics}, (x,))
            return values

        apart = vmap(logits, in_dims=(network.axis, 0))(parameters, inputs) - view.logits[victims]
        penalty: Tensor = self.weight * apart.flatten(1).square().sum(1)
        return penalty
