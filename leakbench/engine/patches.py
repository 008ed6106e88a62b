"""The patches of a convolution as the rows of a matrix, so that a convolution is one matrix product; and the adjoint operation.

Pictures have their channels last, (n, H, W, C). The numbers of one row of a patch are then neighbours in memory, and copying
them is several times as fast as `torch.nn.functional.unfold`. Letters: n pictures, C channels, a k x k kernel at H' x W'
places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Kernel", "folded", "patches", "spread"]


@dataclass(frozen=True)
class Kernel:
    """The size, stride and zero padding of a convolution, each as (rows, columns)."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def places(self, height: int, width: int) -> tuple[int, int]:
        """Return (H', W'), the number of places of the kernel on a picture of this size."""
        (rows, columns), (down, right), (top, left) = self.size, self.stride, self.padding
        return (height + 2 * top - rows) // down + 1, (width + 2 * left - columns) // right + 1

    def reach(self, rows: int, columns: int) -> tuple[int, int]:
        """Return (H, W), the size of the smallest picture with this number of places."""
        (height, width), (down, right), (top, left) = self.size, self.stride, self.padding
        return (rows - 1) * down + height - 2 * top, (columns - 1) * right + width - 2 * left


def patches(pictures: Tensor, kernel: Kernel) -> Tensor:
    """Return the patches (n, H', W', k * k * C) of pictures (n, H, W, C); differentiable any number of times."""
    if _plain():
        return _Patches.forward(pictures, kernel)
    taken: Tensor = _Patches.apply(pictures, kernel)
    return taken


def folded(columns: Tensor, kernel: Kernel, height: int, width: int) -> Tensor:
    """Return (n, H, W, C), the adjoint of `patches`: each number is the sum of its copies in `columns`.

    Args:
        columns: (n, H', W', k * k * C).
    """
    if _plain():
        return _Folded.forward(columns, kernel, height, width)
    summed: Tensor = _Folded.apply(columns, kernel, height, width)
    return summed


def _plain() -> bool:
    """Return whether nothing is differentiated, so that the calls of autograd, as long as a small copy, can be left out."""
    return not torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def spread(leaving: Tensor, matrices: Tensor, kernel: Kernel, height: int, width: int) -> Tensor:
    """Return `folded` of outputs times matrices, (K, B, H, W, C), by one transposed convolution with K groups.

    It does not store the columns, which are k * k times as large as the result.

    Args:
        leaving: (K, B, H', W', O).
        matrices: K matrices (O, k * k * C).
    """
    lanes, members, *places, left = leaving.shape
    reached = kernel.reach(*places)
    unseen = (height - reached[0], width - reached[1])
    weight = matrices.reshape(lanes * left, *kernel.size, -1).permute(0, 3, 1, 2)
    beside = leaving.permute(1, 2, 3, 0, 4).reshape(members, *places, lanes * left).permute(0, 3, 1, 2)
    entered = torch.nn.functional.conv_transpose2d(beside, weight, None, kernel.stride, kernel.padding, unseen, lanes)
    return entered.permute(0, 2, 3, 1).reshape(members, height, width, lanes, -1).permute(3, 0, 1, 2, 4).contiguous()


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(pictures: Tensor, kernel: Kernel) -> Tensor:
        count, height, width, channels = pictures.shape
        (top, left), (down, right), (rows, columns) = kernel.padding, kernel.stride, kernel.size
        if top or left:
            padded = pictures.new_zeros(count, height + 2 * top, width + 2 * left, channels)
            padded[:, top : top + height, left : left + width] = pictures
        else:  # A slice of a larger tensor may have rows with gaps between them.
            padded = pictures if pictures.stride()[2:] == (channels, 1) else pictures.contiguous()
        picture, line = padded.stride()[:2]
        places = kernel.places(height, width)
        seen = padded.as_strided(
            (count, *places, rows, columns * channels), (picture, down * line, right * channels, line, 1)
        )
        if channels == 1:
            # The rows of a patch are short and those of a picture long, so the copy runs along pictures and is transposed.
            seen = seen.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)
        return seen.reshape(count, *places, rows * columns * channels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pictures, kernel = inputs
        ctx.kernel, ctx.sides = kernel, pictures.shape[1:3]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return folded(gradients[0], ctx.kernel, *ctx.sides), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return patches(tangents[0], ctx.kernel)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], pictures: Tensor, kernel: Kernel) -> tuple[Tensor, int]:
        many = pictures.movedim(in_dims[0], 0)
        taken = patches(many.flatten(0, 1), kernel)
        return taken.reshape(*many.shape[:2], *taken.shape[1:]), 0


class _Folded(torch.autograd.Function):
    @staticmethod
    def forward(columns: Tensor, kernel: Kernel, height: int, width: int) -> Tensor:
        (top, left), (down, right), (k_rows, k_columns) = kernel.padding, kernel.stride, kernel.size
        count, rows, across, length = columns.shape
        channels = length // (k_rows * k_columns)
        # The sums over the kernel's rows come first, since they run over longer lines of memory.
        seen = columns.reshape(count, rows, across, k_rows, k_columns * channels)
        lines = columns.new_zeros(count, height + 2 * top, across, k_columns * channels)
        for i in range(k_rows):
            lines[:, i : i + down * (rows - 1) + 1 : down] += seen[:, :, :, i]
        split = lines.reshape(count, height + 2 * top, across, k_columns, channels)
        pictures = columns.new_zeros(count, height + 2 * top, width + 2 * left, channels)
        for j in range(k_columns):
            pictures[:, :, j : j + right * (across - 1) + 1 : right] += split[:, :, :, j]
        return pictures[:, top : top + height, left : left + width]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kernel, ctx.sides = inputs[1], inputs[2:]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return patches(gradients[0], ctx.kernel), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return folded(tangents[0], ctx.kernel, *ctx.sides)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], columns: Tensor, kernel: Kernel, height: int, width: int
    ) -> tuple[Tensor, int]:
        many = columns.movedim(in_dims[0], 0)
        summed = folded(many.flatten(0, 1), kernel, height, width)
        return summed.reshape(*many.shape[:2], *summed.shape[1:]), 0
