"""OASIS: a batch with transformed copies of each image, so that rows which one image activates show a mean of copies."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.types import Clock, Generators
from leakbench.defense.augmentation import Batch, check_pictures

__all__ = ["Oasis"]

TURNS = {"rotate_90": 1, "rotate_180": 2, "rotate_270": 3}
BACK = {"rotate_90": "rotate_270", "rotate_270": "rotate_90"}
FLIPS = {"flip_horizontal": -1, "flip_vertical": -2}


@part("augmentation.oasis")
class Oasis:
    """Add transformed copies of each image to its batch, with the same label (Jeter et al., ICDCS 2024).

    The transformations are not random. At the leakage point type-2, the first member is the original image, which nothing protects.
    """

    added: Annotated[
        tuple[Literal["rotate_90", "rotate_180", "rotate_270", "flip_horizontal", "flip_vertical"], ...],
        Field(min_length=1, description="Transformation of each added copy; rotations are counterclockwise."),
    ] = ("rotate_90", "rotate_180", "rotate_270")

    random: ClassVar[bool] = False

    @property
    def copies(self) -> int:
        """Number of members of the batch for each image: the original and the added ones."""
        return 1 + len(self.added)

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        """Return the batch with its copies after the originals; nothing is random.

        Raises:
            InputError: For inputs that are not images, and for images that a quarter turn does not fit on.
        """
        check_pictures(batch.inputs, "oasis")
        inputs = torch.cat([batch.inputs, *(_transformed(batch.inputs, name) for name in self.added)], 1)
        return Batch(inputs, batch.targets.repeat(1, self.copies, 1), batch.weights.repeat(1, self.copies))

    def originals(self, members: Tensor) -> Tensor:
        """Return each member (n, *s), and it after the inverse of each transformation, as (n k, *s)."""
        several = [members, *(_transformed(members, BACK.get(name, name)) for name in self.added)]
        return torch.stack(several, 1).flatten(0, 1)


def _transformed(inputs: Tensor, name: str) -> Tensor:
    if name in FLIPS:
        return inputs.flip(FLIPS[name])
    height, width = inputs.shape[-2:]
    if height != width and name != "rotate_180":
        raise InputError(f"oasis: {name} got images of {height} x {width}, expected squares; use rotate_180 or flips")
    return inputs.rot90(TURNS[name], (-2, -1))
