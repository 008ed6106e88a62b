"""The way back through a convolution, as a product of matrices that gathers where folding scatters.

A number that entered at row s q + r, counted in the padded picture, was seen by the rows q, q - 1, ... of places, through the rows
r, s + r, ... of the kernel: of each of the s remainders r it is a convolution of its own without strides, over J = ceil(k / s)
rows of places (the sub-pixel form of a transposed convolution: Shi et al., arXiv:1609.07009). All remainders are one product,
of patches that are k^2 / J^2 times smaller than the columns that folding would sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from leakbench.engine.patches import Kernel, patches

__all__ = ["Transposed"]


@dataclass(frozen=True)
class _Side:
    """Of one side of a picture: taps J, q of the first and of the last row that entered, zeros to add before and after."""

    taps: int
    first: int
    last: int
    before: int
    after: int


@dataclass(frozen=True)
class Transposed:
    """The adjoint of a convolution by `kernel` of pictures of height x width.

    Letters: n pictures, O channels leave and C entered, H' x W' places, Q' = J * J' * O, S = s * s' * C for strides (s, s').
    """

    kernel: Kernel
    height: int
    width: int

    def columns(self, delta: Tensor) -> Tensor:
        """Return (n, R, R', Q'), what `matrix` multiplies, of the derivative (n, H', W', O) by what left."""
        (rows, across) = self._sides
        padded = pad(delta, (0, 0, across.before, across.after, rows.before, rows.after))
        return patches(padded, Kernel((rows.taps, across.taps), (1, 1), (0, 0)))

    def matrix(self, weight: Tensor) -> Tensor:
        """Return a kernel's weights (..., O, C, k, k') as (..., Q', S)."""
        rows, across = self._sides
        leave, enter = weight.shape[-4:-2]
        order = _order(leave, enter, self.kernel, rows.taps, across.taps).to(weight.device)
        flat = pad(weight.flatten(-4), (0, 1))  # The last number is the zero of taps beyond the kernel.
        return flat.index_select(-1, order).reshape(*weight.shape[:-4], rows.taps * across.taps * leave, -1)

    def entered(self, product: Tensor) -> Tensor:
        """Return (n, H, W, C) of columns times matrix (n, R, R', S)."""
        (rows, across), (down, right), (top, left) = self._sides, self.kernel.stride, self.kernel.padding
        count, high, wide, _ = product.shape
        split = product.reshape(count, high, wide, down, right, -1).transpose(2, 3)
        whole = split.reshape(count, high * down, wide * right, -1)
        above, beside = top - down * rows.first, left - right * across.first
        return whole[:, above : above + self.height, beside : beside + self.width]

    @property
    def _sides(self) -> tuple[_Side, _Side]:
        places = self.kernel.places(self.height, self.width)
        along = zip(
            (self.height, self.width), places, self.kernel.size, self.kernel.stride, self.kernel.padding, strict=True
        )
        rows, across = (_side(*numbers) for numbers in along)
        return rows, across


def _side(length: int, places: int, size: int, stride: int, padding: int) -> _Side:
    taps = -(-size // stride)
    first, last = padding // stride, (length - 1 + padding) // stride
    return _Side(taps, first, last, taps - 1 - first, last - (places - 1))


@lru_cache
def _order(leave: int, enter: int, kernel: Kernel, rows: int, across: int) -> Tensor:
    """Return where each number of (Q', S) stands in a flat weight (O, C, k, k'); behind its end where there is none."""
    (high, wide), (down, right) = kernel.size, kernel.stride
    numbers = torch.arange(leave * enter * high * wide).reshape(leave, enter, high, wide)
    whole = pad(numbers, (0, across * right - wide, 0, rows * down - high), value=numbers.numel())
    split = whole.reshape(leave, enter, rows, down, across, right).flip(2, 4)
    return split.permute(2, 4, 0, 3, 5, 1).flatten()
