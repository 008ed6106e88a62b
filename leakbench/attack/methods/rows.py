"""The readout of single rows: what each bin of an imprint holds, or each row of a fully connected first layer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.attack.looks import averaged
from leakbench.attack.methods.bins import DIFFERENCE, gradients_of
from leakbench.attack.methods.explained import unexplained
from leakbench.attack.needs import Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.attack.public import public_of
from leakbench.attack.search.independent import independent
from leakbench.attack.search.shrinkage import shrinkage_of
from leakbench.attack.servers.imprint import Bins
from leakbench.defense.transform import Stations
from leakbench.errors import InputError
from leakbench.federated.view import View
from leakbench.models.layers import first_layer
from leakbench.part import Count, NonNegative, part
from leakbench.types import Generators

__all__ = ["Rows"]

SURE = 5.0
"""How many deviations of a noise are taken for too many to be noise."""

EMPTY = 1e-5
"""A row whose gradient is smaller than this share of the largest one's holds the rounding of others."""

AGREE = 1e-3
"""The root mean square by which two rows that hold the same example differ at most."""

EXPLAINED = 1e-3
"""By which share of it a row's bias gradient is missed at most by the one example that the row holds."""

APART = 0.1
"""Of its length, how much of a row that nothing speaks for has to lie outside the span of the rows that are answered before it."""


