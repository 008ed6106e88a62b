"""Slot `space`: whitened coordinates whose prior is a mixture with a component at every public example."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from leakbench.attack.learn.mixture import Mixture, fitted, whitening_of
from leakbench.attack.learn.origin import learned, origin_of
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.public import public_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.core.part import Count, NonNegative, part
from leakbench.federated.view import View

__all__ = ["MixtureSpace", "coordinates_of", "prior_of"]


@part("space.mixture")
class MixtureSpace:
    """Search z of x = mean + W z, with the energy weight * -log p(z) of a mixture of Gaussians.

    W comes from the covariance of the public examples and, for images, of their mirror images. The mixture is fitted once for all
    networks and defenses. It has the mean and the covariance of a whitened prior, so that it is N(0, I) if the examples look
    Gaussian.
    """

    weight: Annotated[NonNegative, Field(description="Factor of the energy.")] = 1.0
    public: Annotated[Count, Field(description="Largest number of public examples.")] = 3000

    @property
    def needs(self) -> Needs:
        """Public examples."""
        return Needs(public=self.public, kinds=PLAIN)

    def __call__(self, view: View) -> Coordinates:
        """Return the map and its energy; raises InputError if the view has no public examples."""
        return coordinates_of(view, self.public, prior_of(view, self.public), self.weight)


def prior_of(view: View, public: int) -> Mixture:
    """Return the mixture of the view's first `public` public examples, from the view's fits."""
    examples = public_of(view, "mixture", public)
    origin = origin_of("mixture", __name__, {}, examples)
    tensors, _ = learned(view, origin, examples, lambda: fitted(examples.inputs.float()).tensors())
    return Mixture(**{name: tensor.to(view.like) for name, tensor in tensors.items()})


def coordinates_of(view: View, public: int, mixture: Mixture, weight: float) -> Coordinates:
    """Return the coordinates in which the mixture of the first `public` examples is fitted, with its energy times `weight`."""
    like = view.like
    white = public_of(view, "mixture", public).once(
        ("whitening with mirror images", like.dtype, like.device),
        lambda examples: whitening_of(examples.inputs.to(like)),
    )

    def energy(z: Tensor, _: Tensor) -> Tensor:
        return weight * mixture.energy(z).sum(1)

    return Coordinates(white.decode, white.encode, energy)
