"""A stage of an ensemble: a method that answers with a reconstruction, and the networks on which it is worth running."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, runtime_checkable

from torch import nn

from leakbench.answers import Reconstruction
from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.federated.view import View
from leakbench.models.kinks import kinked
from leakbench.models.layers import begins_linear
from leakbench.part import part
from leakbench.recipe import Slot
from leakbench.types import Generators

__all__ = ["Reconstructs", "Stage"]


@runtime_checkable
class Reconstructs(Protocol):
    """A method that answers with a reconstruction."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Answer for the V victims that all views show; victim v draws from rngs[v]."""


PICTURE = 3
"""Axes of a picture: channels, rows, columns. What the searches on kinked networks ask of neighbouring pixels, a table has not."""


@part("stage")
class Stage:
    """Run `method` on the networks that `where` names.

    Args:
        where: `always`; `begins_linear`: where the first layer is linear with a bias, so that a closed form can read it;
            `kinked`: where a network for images has ReLUs, max pooling or similar kinks, at which a search by second derivatives
            stops early.
    """

    method: Annotated[
        Reconstructs, Slot("method", ("leakbench.attack.methods",), without=("autoleak", "rows", "spear"))
    ]
    where: Literal["always", "begins_linear", "kinked"] = "always"

    def applies(self, view: View) -> bool:
        """Return whether it runs on the network of a view and finds there what it reads."""
        method = self.method
        reads = not isinstance(method, FeatureInversion) or method.applies(view)
        return self.runs_on(view.network.model, view.shape) and reads

    def runs_on(self, model: nn.Module, shape: tuple[int, ...]) -> bool:
        """Say whether it runs on a network for inputs of one shape (*s)."""
        if self.where == "begins_linear":
            return begins_linear(model, shape)
        return self.where == "always" or (len(shape) == PICTURE and kinked(model, shape))
