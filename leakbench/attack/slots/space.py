"""Slot `space`: the coordinates z in which a search moves, x = decode(z), and the energy of a prior on z."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.public import channel_moments, public_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.core.part import part
from leakbench.core.recipe import Slot
from leakbench.federated.view import View

__all__ = ["SPACE", "Coordinates", "Pixels", "Space", "Standardised"]


@runtime_checkable
class Space(Protocol):
    """Chooses the coordinates of a search."""

    def __call__(self, view: View) -> Coordinates:
        """Return the coordinates for inputs of the view's shape."""


@part("space.pixels")
class Pixels:
    """Search the inputs themselves, without a prior: z is x, flattened."""

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    def __call__(self, view: View) -> Coordinates:
        """Return the identity with energy 0."""
        return Coordinates(
            decode=lambda z: z.reshape(*z.shape[:2], *view.shape),
            encode=lambda x: x.flatten(2),
            energy=lambda z, _: z.new_zeros(len(z)),
        )


@part("space.standardised")
class Standardised:
    """Search (x - m) / s, with mean m and deviation s of the public examples' channels, without a prior.

    Code that standardises its inputs searches these coordinates, and the steps and learning rates of Inverting Gradients are meant
    for them. The model does not change; it reads x.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    def __call__(self, view: View) -> Coordinates:
        """Return the affine map with energy 0; raises InputError if the view has no public examples."""
        mean, deviation = channel_moments(public_of(view, "standardised"))
        return Coordinates(
            decode=lambda z: z.reshape(*z.shape[:2], *view.shape) * deviation + mean,
            encode=lambda x: ((x - mean) / deviation).flatten(2),
            energy=lambda z, _: z.new_zeros(len(z)),
        )


SPACE = Slot("space", ("leakbench.attack.slots",))
