"""The gradients of an imprint's bins in an observed update, and their contents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.servers.imprint import Bins
from leakbench.federated.view import View

__all__ = ["DIFFERENCE", "EMPTY", "SURE", "BinsRead", "filled", "gradients_of", "possible_in", "read_bins"]

SURE = 5.0
"""Number of standard deviations beyond which a value is not noise."""

EMPTY = 1e-5
"""A row whose gradient is below this share of the largest one contains only rounding errors of other rows."""

DIFFERENCE = 2**0.5
"""Standard deviation of the noise on the difference of two rows, as a multiple of that on one row."""


def gradients_of(view: View, bins: Bins) -> tuple[Tensor, Tensor | None]:
    """Return the contribution of each bin to the gradient of the weights (V, k, d), and to that of the biases (V, k).

    If several clients share the biases, the second is omitted (None).
    """
    # Each client has its own columns of every row.
    weight = view.update[f"{bins.layer}.weight"]
    columns = weight.reshape(*weight.shape[:2], bins.clients, -1).transpose(1, 2)
    weight = columns.flatten(1, 2) * bins.signs[:, None]
    bias = view.update[f"{bins.layer}.bias"] * bins.signs if bins.clients == 1 else None
    if bins.cumulative:
        weight = torch.cat([weight[:, :-1] - weight[:, 1:], weight[:, -1:]], 1)
        bias = None if bias is None else torch.cat([bias[:, :-1] - bias[:, 1:], bias[:, -1:]], 1)
    return weight, bias


@dataclass(frozen=True)
class BinsRead:
    """The contents of k bins, or of k rows, of V victims.

    Args:
        contents: (V, k, d).
        noise: Standard deviation (V, k) of the noise on them.
        certainty: (V, k).
    """

    contents: Tensor
    noise: Tensor
    certainty: Tensor

    def best(self, most: int) -> BinsRead:
        """Return up to `most` of the bins, the most certain ones first."""
        certainty, places = self.certainty.topk(min(most, self.certainty.shape[1]), dim=1)
        contents = self.contents.gather(1, places[..., None].expand(-1, -1, self.contents.shape[2]))
        return BinsRead(contents, self.noise.gather(1, places), certainty)


def read_bins(view: View, bins: Bins, scale: str, tolerance: float, limits: tuple[float, float]) -> BinsRead:
    """Return the contents of the bins; the certainty is the logarithm of the length of a bin's gradient.

    Args:
        view: The view of V victims.
        bins: The bins.
        scale: `bias`, `bin` or `told`, see the field of `leakbench.attack.methods.rows.Rows`.
        tolerance: How far values may exceed `limits`, and w . x the edges of its bin (in widths of the bin), in addition to the
            noise.
        limits: Least and largest value of what the bins contain.
    """
    weight, bias = gradients_of(view, bins)
    spoilt = view.knowledge.reads == "weights" or bool(view.stations.before(view.tap).transforms)
    by_bin = bias is None or scale == "bin" or (scale == "told" and spoilt)
    factor = (bins.upper + bins.lower) / 2 / (weight @ bins.functional) if by_bin or bias is None else 1 / bias
    contents, size = weight * factor[..., None], weight.norm(dim=2)
    deviation = _deviation(view, size / contents.shape[2] ** 0.5, DIFFERENCE if bins.cumulative else 1.0)
    noise = deviation * factor.abs()
    h = contents @ bins.functional
    # Noise on a bias scales the whole reconstruction, and with it h.
    moved = noise * (bins.functional.norm() + (0.0 if by_bin else h.abs()))
    slack = tolerance * (bins.upper - bins.lower) + SURE * moved
    inside = (h >= bins.lower - slack) & (h <= bins.upper + slack)
    holds = inside & possible_in(contents, noise, limits, tolerance) & filled(size, deviation, contents.shape[2])
    return BinsRead(contents, noise, size.log().masked_fill(~holds, -torch.inf))


def possible_in(contents: Tensor, noise: Tensor, limits: tuple[float, float], tolerance: float) -> Tensor:
    """Return (V, k) bool, whether all values of the contents (V, k, d) are finite and within the limits, up to the noise (V, k)."""
    low, high = limits
    slack = tolerance + SURE * noise
    return contents.isfinite().all(2) & (contents.amin(2) >= low - slack) & (contents.amax(2) <= high + slack)


def filled(size: Tensor, deviation: Tensor, values: int) -> Tensor:
    """Return (V, k) bool, whether a row of `values` numbers contains more than noise and the rounding errors of other rows."""
    alone = deviation * (values + SURE * (2 * values) ** 0.5) ** 0.5
    more: Tensor = (size > EMPTY * size.amax(1, keepdim=True)) & (size > alone)
    return more


def _deviation(view: View, sizes: Tensor, times: float) -> Tensor:
    """Return the noise on a bin's gradient (V, 1): the known one, or that of empty bins (sizes (V, k)), if most are empty."""
    if view.noise is not None:
        return torch.full_like(sizes[:, :1], view.noise * times)
    empty = sizes.shape[1] > 2 * view.examples
    return sizes.quantile(0.25, dim=1, keepdim=True) if empty else torch.zeros_like(sizes[:, :1])
