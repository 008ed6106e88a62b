"""Reads single rows: the bins of an imprint, or the rows of a fully connected first layer."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.methods.bins import BinsRead, filled, possible_in, read_bins
from leakbench.attack.methods.explained import unexplained
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.attack.public import public_of
from leakbench.attack.search.independent import independent
from leakbench.attack.search.shrinkage import shrinkage_of
from leakbench.attack.servers.imprint import Bins
from leakbench.attack.undo import one_of_each
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Count, NonNegative, part
from leakbench.core.types import Generators
from leakbench.defense.augmentation import copies_of
from leakbench.federated.view import View
from leakbench.models.layers import first_layer

__all__ = ["Rows"]

AGREE = 1e-3
"""Largest root mean square difference of two rows that contain the same example."""

EXPLAINED = 1e-3
"""Largest share of its bias gradient that a row may leave unexplained to contain a single example."""

APART = 0.1
"""Share of its length that a row without other evidence must have outside the span of the rows chosen before it."""


@part("method.rows")
class Rows:
    """Compute x = dW_j / db_j of a bin j that contains one example (Fowl et al., ICLR 2022).

    For cumulative rows, differences of neighbours are used. An attacker that knows the standard deviation of the noise
    reconstructs the posterior mean under the Gaussian of public examples. If it knows that the batch contains copies of each
    example, it reads the rows of all copies and returns one of each (`leakbench.attack.undo`).
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    scale: Annotated[
        Literal["told", "bias", "bin"],
        Field(
            description=(
                "`bias`: the quotient above. `bin`: dW_j times the middle of bin j over w . dW_j, for updates in which a "
                "layer-wise clip, noise or rounding spoils the quotient; w . x of the reconstruction is then the middle of the "
                "bin, which is not exact. `told`: `bin` if the attacker knows that a defense acts on the update, or reads it "
                "from weights; otherwise `bias`."
            )
        ),
    ] = "told"
    public: Annotated[Count, Field(description="Largest number of public examples for the posterior mean.")] = 2000
    tolerance: Annotated[
        NonNegative,
        Field(
            description=(
                "How far values may exceed [0, 1], and w . x the edges of its bin (in widths of the bin), in addition to five "
                "standard deviations of the noise."
            )
        ),
    ] = 0.01

    @property
    def needs_told(self) -> Needs:
        """Public examples for the posterior mean, if the attacker knows the defense."""
        return Needs(public=self.public)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims from up to M of the rows, clamped to [0, 1].

        The certainty of a bin is the logarithm of the length of its gradient; for other rows, see `_first`. Each release gives a
        reconstruction, and the most likely one is returned.

        Args:
            views: Views of V victims.
            rngs: Not used.

        Returns:
            NaN if there are not enough rows that can contain an input.

        Raises:
            InputError: If the server built no imprint and the network does not begin with a biased linear layer.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        read = self._bins(view, view.secret) if isinstance(view.secret, Bins) else self._first(view)
        # The one gradient at type-2 is that of an original; its copies are in the update of a batch.
        copies = 1 if view.tap == "type-2" else copies_of(view.stations.inputs)
        best = read.best(copies * view.examples)
        many = best.certainty.shape[1]
        inputs = best.contents.new_full((view.victims, copies * view.examples, best.contents.shape[2]), torch.nan)
        inputs[:, :many] = self._denoised(view, best).clamp(0, 1)
        sure = inputs.new_full(inputs.shape[:2], -torch.inf)
        sure[:, :many] = best.certainty
        inputs = inputs.where(sure.isfinite()[..., None], torch.nan)
        if copies > 1:
            public = public_of(view, "rows", self.public)
            inputs, sure = one_of_each(view.stations.inputs, inputs, sure, view.examples, public)
        return answered_at_once((view,), inputs.reshape(*sure.shape, *view.shape), rngs, certainty=sure)

    def _denoised(self, view: View, read: BinsRead) -> Tensor:
        """Return the posterior means (V, k, d) of the contents; unchanged if the noise is unknown."""
        if view.noise is None:
            return read.contents
        public = public_of(view, "rows", self.public).inputs.flatten(1).to(read.contents)
        return shrinkage_of(public)(read.contents, read.noise.square())

    def _bins(self, view: View, bins: Bins) -> BinsRead:
        """Return the contents of the bins."""
        return read_bins(view, bins, self.scale, self.tolerance, (0.0, 1.0))

    def _first(self, view: View) -> BinsRead:
        """Return the contents of the rows of the first layer, each example once.

        Rows are most certain if their content explains the gradient of their bias (`unexplained`). Next come rows that agree:
        rows that the same single example activates agree to the last digits, but mixtures of the same examples differ from row to
        row. The others follow in the order of their explained share, unless they are combinations of rows chosen before. Under
        known noise, the length of a row's gradient takes the place of its explained share.
        """
        name = first_layer(view.network.model, view.shape)
        if name is None:
            raise InputError(
                "rows: it reads what a server imprinted, or a biased linear first layer; this network has neither: give the attack"
                " a server: imprint, or choose a network that begins so (mlp_1000)"
            )
        weight, bias = (view.update[f"{name}{kind}"] for kind in ("weight", "bias"))
        deviation = weight.new_tensor(view.noise or 0.0)
        contents, size, noise = weight / bias[..., None], weight.norm(dim=2), deviation / bias.abs()
        possible = possible_in(contents, noise, (0.0, 1.0), self.tolerance) & filled(size, deviation, contents.shape[2])
        known = contents.masked_fill(~possible[..., None], 0).double()
        products = known @ known.mT
        squares = products.diagonal(dim1=1, dim2=2)
        apart = (squares[:, :, None] + squares[:, None] - 2 * products) / contents.shape[2]
        same = (apart < AGREE**2) & possible[:, :, None] & possible[:, None]
        share = (size / size.amax(1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)).double()
        if view.noise is None:
            missed = unexplained(view, name, contents).double()
            share = 1 / (1 + missed) + 2 * size.shape[1] * (missed < EXPLAINED)
        certainty = (same.sum(2) + share / 2).masked_fill(~possible, -torch.inf)
        order = certainty.argsort(dim=1, descending=True, stable=True).argsort(1)
        certainty = certainty.masked_fill((same & (order[:, None] < order[:, :, None])).any(2), -torch.inf)
        # If there are more examples than half the values, each example is in the span of the others.
        if view.noise is None and 2 * view.examples <= contents.shape[2]:
            certainty = independent(products, certainty, view.examples, 2.0, APART)
        return BinsRead(contents, noise, certainty.to(contents))
