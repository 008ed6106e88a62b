"""The layers of a chain: their outputs, and the derivatives of the loss with respect to their inputs.

Letters: K lanes, B members, P places of a convolution's kernel (1 for a linear layer), Q inputs and O outputs at each place.
Pictures
have their channels last, (K, B, H, W, C). All functions are differentiable, so an attacker can differentiate the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from leakbench.core.types import Parameters
from leakbench.engine.activations import Ways
from leakbench.engine.patches import Kernel, folded, patches, spread
from leakbench.engine.transposed import Transposed

__all__ = ["Affine", "Bend", "Crop", "Flatten", "Linear", "MaxPool", "Passed", "Pointwise", "Step"]

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""A linear map of derivatives or of tangents."""

Bend: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(tangent of the input, derivative of the loss by the output) -> their product with the step's second derivative."""


@dataclass(frozen=True)
class Passed:
    """The result of one step.

    Args:
        answer: The output of the step.
        back: Maps the derivative of the loss by the output to that by the input.
        push: Maps the tangent of the input to that of the output, at fixed weights that all lanes share.
        columns: (K, B, P, Q), the inputs that a layer with weights multiplied; None without weights.
        bend: The second derivative; None if the step is linear nearly everywhere.
        pull: Maps the derivative of a search's value likewise, if gradients use another derivative of the step; None for `back`.
    """

    answer: Tensor
    back: Linear
    push: Linear
    columns: Tensor | None = None
    bend: Bend | None = None
    pull: Linear | None = None


class Step(Protocol):
    """One layer of a chain."""

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Return the result for `entering` (K, B, ...); all lanes have the same parameters if `shared`, else one set each."""


@dataclass(frozen=True)
class Affine:
    """A linear layer, or a convolution (`kernel`), as one product of matrices."""

    weight: str
    bias: str | None
    kernel: Kernel | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layer's parameters."""
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
        """Return the derivative by the input (K, B, *entered).

        Args:
            delta: Derivative by the output.
            weight: (*p) if `shared`, else (K, *p).
            entered: Shape of the layer's input.
        """
        lanes, members = delta.shape[:2]
        if self.kernel is None:
            return _product(delta, weight)
        if self.kernel.stride == (1, 1):
            if not shared and delta.device.type == "cuda":
                return self.returned_by_columns(delta, weight, entered)
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

    def returned_by_columns(self, delta: Tensor, weight: Tensor, entered: torch.Size) -> Tensor:
        """Return the same as `returned` for weights (K, *p) of a convolution, by one product for all lanes.

        A GPU computes the groups of a convolution one after the other, which takes twice as long for a hundred lanes.
        """
        assert self.kernel is not None  # noqa: S101 - for mypy: only convolutions have columns
        columns = torch.bmm(delta.flatten(1, 3), self._matrix(weight, False).mT)
        return folded(columns.reshape(-1, *delta.shape[2:4], columns.shape[-1]), self.kernel, *entered[2:4]).reshape(
            *delta.shape[:2], *entered[2:]
        )

    def moved(self, columns: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the tangent (K, B * P, O) of the output for tangents of each lane's parameters: weight (K, *p), bias (K, O)."""
        rows, matrix = columns.flatten(1, 2), self._matrix(weight, False)
        narrow = _narrow(rows, matrix)
        if bias is None:
            return _times(rows, matrix, narrow)
        if narrow:
            return torch.baddbmm(bias[:, :, None], matrix.mT, rows.mT).mT.contiguous()
        return torch.baddbmm(bias[:, None], rows, matrix)

    def _pushed(self, tangent: Tensor, weight: Tensor, shared: bool) -> Tensor:
        lanes, members = tangent.shape[:2]
        if self.kernel is None:
            return _product(tangent, self._matrix(weight, shared))
        # A tangent needs no columns, and one convolution for all lanes is faster than copying them.
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
        """Return the output (K, B * P, O) in the shape of the next step's input."""
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
            assert bend is not None  # noqa: S101 - for mypy: `bent` is only used with a bend
            return bend(tangent * delta, entering, answer)

        return Passed(answer, through, through, bend=None if bend is None else bent)


@dataclass(frozen=True)
class MaxPool:
    """The largest number of each window, which gets the derivative."""

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
    """The part of a picture that the following convolutions and pools, without padding, read.

    For example, a 2 x 2 pool does not read the last of 11 rows and columns. This saves the products of 21 of 121 places, and of two
    of the picture's 28 rows and columns before them.

    Args:
        behind: The kernels of the following steps, in order.
    """

    behind: tuple[Kernel, ...]

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        """Remove the unread rows and columns."""
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
    """An example's numbers in a row, in PyTorch's order: a picture channel by channel."""

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
            # Contiguous, which makes the following activations and pools faster.
            return delta.reshape(lanes, members, channels, height, width).movedim(2, -1).contiguous()

        def push(tangent: Tensor) -> Tensor:
            return tangent.movedim(-1, 2).reshape(lanes, members, -1)

        return Passed(push(entering), back, push)


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return rows (K, N, Q) times a matrix (Q, O), or one matrix per lane (K, Q, O)."""
    narrow = _narrow(rows, matrix)
    if matrix.dim() == 3:
        return _times(rows, matrix, narrow)
    return _times(rows.reshape(-1, rows.shape[-1]), matrix, narrow).reshape(*rows.shape[:2], -1)


def _times(rows: Tensor, matrix: Tensor, narrow: bool) -> Tensor:
    """Return rows (..., N, Q) times a matrix (..., Q, O)."""
    return (matrix.mT @ rows.mT).mT.contiguous() if narrow else rows @ matrix


def _narrow(rows: Tensor, matrix: Tensor) -> bool:
    """Return whether rows (K, N, Q) are multiplied faster transposed, whatever the number of lanes (docs/performance.md).

    Processors compute 8 or 16 columns at a time.
    """
    return 4 < matrix.shape[-1] < 16 and matrix.shape[-2] >= 48 and rows.shape[1] >= 32 and rows.device.type == "cpu"
