"""Slot `start`: the reconstruction of another method, such as a closed form."""

from __future__ import annotations

from typing import Annotated, ClassVar, Protocol, runtime_checkable

from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import PLAIN, Needs
from leakbench.core.answers import Reconstruction
from leakbench.core.part import Fraction, part
from leakbench.core.recipe import Slot
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["Reconstructed", "Reconstructs"]

SEARCHES = (
    "plug_and_play",
    "autoleak",
    "gradient_matching",
    "feature_inversion",
    "lamp",
    "dager",
    "bag_of_words",
    "token_likelihood",
)
"""Methods that search or reconstruct texts: their own fields have starts."""


@runtime_checkable
class Reconstructs(Protocol):
    """A method that returns a reconstruction."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct the V victims of the views; victim v draws from rngs[v]."""


@part("start.reconstructed")
class Reconstructed:
    """Start from the reconstruction of a method that does not search, its examples in ascending order of their labels."""

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    method: Annotated[
        Reconstructs,
        Slot("method", ("leakbench.attack.methods",), without=SEARCHES),
    ]
    value: Annotated[Fraction, Field(description="Value in place of those that the method does not reconstruct.")] = 0.5

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess (V, M, *s); raises InputError as the method does."""
        answer = self.method((view,), rngs)
        order = answer.labels.argsort(dim=1, stable=True)
        inputs = answer.inputs[order.new_tensor(range(len(order)))[:, None], order]
        return inputs.where(inputs.isfinite(), self.value)
