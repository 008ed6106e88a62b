"""The readout of an imprint: what each of its bins holds."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.attack.looks import averaged
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.attack.servers.imprint import Bins
from leakbench.errors import InputError
from leakbench.federated.leakage import View
from leakbench.part import NonNegative, part
from leakbench.types import Generators

__all__ = ["Rows"]

EMPTY = 1e-5
"""A bin whose gradient is smaller than this share of the largest bin's holds the rounding of others."""


@part
class Rows:
    """x = dW_j / db_j of a bin j that holds one example (Fowl et al., ICLR 2022, eq. 4); differences of neighbours where
    rows add up.

    scale: `bias`, that quotient; `bin`: dW_j times the middle of bin j over w . dW_j, for where a clip by layers or the rounding of
    small bias steps spoils the quotient; the answer's h is then the bin's middle, and not exact.
    tolerance: how far beyond [0, 1] values may lie, and beyond its bin's edges h may, in widths of the bin.
    """

    scale: Literal["bias", "bin"] = "bias"
    tolerance: NonNegative = 0.01

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Answer for V victims with at most M of the bins, clamped to [0, 1]; rngs are not drawn from.

        Those of the largest gradient come first, NaN where no more bin holds anything that can be an input. The certainty is the
        logarithm of the size of a bin's gradient. Of several releases each gives an answer, and the likeliest is given. Raises
        InputError where the server built no imprint.
        """
        if not isinstance(views[0].secret, Bins):
            raise InputError(
                "rows: it reads what a server imprinted, and this one is honest; give the attack a server: imprint"
            )
        shown = tuple(view for view, _ in averaged(views))
        return likeliest([self._read(view, rngs) for view in shown])

    def _read(self, view: View, rngs: Generators) -> Reconstruction:
        bins: Bins = view.secret
        weight, bias = (view.update[f"{bins.layer}.{name}"] for name in ("weight", "bias"))
        weight, bias = weight * bins.signs[:, None], bias * bins.signs
        if bins.cumulative:
            weight, bias = (torch.cat([g[:, :-1] - g[:, 1:], g[:, -1:]], 1) for g in (weight, bias))
        along = weight @ bins.functional
        middle = (bins.edges[1:] + bins.edges[:-1]) / 2
        found = weight / bias[..., None] if self.scale == "bias" else weight * (middle / along)[..., None]
        size = weight.norm(dim=2)
        certainty = size.log().masked_fill(~self._held(found, size, bins), -torch.inf)
        best, chosen = certainty.topk(min(view.examples, certainty.shape[1]), dim=1)
        inputs = found.new_full((view.victims, view.examples, found.shape[2]), torch.nan)
        taken = found.gather(1, chosen[..., None].expand(-1, -1, found.shape[2])).clamp(0, 1)
        inputs[:, : chosen.shape[1]] = taken.where(best.isfinite()[..., None], torch.nan)
        answer = answered_at_once((view,), inputs.reshape(view.victims, view.examples, *view.shape), rngs)
        sure = torch.full_like(answer.certainty, -torch.inf)
        sure[:, : best.shape[1]] = best
        return dataclasses.replace(answer, certainty=sure)

    def _held(self, found: Tensor, size: Tensor, bins: Bins) -> Tensor:
        """Return (V, k): whether a bin holds what can be an input of that bin."""
        h, width = found @ bins.functional, bins.edges[1:] - bins.edges[:-1]
        slack = self.tolerance
        inside = (h >= bins.edges[:-1] - slack * width) & (h <= bins.edges[1:] + slack * width)
        possible = (found.amin(2) >= -slack) & (found.amax(2) <= 1 + slack)
        return found.isfinite().all(2) & inside & possible & (size > EMPTY * size.amax(1, keepdim=True))
