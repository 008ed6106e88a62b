"""A stage of an ensemble: a method that reconstructs, and the networks on which it is worth running."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.attack.methods.token_likelihood import TokenLikelihood
from leakbench.attack.slots.start_reconstructed import Reconstructs
from leakbench.core.part import part
from leakbench.core.recipe import Slot
from leakbench.federated.view import View
from leakbench.models.kinks import kinked
from leakbench.models.language import LanguageModel
from leakbench.models.layers import first_layer

__all__ = ["Reconstructs", "Stage"]


PICTURE = 3
"""Number of axes of an image: channels, rows, columns. The searches on kinked networks use neighbouring pixels, unlike tables."""


@part("stage")
class Stage:
    """Run `method` on some networks."""

    skipped: ClassVar[bool] = True

    method: Annotated[
        Reconstructs, Slot("method", ("leakbench.attack.methods",), without=("autoleak", "rows", "spear"))
    ]
    where: Annotated[
        Literal["always", "begins_linear", "kinked", "texts"],
        Field(
            description=(
                "Networks on which the stage runs. `always`: all for pictures and tables. `texts`: language models. "
                "`begins_linear`: those with a biased linear first layer, which a closed form can read. `kinked`: networks for "
                "images with ReLUs, max pooling or similar kinks, at which a search by second derivatives stops early."
            )
        ),
    ] = "always"

    def applies(self, view: View) -> bool:
        """Return whether the stage runs on the network of a view and can read what it needs from the view."""
        method = self.method
        reads = not isinstance(method, FeatureInversion | TokenLikelihood) or method.applies(view)
        return self.runs_on(view.network.model, view.shape) and reads

    def runs_on(self, model: nn.Module, shape: tuple[int, ...]) -> bool:
        """Return whether the stage runs on a network for inputs of shape (*s)."""

        if isinstance(model, LanguageModel):
            return self.where == "texts"
        if self.where == "texts":
            return False
        if self.where == "begins_linear":
            return first_layer(model, shape) is not None
        return self.where == "always" or (len(shape) == PICTURE and kinked(model, shape))
