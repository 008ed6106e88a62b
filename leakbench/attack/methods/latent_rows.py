"""Reads the latents in the bins of a first linear layer, and decodes them into inputs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from leakbench.attack.looks import averaged
from leakbench.attack.methods.bins import BinsRead, read_bins
from leakbench.attack.needs import IMAGE, Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.attack.search.shrinkage import shrinkage_of
from leakbench.attack.servers.head import Latents
from leakbench.attack.servers.scale_mia import LatentBins
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["LatentRows", "decoded"]


@part("method.latent_rows")
class LatentRows:
    """Compute the latent dW_j / db_j of each bin and decode it (Shi et al., NDSS 2025, eq. 6 and section IV).

    No step searches: one linear read and one pass of the decoder. An attacker that knows the standard deviation of the noise
    decodes the posterior mean of the latent under the Gaussian of public latents. A defense that changes the inputs is not
    undone.
    """

    needs: ClassVar[Needs] = Needs(kinds=(IMAGE,))

    scale: Annotated[
        Literal["told", "bias", "bin"],
        Field(
            description="As in `rows`: the quotient, the middle of the bin, or the one that the attacker's knowledge suggests."
        ),
    ] = "told"
    tolerance: Annotated[
        NonNegative,
        Field(
            description=(
                "How far latents may be below the least public one, and their mean outside its bin (in widths of the bin), in "
                "addition to five standard deviations of the noise."
            )
        ),
    ] = 0.01

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims from up to M of the bins, the largest gradients first.

        Args:
            views: Views of V victims.
            rngs: Not used.

        Returns:
            NaN if there are not enough bins that can contain a latent.

        Raises:
            InputError: If the server left no bins of latents.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        secret = view.secret
        if not isinstance(secret, LatentBins):
            raise InputError(
                "latent_rows: it reads the bins that a server left in the latents; give the attack a server: scale_mia"
            )
        known = secret.latents.known
        low, high = float(known.min()), float(known.max())
        limits = (low - self.tolerance * (high - low), high + (high - low))
        read = read_bins(view, secret.bins, self.scale, self.tolerance, limits)
        return decoded(view, secret.latents, read.best(view.examples), rngs)


def decoded(view: View, latents: Latents, read: BinsRead, rngs: Generators) -> Reconstruction:
    """Decode up to M latents of each victim, under known noise their posterior means.

    Args:
        view: The view of V victims.
        latents: The decoder and the public latents.
        read: Contents (V, k, d) that are latents, k <= M.
        rngs: One generator for each victim.

    Returns:
        NaN for a latent whose certainty is minus infinity, and behind the k latents.
    """
    each, many = read.contents, read.contents.shape[1]
    whole = each.new_full((view.victims, view.examples, each.shape[2]), torch.nan)
    whole[:, :many] = each if view.noise is None else shrinkage_of(latents.known)(each, read.noise.square())
    sure = whole.new_full(whole.shape[:2], -torch.inf)
    sure[:, :many] = read.certainty
    inputs = latents.decode(whole, view.shape)
    inputs = inputs.where(sure.isfinite().reshape(*sure.shape, *[1] * len(view.shape)), torch.nan)
    return answered_at_once((view,), inputs, rngs, latents.fit, certainty=sure)
