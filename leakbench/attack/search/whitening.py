"""Linear Gaussian priors of inputs: x = mean + W z with z ~ N(0, I)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from scipy.fft import dct
from torch import Tensor

from leakbench.engine.rows import gram_of

__all__ = [
    "LUMA_CHROMA",
    "PIXEL_VARIANCE",
    "Whitening",
    "class_means",
    "fitting_floor",
    "of_examples",
    "one_over_f",
    "spread_of",
]

PIXEL_VARIANCE = 0.06
"""Variance of the pixels of natural images in [0, 1]."""

FLOORS = tuple(10 ** (-n / 4) for n in range(17))
"""Candidates for the variance in directions that the examples leave open, as a share of a 1 / f spectrum: from 1 to 1e-4."""

WIDE, STRIPES = 1024, 4
"""A triangular root with at least so many rows is applied in so many stripes, which leave out three eighths of it, its zeros."""

ROUNDING = 1e-12
"""A variance below this share of the largest one is a rounding error."""

LUMA_CHROMA = (2.6, 0.3, 0.1)
"""Variances along r + g + b, r - b and r - 2 g + b (each of length 1) of a colour image, relative to their mean."""


@dataclass(frozen=True)
class Whitening:
    """The map x = mean + W z of a Gaussian prior.

    Args:
        mean: (*s).
        apply: z (n, *s) -> W z (n, *s).
        invert: The inverse of `apply`.
    """

    mean: Tensor
    apply: Callable[[Tensor], Tensor]
    invert: Callable[[Tensor], Tensor]

    def decode(self, z: Tensor) -> Tensor:
        """Return the inputs (V, M, *s) of coordinates z (V, M, ...)."""
        inputs = self.mean + self.apply(z.reshape(-1, *self.mean.shape))
        return inputs.reshape(*z.shape[:2], *self.mean.shape)

    def encode(self, x: Tensor) -> Tensor:
        """Return the coordinates (V, M, d) of inputs x (V, M, *s)."""
        return self.invert(x.flatten(0, 1) - self.mean).reshape(*x.shape[:2], -1)


def one_over_f(shape: tuple[int, ...], like: Tensor) -> Whitening:
    """Return the whitening of images (C, H, W) with the spectrum of natural images; it needs no data.

    The coefficient (i, j) of the orthonormal 2-D cosine transform has a variance proportional to 1 / (1 + i^2 + j^2). Pixels have
    the variance `PIXEL_VARIANCE` on average, and the mean 0.5. Three channels share the variance by `LUMA_CHROMA`.
    """
    channels, *sides = shape
    down, across = (_cosines(n).to(like) for n in sides)
    i, j = (torch.arange(n, dtype=torch.float64) for n in sides)
    variance = 1 / (1 + i[:, None].square() + j.square())
    deviation = (PIXEL_VARIANCE * variance / variance.mean()).sqrt()
    colours = _colours().to(like) if channels == 3 else torch.eye(channels).to(like)
    shares = torch.tensor(LUMA_CHROMA if channels == 3 else (1.0,) * channels, dtype=torch.float64)
    scale = (shares.sqrt()[:, None, None] * deviation).to(like)

    # One axis at a time, since one `einsum` over all four would first multiply the transforms into a dense matrix of all pixels.
    def apply(z: Tensor) -> Tensor:
        pictures = down.mT @ (scale * z) @ across
        return (colours.mT @ pictures.flatten(2)).reshape(z.shape)

    def invert(x: Tensor) -> Tensor:
        waves = down @ x @ across.mT
        return (colours @ waves.flatten(2)).reshape(x.shape) / scale

    return Whitening(torch.full(shape, 0.5).to(like), apply, invert)


def _cosines(size: int) -> Tensor:
    """Return the orthonormal cosine transform (frequency, place)."""
    waves: Tensor = torch.from_numpy(dct(torch.eye(size, dtype=torch.float64).numpy(), axis=0, norm="ortho"))
    return waves


def _colours() -> Tensor:
    rows = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]], dtype=torch.float64)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths


def of_examples(inputs: Tensor, floor: float, base: Whitening | None = None) -> Whitening:
    """Return the whitening of examples: their mean, and W such that W W^T = their covariance + floor * B B^T.

    For more examples than half of the numbers of one, W = B L with the triangular root L of Cholesky, which takes a sixth of the
    time of the symmetric one. Only the tolerances of L-BFGS and the length of its first step depend on the root, but a different
    first step changes the points that follow.

    Args:
        inputs: Examples (n, *s).
        floor: Variance, > 0, of directions in which the examples do not differ, in units of `base`.
        base: The prior B of a wider set of inputs, such as images in general. None: B = I.
    """
    mean = inputs.mean(0)
    rows = (inputs - mean if base is None else base.invert(inputs - mean)).flatten(1)
    few = 2 * len(rows) <= rows.shape[1]
    apply, invert = _by_directions(rows, floor) if few else _by_triangle(rows, floor)

    def applied(z: Tensor) -> Tensor:
        moved = apply(z.flatten(1)).reshape(z.shape)
        return moved if base is None else base.apply(moved)

    def inverted(x: Tensor) -> Tensor:
        own = x if base is None else base.invert(x)
        return invert(own.flatten(1)).reshape(x.shape)

    return Whitening(mean, applied, inverted)


Map: TypeAlias = Callable[[Tensor], Tensor]
"""Rows (m, d) -> rows (m, d)."""


def _by_directions(rows: Tensor, floor: float) -> tuple[Map, Map]:
    """Return the symmetric root of (covariance of rows (n, d) about zero + floor * I) and its inverse, by n directions."""
    least = floor**0.5
    spread, directions = spread_of(rows)
    more = ((spread + floor).sqrt() - least).to(rows)
    less = (1 / (spread + floor).sqrt() - 1 / least).to(rows)
    directions = directions.to(rows)
    return (
        lambda z: least * z + (z @ directions.T * more) @ directions,
        lambda x: x / least + (x @ directions.T * less) @ directions,
    )


def _by_triangle(rows: Tensor, floor: float) -> tuple[Map, Map]:
    """Return the triangular root of (covariance of rows (n, d) about zero + floor * I) and its inverse."""
    covariance = gram_of(rows.T.contiguous(), exact=True).div_(len(rows))
    covariance.diagonal().add_(floor)
    # No triangular solver exists for half precision.
    root = torch.linalg.cholesky(covariance).to(torch.promote_types(rows.dtype, torch.float32))
    size = len(root)
    ends = [size * n // STRIPES for n in range(STRIPES + 1)] if size >= WIDE else [0, size]
    # Each stripe of rows without the zeros behind the diagonal.
    stripes = [root[first:end, :end] for first, end in pairwise(ends)]
    return (
        lambda z: torch.cat([z.to(root)[:, : stripe.shape[1]] @ stripe.T for stripe in stripes], 1).to(z),
        lambda x: torch.linalg.solve_triangular(root, x.to(root).T, upper=False).T.to(x),
    )


def fitting_floor(inputs: Tensor, base: Whitening) -> float:
    """Return the floor with which `of_examples` of each half of (n, *s) explains the other half best (see `unexplained`).

    It is one of `FLOORS`, the largest one if n < 2.
    """
    if len(inputs) < 2:
        return FLOORS[0]
    lost = unexplained(inputs, base, FLOORS)
    return FLOORS[lost.index(min(lost))]


def unexplained(inputs: Tensor, base: Whitening, floors: tuple[float, ...]) -> list[float]:
    """Return minus twice the mean log-likelihood of each half of (n, *s) under the Gaussian of the other half, up to a constant.

    Args:
        inputs: Examples (n, *s).
        base: The prior in whose units the floors are.
        floors: Variances that the Gaussian has in all directions.

    Returns:
        The sum over both halves for each floor.
    """
    halves = (inputs[::2], inputs[1::2])
    lost = [0.0] * len(floors)
    for known, new in (halves, halves[::-1]):
        spread, directions = spread_of(base.invert(known - known.mean(0)))
        apart = base.invert(new - known.mean(0)).flatten(1).double()
        along = (apart @ directions.T).square().mean(0)
        outside = apart.square().sum(1).mean() - along.sum()
        for place, floor in enumerate(floors):
            width = (spread + floor).log().sum() + (apart.shape[1] - len(spread)) * math.log(floor)
            lost[place] += float((along / (spread + floor)).sum() + outside / floor + width)
    return lost


def spread_of(apart: Tensor) -> tuple[Tensor, Tensor]:
    """Return (variances (r,), directions (r, d)) of deviations (n, *s) from a mean, r <= min(n, d), in float64, ascending.

    They come from the products of rows, or of columns if these are fewer. A decomposition of the deviations themselves takes
    several times as long. It is more exact only for variances that are negligible compared with the floors.
    """
    rows = apart.flatten(1).double()
    if len(rows) > rows.shape[1]:
        spread, columns = torch.linalg.eigh(gram_of(rows.T.contiguous(), exact=True) / len(rows))
        return spread.clamp_min(0), columns.T
    spread, columns = torch.linalg.eigh(gram_of(rows, exact=True) / len(rows))
    real = spread > ROUNDING * spread[-1]
    spread, columns = spread[real], columns[:, real]
    return spread, (columns / (spread * len(rows)).sqrt()).T @ rows


def class_means(inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the means (classes, *s) of examples (n, *s) by label; the mean of all for a class without an example."""

    sums = inputs.new_zeros(classes, *inputs.shape[1:]).index_add_(0, labels, inputs)
    counts = torch.bincount(labels, minlength=classes).to(inputs).reshape(-1, *[1] * (inputs.dim() - 1))
    return torch.where(counts > 0, sums / counts.clamp_min(1), inputs.mean(0))
