"""Slot `priors`: penalties on unlikely inputs, which are added to the distance."""

from __future__ import annotations

from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.public import channel_moments, public_of
from leakbench.core.part import NonNegative, part
from leakbench.core.recipe import Slot
from leakbench.federated.view import View

__all__ = ["PRIOR", "Length", "Prior", "TotalVariation"]


@runtime_checkable
class Prior(Protocol):
    """A penalty on inputs; depends on its arguments alone, since searches replay it."""

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,), differentiable in `inputs`.

        Args:
            inputs: Guesses (v, M, *s).
            view: The view of V victims.
            victims: Position (v,) of the victim of each guess; the same for all restarts of a victim.
        """


@part("priors.total_variation")
class TotalVariation:
    """Add weight * (mean |dx| + mean |dy|), anisotropic (Geiping et al., NeurIPS 2020, eq. 4); zero for tables."""

    weight: Annotated[NonNegative, Field(description="Factor of the penalty.")]
    standardised: Annotated[
        bool,
        Field(
            description=(
                "Divide pixels by the standard deviation of the public examples' channels first, as in code that standardises "
                "its inputs."
            )
        ),
    ] = False

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,)."""
        if inputs.dim() < 5:
            return inputs.new_zeros(len(inputs))
        if self.standardised:
            inputs = inputs / channel_moments(public_of(view, "total_variation"))[1]
        across = (inputs[..., :, 1:] - inputs[..., :, :-1]).abs().flatten(1).mean(1)
        down = (inputs[..., 1:, :] - inputs[..., :-1, :]).abs().flatten(1).mean(1)
        return self.weight * (across + down)


@part("priors.length")
class Length:
    """Add weight * mean over the M examples of |x|, the L2 norm (Yin et al., CVPR 2021, R_l2)."""

    weight: Annotated[NonNegative, Field(description="Factor of the penalty.")]
    standardised: Annotated[
        bool,
        Field(
            description="Standardise x first, with the mean and the standard deviation of the public examples' channels."
        ),
    ] = False

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,)."""
        if self.standardised:
            mean, deviation = channel_moments(public_of(view, "length"))
            inputs = (inputs - mean) / deviation
        penalty: Tensor = self.weight * torch.linalg.vector_norm(inputs.flatten(2), dim=2).mean(1)
        return penalty


PRIOR = Slot("priors", ("leakbench.attack.slots",))
