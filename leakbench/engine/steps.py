"""The layers of a chain: what each answers, and how a derivative of the loss comes back through it.

Letters: K lanes, B members, P places of a convolution's kernel (1 for a linear layer), Q numbers that enter at a place, O that
leave. Pictures lie with their channels last, (K, B, H, W, C). Every function here is made of differentiable ones, so that an
attacker can differentiate the gradient itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from leakbench.engine.activations import WayBack
from leakbench.engine.patches import Kernel, patches, spread
from leakbench.types import Parameters

__all__ = ["Affine", "Back", "Crop", "Flatten", "MaxPool", "Passed", "Pointwise", "Step"]

Back: TypeAlias = Callable[[Tensor], Tensor]
"""The derivative of the loss by what left -> by what entered."""


@dataclass(frozen=True)
class Passed:
    """What one step did: its answer, the way back, and of a layer with weights the columns (K, B, P, Q) that it multiplied."""

    answer: Tensor
    back: Back
    columns: Tensor | None = None


class Step(Protocol):
    """One layer of a chain."""

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Pass `entering` (K, B, ...) on; the parameters are one set for all lanes if `shared`, else one a lane."""


@dataclass(frozen=True)
class Affine:
    """A linear layer, or a convolution (`kernel`), as one product of matrices."""

    weight: str
    bias: str | None
    kernel: Kernel | None

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Multiply."""
        lanes, members = entering.shape[:2]
        matrix = self._matrix(parameters[self.weight], shared)
        columns = self._columns(entering)
        places, taken = columns.shape[2:]
        rows = columns.reshape(lanes, members * places, taken)
        answer = _product(rows, matrix)
        if self.bias is not None:
            bias = parameters[self.bias]
            answer = answer + (bias if shared else bias[:, None])

        def back(delta: Tensor) -> Tensor:
            if self.kernel is None:
                return _product(delta, matrix.mT)
            height, width = entering.shape[2:4]
            # Examples that share their weights are members of one lane.
            alike = (1, lanes * members) if shared else (lanes, members)
            leaving = delta.reshape(*alike, *self.kernel.places(height, width), -1)
            reached = spread(leaving, matrix.mT.reshape(alike[0], -1, taken), self.kernel, height, width)
            return reached.reshape(entering.shape)

        return Passed(self._shaped(answer, entering.shape), back, columns)

    def weight_like(self, products: Tensor, parameter: Tensor) -> Tensor:
        """Return products (..., O, Q) in the shape of the weight (..., *p)."""
        if self.kernel is None:
            return products
        channels = parameter.shape[-3]
        split = products.reshape(*products.shape[:-1], *self.kernel.size, channels)
        return split.movedim(-1, -3)

    def _matrix(self, weight: Tensor, shared: bool) -> Tensor:
        """Return (Q, O), or (K, Q, O), in the order of the columns."""
        if self.kernel is None:
            return weight.mT
        flat = weight.movedim(-3, -1).flatten(1 if shared else 2)
        return flat.mT

    def _columns(self, entering: Tensor) -> Tensor:
        if self.kernel is None:
            return entering[:, :, None]
        found = patches(entering.flatten(0, 1), self.kernel)
        return found.reshape(*entering.shape[:2], -1, found.shape[-1])

    def _shaped(self, answer: Tensor, entered: torch.Size) -> Tensor:
        """Return the answer (K, B * P, O) as it leaves."""
        if self.kernel is None:
            return answer.reshape(*entered[:2], -1)
        return answer.reshape(*entered[:2], *self.kernel.places(*entered[2:4]), -1)


@dataclass(frozen=True)
class Pointwise:
    """An activation of each number alone."""

    function: nn.Module
    way_back: WayBack

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Activate."""
        answer: Tensor = self.function(entering)
        return Passed(answer, lambda delta: self.way_back(delta, entering, answer))


@dataclass(frozen=True)
class MaxPool:
    """The largest number of each window; the derivative goes to where it was."""

    kernel: Kernel

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Pool."""
        where = (self.kernel.size, self.kernel.stride, self.kernel.padding)
        pictures = entering.flatten(0, 1).permute(0, 3, 1, 2)
        pooled, chosen = torch.nn.functional.max_pool2d(pictures, *where, return_indices=True)

        def back(delta: Tensor) -> Tensor:
            leaving = delta.reshape(-1, *delta.shape[2:]).permute(0, 3, 1, 2)
            spread: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
                leaving, pictures, *where, (1, 1), False, chosen
            )
            return spread.permute(0, 2, 3, 1).reshape(entering.shape)

        return Passed(pooled.permute(0, 2, 3, 1).reshape(*entering.shape[:2], *pooled.shape[2:], -1), back)


@dataclass(frozen=True)
class Crop:
    """What of a picture the convolutions and pools behind it read, first to last; none of them pads.

    A pool of 2 x 2 leaves the last row and column over where there are 11 of each: 21 of 121 places that need no product, and
    before them two of 28 rows and columns of the picture.
    """

    behind: tuple[Kernel, ...]

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Leave the rows and columns behind them away."""
        sides = height, width = entering.shape[2:4]
        for kernel in self.behind:
            height, width = kernel.places(height, width)
        for kernel in reversed(self.behind):
            height, width = kernel.reach(height, width)
        if (height, width) == sides:
            return Passed(entering, lambda delta: delta)
        rest = (0, 0, 0, sides[1] - width, 0, sides[0] - height)
        return Passed(entering[:, :, :height, :width], lambda delta: torch.nn.functional.pad(delta, rest))


@dataclass(frozen=True)
class Flatten:
    """A picture's numbers in a row, channel by channel, as PyTorch orders them."""

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Flatten."""
        if entering.dim() == 3:
            return Passed(entering, lambda delta: delta)
        lanes, members, *sides, channels = entering.shape

        def back(delta: Tensor) -> Tensor:
            # Turned once, so that activations and pools find numbers one after another.
            return delta.reshape(lanes, members, channels, *sides).movedim(2, -1).contiguous()

        return Passed(entering.movedim(-1, 2).reshape(lanes, members, -1), back)


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return rows (K, N, Q) times a matrix (Q, O), or one a lane (K, Q, O)."""
    if matrix.dim() == 3:
        return torch.bmm(rows, matrix)
    return (rows.reshape(-1, rows.shape[-1]) @ matrix).reshape(*rows.shape[:2], -1)
