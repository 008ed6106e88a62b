"""Reads one latent from the secret projection of a first linear layer's gradient, and decodes it into an input."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.methods.bins import BinsRead, possible_in
from leakbench.attack.methods.latent_rows import decoded
from leakbench.attack.needs import IMAGE, Needs
from leakbench.attack.one_step import likeliest
from leakbench.attack.servers.seer import Projection
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["Projected"]


@part("method.projection")
class Projected:
    """Compute the latent u^T dW / u . db with a secret projection u, and decode it (Garov et al., ICLR 2024, section 4).

    An update gives at most one example, so that the share of reconstructed examples is at most one over their number. An attacker
    that knows the standard deviation of the noise decodes the posterior mean under the Gaussian of public latents.
    """

    needs: ClassVar[Needs] = Needs(kinds=(IMAGE,))

    scale: Annotated[
        Literal["told", "bias", "property"],
        Field(
            description=(
                "`bias`: the quotient above. `property`: u^T dW with the usual mean of a latent above the threshold, for updates "
                "in which a clip or noise spoils the quotient. `told`: `property` if the attacker knows that a defense acts on "
                "the update, or reads it from weights; otherwise `bias`."
            )
        ),
    ] = "told"
    tolerance: Annotated[
        NonNegative,
        Field(
            description=(
                "How far a latent may exceed the range of public latents, and its mean the range above the threshold, as a share "
                "of the range, in addition to five standard deviations of the noise."
            )
        ),
    ] = 1.0

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct one of the M examples of each of V victims.

        Args:
            views: Views of V victims.
            rngs: Not used.

        Returns:
            NaN for the other examples, and for all if the projection cannot be a latent with the property.

        Raises:
            InputError: If the server has no secret projection.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        secret = view.secret
        if not isinstance(secret, Projection):
            raise InputError("projection: it reads with a server's secret projection; give the attack a server: seer")
        latent, noise, size = self._read(view, secret)
        known, h = secret.latents.known, latent.mean(1)
        low, high = float(known.min()), float(known.max())
        limit = float(known.mean(1).max())
        slack = self.tolerance * (limit - secret.above) + 5 * noise / latent.shape[1] ** 0.5
        possible = possible_in(latent[:, None], noise[:, None], (low, high), self.tolerance * (high - low))[:, 0]
        possible = possible & (h >= secret.above - slack) & (h <= limit + slack)
        sure = size.log().masked_fill(~possible, -torch.inf)
        return decoded(view, secret.latents, BinsRead(latent[:, None], noise[:, None], sure[:, None]), rngs)

    def _read(self, view: View, secret: Projection) -> tuple[Tensor, Tensor, Tensor]:
        """Return the latents (V, d), the standard deviation (V,) of the noise on them, and the size (V,) of the projection."""
        weight = torch.einsum("k,vkd->vd", secret.weights, view.update[f"{secret.layer}.weight"])
        bias = view.update[f"{secret.layer}.bias"] @ secret.weights
        spoilt = view.knowledge.reads == "weights" or bool(view.stations.before(view.tap).transforms)
        by_property = self.scale == "property" or (self.scale == "told" and spoilt)
        factor = secret.middle / weight.mean(1) if by_property else 1 / bias
        noise = (view.noise or 0.0) * secret.weights.norm() * factor.abs()
        return weight * factor[:, None], noise, weight.norm(dim=1)
