"""Slot `space`: the coordinates in which a search moves, x = decode(z), with the energy that a prior puts on z."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from leakbench.attack.public import channel_moments, public_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.federated.view import View
from leakbench.part import part
from leakbench.recipe import Slot

__all__ = ["SPACE", "Coordinates", "Pixels", "Space", "Standardised"]


@runtime_checkable
class Space(Protocol):
    """Says in which coordinates to search."""

    def __call__(self, view: View) -> Coordinates:
        """Return the coordinates for inputs of the view's shape."""


@part("space.pixels")
class Pixels:
    """Search the inputs themselves, without a prior: z is x, flattened."""

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

    These are the coordinates of code that standardises its inputs: the steps and learning rates of Inverting Gradients are meant in
    them. The model does not change; it sees x.
    """

    def __call__(self, view: View) -> Coordinates:
        """Return the affine map with energy 0; raises InputError where there is no public example."""
        mean, deviation = channel_moments(public_of(view, "standardised"))
        return Coordinates(
            decode=lambda z: z.reshape(*z.shape[:2], *view.shape) * deviation + mean,
            encode=lambda x: ((x - mean) / deviation).flatten(2),
            energy=lambda z, _: z.new_zeros(len(z)),
        )


SPACE = Slot("space", ("leakbench.attack.slots",))