@part("method.rows")
class Rows:
    """Compute x = dW_j / db_j of a bin j that contains one example (Fowl et al., ICLR 2022).

    Where rows add up, differences of neighbours are used. An attacker that knows the standard deviation of the noise reconstructs
    the posterior mean under the Gaussian of public examples.
    """

    scale: Annotated[
        Literal["told", "bias", "bin"],
        Field(
            description=(
                "`bias` is the quotient above. `bin` is dW_j times the middle of bin j over w . dW_j, where a layer-wise clip, "
                "noise or the rounding of small bias steps spoils the quotient; the h of the reconstruction is then the bin's "
                "middle, and not exact. `told` is `bin` if the attacker knows that a defense acts on the update, or reads it from"
                " weights, else `bias`."
            )
        ),
    ] = "told"
    public: Annotated[Count, Field(description="Largest number of public examples.")] = 2000
    tolerance: Annotated[
        NonNegative,
        Field(
            description=(
                "How far values may be beyond [0, 1], and h beyond the edges of its bin (in widths of the bin), in addition to "
                "five standard deviations of the noise."
            )
        ),
    ] = 0.01

    @property
    def needs_told(self) -> Needs:
        """Public examples for the posterior mean, of who is told the defense."""
        return Needs(public=self.public)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Answer for V victims with at most M of the rows, clamped to [0, 1]; rngs are not drawn from.

        NaN where no more row holds anything that can be an input. The certainty of a bin is the logarithm of the size of its
        gradient; of other rows see `_first`. Of several releases each gives an answer, and the likeliest is given. Raises
        InputError where the server built no imprint and the network does not begin with a biased linear layer.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        read = self._bins(view, view.secret) if isinstance(view.secret, Bins) else self._first(view)
        given = min(view.examples, read.certainty.shape[1])
        best, row = read.certainty.topk(given, dim=1)
        chosen = read.found.gather(1, row[..., None].expand(-1, -1, read.found.shape[2]))
        inputs = chosen.new_full((view.victims, view.examples, chosen.shape[2]), torch.nan)
        inputs[:, :given] = self._denoised(view, chosen, read.noise.gather(1, row)).clamp(0, 1)
        sure = inputs.new_full(inputs.shape[:2], -torch.inf)
        sure[:, :given] = best
        inputs = inputs.where(sure.isfinite()[..., None], torch.nan)
        answer = answered_at_once((view,), inputs.reshape(*sure.shape, *view.shape), rngs)
        return dataclasses.replace(answer, certainty=sure)

    def _denoised(self, view: View, chosen: Tensor, noise: Tensor) -> Tensor:
        """Return the posterior means (V, M, d) of what was read in noise of a deviation (V, M); as it is where none is told."""
        if view.noise is None:
            return chosen
        public = public_of(view, "rows", self.public).inputs.flatten(1).to(chosen)
        return shrinkage_of(public)(chosen, noise.square())

    def _bins(self, view: View, bins: Bins) -> _Read:
        """Return what each bin holds."""
        weight, bias = gradients_of(view, bins)
        spoilt = view.knowledge.reads == "weights" or view.stations.before(view.tap) != Stations()
        by_bin = bias is None or self.scale == "bin" or (self.scale == "told" and spoilt)
        scale = (bins.upper + bins.lower) / 2 / (weight @ bins.functional) if by_bin or bias is None else 1 / bias
        found, size = weight * scale[..., None], weight.norm(dim=2)
        deviation = self._deviation(view, size / found.shape[2] ** 0.5, DIFFERENCE if bins.cumulative else 1.0)
        noise = deviation * scale.abs()
        h = found @ bins.functional
        # The noise on a bias scales the whole answer, and with it h.
        moved = noise * (bins.functional.norm() + (0.0 if by_bin else h.abs()))
        slack = self.tolerance * (bins.upper - bins.lower) + SURE * moved
        inside = (h >= bins.lower - slack) & (h <= bins.upper + slack)
        holds = inside & self._possible(found, noise) & _filled(size, deviation, found.shape[2])
        return _Read(found, noise, size.log().masked_fill(~holds, -torch.inf))

    def _deviation(self, view: View, sizes: Tensor, times: float) -> Tensor:
        """Return the noise on a bin's gradient (V, 1): as told, or what empty bins of sizes (V, k) show, where most are empty."""
        if view.noise is not None:
            return torch.full_like(sizes[:, :1], view.noise * times)
        empty = sizes.shape[1] > 2 * view.examples
        return sizes.quantile(0.25, dim=1, keepdim=True) if empty else torch.zeros_like(sizes[:, :1])

    def _first(self, view: View) -> _Read:
        """Return what each row of the first layer holds, once where several agree.

        Surest is a row whose own answer explains the gradient of its bias (`unexplained`). Then come rows that agree: those that
        one example alone lights do to the last digits, mixtures of the same examples do not, since each row mixes them anew. Of
        the rest those come first that are explained best; they are no answer where they are combinations of rows taken before.
        Where a noise is told, neither is known of a row, and its size stands for it.
        """
        name = first_layer(view.network.model, view.shape)
        if name is None:
            raise InputError(
                "rows: it reads what a server imprinted, or a biased linear first layer; this network has neither: give the attack"
                " a server: imprint, or choose a network that begins so (mlp_1000)"
            )
        weight, bias = (view.update[f"{name}{kind}"] for kind in ("weight", "bias"))
        deviation = weight.new_tensor(view.noise or 0.0)
        found, size, noise = weight / bias[..., None], weight.norm(dim=2), deviation / bias.abs()
        possible = self._possible(found, noise) & _filled(size, deviation, found.shape[2])
        known = found.masked_fill(~possible[..., None], 0).double()
        products = known @ known.mT
        squares = products.diagonal(dim1=1, dim2=2)
        apart = (squares[:, :, None] + squares[:, None] - 2 * products) / found.shape[2]
        same = (apart < AGREE**2) & possible[:, :, None] & possible[:, None]
        share = (size / size.amax(1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)).double()
        if view.noise is None:
            missed = unexplained(view, name, found).double()
            share = 1 / (1 + missed) + 2 * size.shape[1] * (missed < EXPLAINED)
        certainty = (same.sum(2) + share / 2).masked_fill(~possible, -torch.inf)
        order = certainty.argsort(dim=1, descending=True, stable=True).argsort(1)
        certainty = certainty.masked_fill((same & (order[:, None] < order[:, :, None])).any(2), -torch.inf)
        # Of more examples than half the values each lies in the span of others.
        if view.noise is None and 2 * view.examples <= found.shape[2]:
            certainty = independent(products, certainty, view.examples, 2.0, APART)
        return _Read(found, noise, certainty.to(found))

    def _possible(self, found: Tensor, noise: Tensor) -> Tensor:
        """Return (V, k): whether a row holds what can be an input."""
        slack = self.tolerance + SURE * noise
        return found.isfinite().all(2) & (found.amin(2) >= -slack) & (found.amax(2) <= 1 + slack)


@dataclass(frozen=True)
class _Read:
    """What k rows of V victims hold: found (V, k, d), the deviation of the noise on it (V, k), and the certainty (V, k)."""

    found: Tensor
    noise: Tensor
    certainty: Tensor


def _filled(size: Tensor, deviation: Tensor, values: int) -> Tensor:
    """Return (V, k): whether a row of so many values, of this size, holds more than the rounding of others and noise."""
    alone = deviation * (values + SURE * (2 * values) ** 0.5) ** 0.5
    filled: Tensor = (size > EMPTY * size.amax(1, keepdim=True)) & (size > alone)
    return filled
