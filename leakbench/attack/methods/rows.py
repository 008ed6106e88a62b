"""The readout of single rows: what each bin of an imprint holds, or each row of a fully connected first layer."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.attack.looks import averaged
from leakbench.attack.methods.analytic import first_layer
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.attack.servers.imprint import Bins
from leakbench.errors import InputError
from leakbench.federated.leakage import View
from leakbench.part import NonNegative, part
from leakbench.types import Generators

__all__ = ["Rows"]

EMPTY = 1e-5
"""A row whose gradient is smaller than this share of the largest one's holds the rounding of others."""

AGREE = 1e-3
"""The root mean square by which two rows that hold the same example differ at most."""


@part
class Rows:
    """x = dW_j / db_j of a bin j that holds one example (Fowl et al., ICLR 2022); differences of neighbours where
    rows add up.

    scale: `bias`, that quotient; `bin`: dW_j times the middle of bin j over w . dW_j, for where a clip by layers or the rounding of
    small bias steps spoils the quotient; the answer's h is then the bin's middle, and not exact.
    tolerance: how far beyond [0, 1] values may lie, and beyond its bin's edges h may, in widths of the bin.
    """

    scale: Literal["bias", "bin"] = "bias"
    tolerance: NonNegative = 0.01

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Answer for V victims with at most M of the rows, clamped to [0, 1]; rngs are not drawn from.

        NaN where no more row holds anything that can be an input. The certainty of a bin is the logarithm of the size of its
        gradient; of other rows first how many agree. Of several releases each gives an answer, and the likeliest is given. Raises
        InputError where the server built no imprint and the network does not begin with a biased linear layer.
        """
        return likeliest([self._read(view, rngs) for view, _ in averaged(views)])

    def _read(self, view: View, rngs: Generators) -> Reconstruction:
        found, certainty, same = self._bins(view, view.secret) if isinstance(view.secret, Bins) else self._first(view)
        inputs = found.new_full((view.victims, view.examples, found.shape[2]), torch.nan)
        sure = inputs.new_full(inputs.shape[:2], -torch.inf)
        lanes = torch.arange(view.victims, device=found.device)
        for answer in range(min(view.examples, found.shape[1])):
            best, row = certainty.max(1)
            sure[:, answer] = best
            inputs[:, answer] = found[lanes, row].clamp(0, 1).where(best.isfinite()[:, None], torch.nan)
            certainty = certainty.masked_fill(same[lanes, row], -torch.inf)
        answer_ = answered_at_once((view,), inputs.reshape(*sure.shape, *view.shape), rngs)
        return dataclasses.replace(answer_, certainty=sure)

    def _bins(self, view: View, bins: Bins) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each bin holds (V, k, d), the certainty (V, k), and which are the same answer (V, k, k): itself alone."""
        weight, bias = (view.update[f"{bins.layer}.{name}"] for name in ("weight", "bias"))
        weight, bias = weight * bins.signs[:, None], bias * bins.signs
        if bins.cumulative:
            weight, bias = (torch.cat([g[:, :-1] - g[:, 1:], g[:, -1:]], 1) for g in (weight, bias))
        middle = (bins.edges[1:] + bins.edges[:-1]) / 2
        scale = 1 / bias if self.scale == "bias" else middle / (weight @ bins.functional)
        found, size = weight * scale[..., None], weight.norm(dim=2)
        h, slack = found @ bins.functional, self.tolerance * (bins.edges[1:] - bins.edges[:-1])
        inside = (h >= bins.edges[:-1] - slack) & (h <= bins.edges[1:] + slack)
        itself = torch.eye(found.shape[1], dtype=torch.bool, device=found.device).expand(len(found), -1, -1)
        return found, size.log().masked_fill(~(inside & self._possible(found, size)), -torch.inf), itself

    def _first(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each row of the first layer holds (V, k, d), the certainty (V, k), and which agree (V, k, k).

        Rows that one example alone lights agree to the last digits; mixtures of the same examples do not, since each row
        mixes them anew.
        """
        name = first_layer(view.network.model)
        if name is None:
            raise InputError(
                "rows: it reads what a server imprinted, or a biased linear first layer; this network has neither: give the attack"
                " a server: imprint, or choose a network that begins so (mlp_1000)"
            )
        weight, bias = (view.update[f"{name}{kind}"] for kind in ("weight", "bias"))
        found, size = weight / bias[..., None], weight.norm(dim=2)
        possible = self._possible(found, size)
        known = found.masked_fill(~possible[..., None], 0).double()
        squares = known.square().sum(2)
        apart = (squares[:, :, None] + squares[:, None] - 2 * known @ known.mT) / found.shape[2]
        same = (apart < AGREE**2) & possible[:, :, None] & possible[:, None]
        share = size / size.amax(1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
        return found, (same.sum(2) + share / 2).masked_fill(~possible, -torch.inf), same

    def _possible(self, found: Tensor, size: Tensor) -> Tensor:
        """Return (V, k): whether a row holds what can be an input, and more than the rounding of others."""
        inside = (found.amin(2) >= -self.tolerance) & (found.amax(2) <= 1 + self.tolerance)
        return found.isfinite().all(2) & inside & (size > EMPTY * size.amax(1, keepdim=True))
