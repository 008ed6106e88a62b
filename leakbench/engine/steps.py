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

from leakbench.engine.activations import Ways
from leakbench.engine.patches import Kernel, patches, spread
from leakbench.engine.transposed import Transposed
from leakbench.types import Parameters

__all__ = ["Affine", "Bend", "Crop", "Flatten", "Linear", "MaxPool", "Passed", "Pointwise", "Step"]

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""A linear map of derivatives or of tangents."""

Bend: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(tangent of what entered, derivative of the loss by what left) -> their product with the step's second derivative."""


@dataclass(frozen=True)
class Passed:
    """What one step did: its answer, and of a layer with weights the columns (K, B, P, Q) that it multiplied.

    Args:
        back: The derivative of the loss by what left -> by what entered.
        push: The tangent of what entered -> of what left, at fixed weights that all lanes share.
        bend: None where the step is linear in what entered, nearly everywhere.
    """

    answer: Tensor
    back: Linear
    push: Linear
    columns: Tensor | None = None
    bend: Bend | None = None


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

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Multiply."""
        lanes, members = entering.shape[:2]
        weight = parameters[self.weight]
        columns = self._columns(entering)
        places, taken = columns.shape[2:]
        rows = columns.reshape(lanes, members * places, taken)
        answer = _product(rows, self._matrix(weight, shared))
        if self.bias is not None:
            bias = parameters[self.bias]
            answer = answer + (bias if shared else bias[:, None])

        return Passed(
            self._shaped(answer, entering.shape),
            lambda delta: self.returned(delta, weight, shared, entering.shape),
            lambda tangent: self._pushed(tangent, weight, shared),
            columns,
        )

    def returned(self, delta: Tensor, weight: Tensor, shared: bool, entered: torch.Size) -> Tensor:
        """Return the derivative by what entered (K, B, *entered) of that by what left, through a weight (*p) or (K, *p)."""
        lanes, members = delta.shape[:2]
        if self.kernel is None:
            return _product(delta, weight)
        if self.kernel.stride == (1, 1):
            # Examples that share their weights are members of one lane.
            alike = (1, lanes * members) if shared else (lanes, members)
            leaving = delta.reshape(*alike, *delta.shape[2:])
            matrices = self._matrix(weight, shared).mT
            matrices = matrices.reshape(alike[0], *matrices.shape[-2:])
            return spread(leaving, matrices, self.kernel, *entered[2:4]).reshape(lanes, members, *entered[2:])
        way = Transposed(self.kernel, *entered[2:4])
        columns = way.columns(delta.flatten(0, 1))
        product = _product(columns.reshape(lanes, -1, columns.shape[-1]), way.matrix(weight))
        return way.entered(product.reshape(*columns.shape[:-1], -1)).reshape(lanes, members, *entered[2:])

    def moved(self, columns: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the tangent (K, B * P, O) of the answer as each lane's weights move: weight (K, *p), bias (K, O)."""
        rows, matrix = columns.flatten(1, 2), self._matrix(weight, False)
        return torch.bmm(rows, matrix) if bias is None else torch.baddbmm(bias[:, None], rows, matrix)

    def _pushed(self, tangent: Tensor, weight: Tensor, shared: bool) -> Tensor:
        lanes, members = tangent.shape[:2]
        if self.kernel is None:
            return _product(tangent, self._matrix(weight, shared))
        # Nobody needs the columns of a tangent, and one convolution for all is faster than copying them.
        pictures, (down, right), (top, left) = (
            tangent.flatten(0, 1).permute(0, 3, 1, 2),
            self.kernel.stride,
            self.kernel.padding,
        )
        found = torch.conv2d(pictures, weight, None, (down, right), (top, left)).permute(0, 2, 3, 1)
        return found.reshape(lanes, members, *found.shape[1:])

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
    ways: Ways

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Activate."""
        answer: Tensor = self.function(entering)
        bend = self.ways.bend

        def through(derivative: Tensor) -> Tensor:
            return self.ways.back(derivative, entering, answer)

        def bent(tangent: Tensor, delta: Tensor) -> Tensor:
            assert bend is not None  # noqa: S101 - said to mypy; it holds by construction
            return bend(tangent * delta, entering, answer)

        return Passed(answer, through, through, bend=None if bend is None else bent)


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
            entered: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
                leaving, pictures, *where, (1, 1), False, chosen
            )
            return entered.permute(0, 2, 3, 1).reshape(entering.shape)

        def push(tangent: Tensor) -> Tensor:
            entered = tangent.flatten(0, 1).permute(0, 3, 1, 2).flatten(2)
            return self._left(entered.gather(2, chosen.flatten(2)).reshape(chosen.shape), entering.shape)

        return Passed(self._left(pooled, entering.shape), back, push)

    def _left(self, pooled: Tensor, entered: torch.Size) -> Tensor:
        return pooled.permute(0, 2, 3, 1).reshape(*entered[:2], *pooled.shape[2:], -1)


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
            return Passed(entering, lambda delta: delta, lambda tangent: tangent)
        rest = (0, 0, 0, sides[1] - width, 0, sides[0] - height)

        def push(tangent: Tensor) -> Tensor:
            return tangent[:, :, :height, :width]

        return Passed(push(entering), lambda delta: torch.nn.functional.pad(delta, rest), push)


@dataclass(frozen=True)
class Flatten:
    """An example's numbers in a row, as PyTorch orders them: of a picture channel by channel, of others as they lie."""

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Flatten."""
        lanes, members, *sides = entering.shape
        if len(sides) != 3:
            return Passed(
                entering.reshape(lanes, members, -1),
                lambda delta: delta.reshape(lanes, members, *sides),
                lambda tangent: tangent.reshape(lanes, members, -1),
            )
        height, width, channels = sides

        def back(delta: Tensor) -> Tensor:
            # Turned once, so that activations and pools find numbers one after another.
            return delta.reshape(lanes, members, channels, height, width).movedim(2, -1).contiguous()

        def push(tangent: Tensor) -> Tensor:
            return tangent.movedim(-1, 2).reshape(lanes, members, -1)

        return Passed(push(entering), back, push)


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return rows (K, N, Q) times a matrix (Q, O), or one a lane (K, Q, O)."""
    if matrix.dim() == 3:
        return torch.bmm(rows, matrix)
    return (rows.reshape(-1, rows.shape[-1]) @ matrix).reshape(*rows.shape[:2], -1)
