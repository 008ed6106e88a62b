"""Slot `priors`: what makes one guess more likely than another before any gradient is seen; each adds to the distance."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from leakbench.federated.leakage import View
from leakbench.types import NonNegative, part

__all__ = ["PRIORS", "Prior", "TotalVariation"]


@runtime_checkable
class Prior(Protocol):
    """A penalty on inputs."""

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return (v,) penalties of guesses (v, M, *s), each for one of the view's `victims` (v,); differentiable.

        Of several restarts all guesses for one victim bear its number.
        """


@part
class TotalVariation:
    """weight * (mean |dx| + mean |dy|), anisotropic (Geiping et al., NeurIPS 2020, eq. 4); nothing for inputs without sides."""

    weight: NonNegative

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return (v,) penalties."""
        if inputs.dim() < 5:
            return inputs.new_zeros(len(inputs))
        across = (inputs[..., :, 1:] - inputs[..., :, :-1]).abs().flatten(1).mean(1)
        down = (inputs[..., 1:, :] - inputs[..., :-1, :]).abs().flatten(1).mean(1)
        return self.weight * (across + down)


PRIORS: dict[str, type[Prior]] = {"total_variation": TotalVariation}
