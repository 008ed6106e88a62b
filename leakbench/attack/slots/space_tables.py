"""Slot `space`, for tables: columns in their own deviations, and categories as softmaxes of free logits."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import TABULAR, Needs
from leakbench.attack.search.coordinates import Coordinates
from leakbench.core.errors import InputError
from leakbench.core.part import Positive, part
from leakbench.data.columns import Columns
from leakbench.federated.view import View

__all__ = ["SoftCategories", "StandardColumns", "layout_of", "soften"]

LEAST = 1e-7
"""Smallest distance of a value from 0 and 1 at which its logit is taken."""


def layout_of(view: View, who: str) -> Columns:
    """Return the view's table layout; raises InputError, which names the part `who`, if the inputs are not a table."""
    if view.columns is None:
        raise InputError(
            f"{who}: needs a table, got inputs of shape {view.shape} (try --dataset adult, or another part)"
        )
    return view.columns


def _moments(columns: Columns, like: Tensor) -> tuple[Tensor, Tensor]:
    return columns.mean.to(like), columns.deviation.to(like)


def soften(z: Tensor, columns: Columns, temperature: float, numbers: Literal["sigmoid", "clamp"]) -> Tensor:
    """Return records (..., d) in [0, 1] for standardized columns z (..., d).

    A category is the softmax of (mean + deviation * z) / `temperature` over its columns. A number is sigmoid(z), or
    mean + deviation * z clamped to [0, 1].
    """
    mean, deviation = _moments(columns, z)
    logits = mean + deviation * z
    bounded = z.sigmoid() if numbers == "sigmoid" else logits.clamp(0, 1)
    pieces = [bounded[..., :0]]
    for f in sorted(columns.features, key=lambda f: f.start):
        group = (logits if f.values else bounded)[..., f.start : f.stop]
        pieces.append((group / temperature).softmax(-1) if f.values else group)
    return torch.cat(pieces, -1)


@part("space.standard_columns")
class StandardColumns:
    """Search standardized columns without bounds, as TabLeak runs Inverting Gradients.

    A column is standardized by its mean and its standard deviation. The reconstruction has the largest column of each category, and
    numbers clamped to [0, 1].
    """

    needs: ClassVar[Needs] = Needs(kinds=(TABULAR,))

    def __call__(self, view: View) -> Coordinates:
        """Return the coordinates; raises InputError if the inputs are not a table."""
        columns = layout_of(view, "standard_columns")

        def decode(z: Tensor) -> Tensor:
            mean, deviation = _moments(columns, z)
            return mean + deviation * z

        def encode(x: Tensor) -> Tensor:
            mean, deviation = _moments(columns, x)
            return (x - mean) / deviation

        return Coordinates(decode, encode, lambda z, _: z.new_zeros(len(z)), columns.hardened)


@part("space.soft_categories")
class SoftCategories:
    """Search TabLeak's relaxation: a softmax over the columns of each category, and bounded numbers (Vero et al., ICML 2023).

    The paper is arXiv:2210.01785. The reconstruction has the largest column of each category.
    """

    needs: ClassVar[Needs] = Needs(kinds=(TABULAR,))

    temperature: Annotated[
        Positive,
        Field(
            description="Constant temperature of the softmax; 1 in all configurations of the released code's experiments."
        ),
    ] = 1.0
    numbers: Annotated[
        Literal["sigmoid", "clamp"],
        Field(
            description=(
                "How numbers are bounded: by a `sigmoid` over their range (released code, `sigmoid_trick`), or by a `clamp`, "
                "beyond which the distance is constant."
            )
        ),
    ] = "sigmoid"
    standardized: Annotated[
        bool,
        Field(
            description=(
                "Use mean + deviation * z as logits, as in the released code, so that a search starts at the public frequencies "
                "and a rare category hardly moves; otherwise, logits are z."
            )
        ),
    ] = True

    def __call__(self, view: View) -> Coordinates:
        """Return the coordinates; raises InputError if the inputs are not a table. `encode` takes records inside (0, 1)."""
        columns = layout_of(view, "soft_categories")
        plain = Columns(columns.features, columns.mean * 0, columns.deviation * 0 + 1)
        used = columns if self.standardized else plain
        is_number = torch.zeros(columns.width, dtype=torch.bool)
        is_number[columns.numbers] = True

        def encode(x: Tensor) -> Tensor:
            mean, deviation = _moments(used, x)
            inside = x.clamp(LEAST, 1 - LEAST)
            logits = (self.temperature * inside.log() - mean) / deviation
            numbers = inside.logit() if self.numbers == "sigmoid" else (x - mean) / deviation
            return torch.where(is_number.to(x.device), numbers, logits)

        return Coordinates(
            decode=lambda z: soften(z, used, self.temperature, self.numbers),
            encode=encode,
            energy=lambda z, _: z.new_zeros(len(z)),
            answer=columns.hardened,
        )
