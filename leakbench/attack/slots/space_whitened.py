"""Slot `space`: coordinates in which a prior of inputs is the same in every direction."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.public import public_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.search.whitening import Whitening, class_means, fitting_floor, of_examples, one_over_f
from leakbench.core.errors import InputError
from leakbench.core.part import Count, NonNegative, Positive, part
from leakbench.federated.view import Public, View

__all__ = ["Whitened"]

TABLE_FLOOR = 1e-4
"""Variance added in every direction of a table."""


@part("space.whitened")
class Whitened:
    """Search z of x = mean + W z, with the prior N(0, I) as energy weight * |z|^2 / 2.

    With the distance `likelihood` and weight 1, the reconstruction is the most likely input. With weight 0, the space only turns
    steps towards images with a spectrum of 1 / f.
    """

    source: Annotated[
        Literal["one_over_f", "public", "usual"],
        Field(
            description=(
                "`one_over_f`: W of the spectrum 1 / (1 + f^2), for images, without data. `public`: W of the covariance of public "
                "examples, also for tables. `usual`: the first for images and the second for tables."
            )
        ),
    ] = "one_over_f"
    floor: Annotated[
        Positive | None,
        Field(
            description=(
                "Variance that every direction has in addition to that covariance. None: for images, the share of the 1 / f "
                "spectrum with which each half of the public examples explains the other half best (`fitting_floor`); for "
                "tables, 1e-4."
            )
        ),
    ] = None
    weight: Annotated[NonNegative, Field(description="Factor of the energy.")] = 1.0
    public: Annotated[Count, Field(description="Largest number of public examples.")] = 3000
    by_class: Annotated[
        bool,
        Field(
            description=(
                "Use the covariance around the means of the classes, and a prior around the mean of the guessed class."
            )
        ),
    ] = False

    @property
    def needs(self) -> Needs:
        """Public examples, if the source uses them."""
        return Needs(public=0 if self.source == "one_over_f" else self.public, kinds=PLAIN)

    def __call__(self, view: View) -> Coordinates:
        """Return the map and its energy.

        Raises:
            InputError: For `one_over_f` with a table or with `by_class`, and if the view has no public examples.
        """
        white, centres = self._prior(view)

        def energy(z: Tensor, targets: Tensor) -> Tensor:
            apart = z if centres is None else z - targets @ centres
            return self.weight / 2 * apart.flatten(1).square().sum(1)

        return Coordinates(white.decode, white.encode, energy)

    def _prior(self, view: View) -> tuple[Whitening, Tensor | None]:
        """Return the map, and the centres (classes, d) of the classes' priors; None if all classes have the same."""
        like = view.like
        if self.source == "public" or (self.source == "usual" and len(view.shape) != 3):
            public = public_of(view, "whitened", self.public)
            # The prior depends neither on its weight nor, with the same examples, on their largest number.
            key = (dataclasses.replace(self, weight=1.0, public=1), view.classes, like.dtype, like.device)
            return public.once(key, lambda examples: self._fitted(examples, view.classes, like))
        if self.by_class:
            raise InputError(
                "whitened: by_class needs public examples of the classes, got no source of any (source: public)"
            )
        if len(view.shape) != 3:
            raise InputError(
                f"whitened: one_over_f needs pictures, got inputs of shape {view.shape} (try source: public)"
            )
        return one_over_f(view.shape, like), None

    def _fitted(self, public: Public, classes: int, like: Tensor) -> tuple[Whitening, Tensor | None]:
        inputs, labels = public.inputs.to(like), public.labels.to(like.device)
        mean = inputs.mean(0)
        if not self.by_class:
            return self.around(mean + inputs - mean), None
        means = class_means(inputs, labels, classes)
        white = self.around(mean + inputs - means[labels])
        return white, white.invert(means - mean).flatten(1)

    def around(self, inputs: Tensor) -> Whitening:
        """Return the whitening of public examples (n, *s)."""
        if self.floor is not None or inputs.dim() != 4:
            return of_examples(inputs, TABLE_FLOOR if self.floor is None else self.floor)
        beyond = one_over_f(inputs.shape[1:], inputs)
        return of_examples(inputs, fitting_floor(inputs, beyond), beyond)
