"""The adjoint of a convolution as a matrix product that gathers numbers, where `folded` scatters them.

The places in rows q, q - 1, ... read the input row s q + r of the padded picture, through kernel rows r, s + r, ... For each of the
s remainders r, the adjoint is therefore a separate convolution without strides, over J = ceil(k / s) rows of places (the sub-pixel
form of a transposed convolution: Shi et al., arXiv:1609.07009). One product computes all remainders. Its patches are k^2 / J^2
times
smaller than the columns that `folded` sums.
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
    """One side of a picture.

    Args:
        taps: J.
        first: q of the first input row.
        last: q of the last input row.
        before: Number of zeros to add before.
        after: Number of zeros to add after.
    """

    taps: int
    first: int
    last: int
    before: int
    after: int


@dataclass(frozen=True)
class Transposed:
    """The adjoint of a convolution by `kernel` of pictures of height x width.

    Letters: n pictures, O output and C input channels, H' x W' places, Q' = J * J' * O, S = s * s' * C for strides (s, s').
    """

    kernel: Kernel
    height: int
    width: int

    def columns(self, delta: Tensor) -> Tensor:
        """Return the columns (n, R, R', Q') for `matrix`, from the derivative (n, H', W', O) by the output."""
        (rows, across) = self._sides
        padded = pad(delta, (0, 0, across.before, across.after, rows.before, rows.after))
        return patches(padded, Kernel((rows.taps, across.taps), (1, 1), (0, 0)))

    def matrix(self, weight: Tensor) -> Tensor:
        """Return a kernel's weights (..., O, C, k, k') as a matrix (..., Q', S)."""
        rows, across = self._sides
        leave, enter = weight.shape[-4:-2]
        order = _order(leave, enter, self.kernel, rows.taps, across.taps).to(weight.device)
        flat = pad(weight.flatten(-4), (0, 1))  # The last number is the zero of taps beyond the kernel.
        return flat.index_select(-1, order).reshape(*weight.shape[:-4], rows.taps * across.taps * leave, -1)

    def entered(self, product: Tensor) -> Tensor:
        """Return the derivative (n, H, W, C) by the input, from columns times matrix (n, R, R', S)."""
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
    """Return the position of each number of (Q', S) in a flat weight (O, C, k, k'); past its end for taps beyond the kernel."""
    (high, wide), (down, right) = kernel.size, kernel.stride
    numbers = torch.arange(leave * enter * high * wide).reshape(leave, enter, high, wide)
    whole = pad(numbers, (0, across * right - wide, 0, rows * down - high), value=numbers.numel())
    split = whole.reshape(leave, enter, rows, down, across, right).flip(2, 4)
    return split.permute(2, 4, 0, 3, 5, 1).flatten()
