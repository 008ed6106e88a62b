"""ATS: each image goes through a searched policy of image transformations before its gradient is computed."""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.types import Clock, Generators
from leakbench.defense.augmentation import Augmentation, Batch, check_pictures, drawn

__all__ = ["Ats", "contrast", "shifted"]

Operation: TypeAlias = Literal["translate_x", "translate_y", "contrast"]
Size: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Policy: TypeAlias = Annotated[tuple[tuple[Operation, Size], ...], Field(min_length=1)]

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel (ITU-R BT.601), as Pillow computes it."""


@part("augmentation.ats")
class Ats:
    """Draw one policy for each image and apply its operations in order, each in a random direction (Gao et al., CVPR 2021).

    `translate_x` and `translate_y` move the image by a share of its width or height to either side, in whole pixels, and fill with
    black. `contrast` multiplies the distances from the mean brightness by one plus or minus its size, and clamps to [0, 1].
    """

    policies: Annotated[
        tuple[Policy, ...],
        Field(
            min_length=1,
            description="Policies, each a list of operations with their sizes, such as [[translate_x, 0.4]].",
        ),
    ]

    by_example: ClassVar[bool] = True

    @property
    def longest(self) -> int:
        """Number of operations of the longest policy."""
        return max(map(len, self.policies))

    def outcomes(self) -> tuple[Augmentation, ...]:
        """Return each policy in each combination of directions."""
        return tuple(
            _Chosen(policy, signs)
            for policy in self.policies
            for signs in itertools.product((-1.0, 1.0), repeat=len(policy))
        )

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        """Transform each image; without generators nothing is done, since every operation has a random direction.

        Raises:
            InputError: For inputs that are not images.
        """
        check_pictures(batch.inputs, "ats")
        if rngs is None:
            return batch
        numbers = drawn(batch, rngs, lambda n, rng: torch.rand(n, 1 + self.longest, generator=rng))
        chosen = (numbers[..., 0] * len(self.policies)).long()
        signs = torch.where(numbers[..., 1:] < 0.5, -1.0, 1.0).to(batch.inputs)
        inputs = batch.inputs
        for index, policy in enumerate(self.policies):
            changed = _run(batch.inputs, policy, signs)
            inputs = torch.where((chosen == index)[..., None, None, None], changed, inputs)
        return Batch(inputs, batch.targets, batch.weights)


class _Chosen:
    """One policy with known directions."""

    random = False

    def __init__(self, policy: Policy, signs: tuple[float, ...]) -> None:
        self.policy = policy
        self.signs = signs

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        """Transform each image; nothing is random."""
        signs = batch.inputs.new_tensor(self.signs).expand(*batch.weights.shape, len(self.signs))
        return Batch(_run(batch.inputs, self.policy, signs), batch.targets, batch.weights)


def _run(inputs: Tensor, policy: Policy, signs: Tensor) -> Tensor:
    """Return images (lanes, B, C, H, W) after a policy whose operation j has the direction signs[..., j] of (lanes, B, n)."""
    for place, (operation, size) in enumerate(policy):
        sign = signs[..., place, None, None, None]
        if operation == "contrast":
            inputs = contrast(inputs, 1 + size * sign)
        else:
            axis = -1 if operation == "translate_x" else -2
            inputs = torch.where(sign > 0, shifted(inputs, size, axis), shifted(inputs, -size, axis))
    return inputs


def shifted(inputs: Tensor, share: float, axis: int) -> Tensor:
    """Return images of which pixel i shows pixel i + share * n of the original along an axis of n pixels, rounded; 0 outside."""
    count = inputs.shape[axis]
    places = torch.floor(torch.arange(count, dtype=torch.float64) + 0.5 + share * count).long().to(inputs.device)
    inside = ((places >= 0) & (places < count)).to(inputs)
    moved = inputs.index_select(axis, places.clamp(0, count - 1))
    return moved * (inside if axis == -1 else inside[:, None])


def contrast(inputs: Tensor, factor: Tensor) -> Tensor:
    """Return images (..., C, H, W) with `factor` (..., 1, 1, 1) times the distances from the mean brightness, clamped to [0, 1].

    Raises:
        InputError: For a number of channels other than 1 and 3.
    """
    channels = inputs.shape[-3]
    if channels not in (1, 3):
        raise InputError(f"ats: contrast got images of {channels} channels, expected 1 or 3")
    weights = inputs.new_tensor(LUMA if channels == 3 else (1.0,))[:, None, None]
    mean = (inputs * weights).sum(-3, keepdim=True).mean((-2, -1), keepdim=True)
    return (mean + factor * (inputs - mean)).clamp(0, 1)
