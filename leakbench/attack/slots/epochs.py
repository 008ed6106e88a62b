"""Several epochs of a client over the same examples, in an order that the attacker does not know (Dimitrov et al., TMLR 2022)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import PLAIN, Needs
from leakbench.core.part import NonNegative, part
from leakbench.federated.view import View
from leakbench.measure.metrics import match

__all__ = ["EpochsAgree", "of_one_epoch"]


@part("priors.epochs_agree")
class EpochsAgree:
    """Search the inputs of each epoch apart, and add weight * the mean difference between epochs (Dimitrov et al., TMLR 2022).

    A client passes over the same examples in each epoch, in a new order. So a function of all inputs of an epoch that does not
    depend on their order has the same value in each epoch. The difference is the mean squared one of this function, over all E^2
    pairs of epochs. The reconstructions of the epochs are matched and averaged at the end. For an update of one epoch, the penalty
    is zero.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)
    apart: ClassVar[bool] = True

    weight: Annotated[
        NonNegative, Field(description="Factor of the penalty; 0 searches the epochs apart without a penalty.")
    ]
    of: Annotated[
        Literal["mean", "max"],
        Field(description="Function of the inputs of an epoch: the mean or the maximum of each pixel."),
    ] = "mean"

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,)."""
        epochs = inputs.reshape(len(inputs), view.cohort, view.epochs, -1, *inputs.shape[2:])
        each = epochs.mean(3) if self.of == "mean" else epochs.amax(3)
        # The mean of (a_i - a_j)^2 over all pairs is twice the variance.
        penalty: Tensor = self.weight * 2 * each.var(2, correction=0).flatten(1).mean(1)
        return penalty


def of_one_epoch(inputs: Tensor, view: View) -> Tensor:
    """Return one reconstruction of each example from those of all epochs: matched to those of the first epoch, then averaged.

    Args:
        inputs: (V, K * E * n, *s), as a view with `apart` has them.
        view: The view, with K clients and E epochs.

    Returns:
        (V, K * n, *s).
    """
    each = inputs.reshape(len(inputs) * view.cohort, view.epochs, -1, *inputs.shape[2:])
    first = each[:, 0]
    total = first.clone()
    for epoch in range(1, view.epochs):
        order = match(each[:, epoch], first)
        total += each[:, epoch][torch.arange(len(each), device=order.device)[:, None], order]
    return (total / view.epochs).reshape(len(inputs), -1, *inputs.shape[2:])
