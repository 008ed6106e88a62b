"""Slot `start`, for tables: first guesses in units of the columns' deviations."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import TABULAR, Needs
from leakbench.attack.slots.space_tables import layout_of, soften
from leakbench.core.part import part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["StandardUniform"]


@part("start.standard_uniform")
class StandardUniform:
    """Draw each column of a table from U(-1, 1) in standard deviations around its mean (TabLeak's released code, `uniform`)."""

    needs: ClassVar[Needs] = Needs(kinds=(TABULAR,))

    soft: Annotated[
        bool,
        Field(
            description=(
                "Use the values as the logits and bounded numbers of the space `soft_categories` with its defaults, where "
                "TabLeak starts; otherwise as the records themselves, where its Inverting Gradients starts."
            )
        ),
    ] = False

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess (V, M, d); raises InputError if the inputs are not a table."""
        columns, like = layout_of(view, "standard_uniform"), view.like
        shape = (view.examples, columns.width)
        z = torch.stack([2 * torch.rand(shape, generator=rng) - 1 for rng in rngs]).to(like)
        return soften(z, columns, 1.0, "sigmoid") if self.soft else columns.mean.to(z) + columns.deviation.to(z) * z
