"""Slot `space`: coordinates in which every input of its kind is as likely in any direction."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from leakbench.attack.coordinates import Coordinates
from leakbench.attack.needs import Needs
from leakbench.attack.public import public_of
from leakbench.attack.whitening import Whitening, class_means, of_examples, one_over_f
from leakbench.errors import InputError
from leakbench.federated.leakage import View
from leakbench.part import Count, NonNegative, Positive, part

__all__ = ["Whitened"]


@part
class Whitened:
    """Search z of x = mean + W z, of which a prior N(0, I) says weight * |z|^2 / 2: pictures fall off as 1 / f.

    source: `one_over_f`, W of a spectrum of 1 / (1 + f^2), for pictures and without any data; `public`, W the square root of
    the covariance of at most `public` public examples with a `floor` (a variance), for tables too; `usual`, the first of
    pictures and the second of tables.  by_class: of `public`, the covariance is that around the means of their classes, and
    the prior stands around the mean of the class that a guess has.  With the distance `likelihood` and weight 1 the answer is
    the likeliest input; with weight 0 the space only turns steps towards what pictures look like.
    """

    source: Literal["one_over_f", "public", "usual"] = "one_over_f"
    floor: Positive = 1e-4
    weight: NonNegative = 1.0
    public: Count = 3000
    by_class: bool = False

    @property
    def needs(self) -> Needs:
        """Public examples, where they may be its source."""
        return Needs(public=0 if self.source == "one_over_f" else self.public)

    def __call__(self, view: View) -> Coordinates:
        """Return the map and its energy.

        Raises InputError for `one_over_f` of a table or by class, and where there is no public example.
        """
        white, centres = self._prior(view)

        def decode(z: Tensor) -> Tensor:
            inputs = white.mean + white.apply(z.reshape(-1, *view.shape))
            return inputs.reshape(*z.shape[:2], *view.shape)

        def encode(x: Tensor) -> Tensor:
            return white.invert(x.flatten(0, 1) - white.mean).reshape(*x.shape[:2], -1)

        def energy(z: Tensor, targets: Tensor) -> Tensor:
            apart = z if centres is None else z - targets @ centres
            return self.weight / 2 * apart.flatten(1).square().sum(1)

        return Coordinates(decode, encode, energy)

    def _prior(self, view: View) -> tuple[Whitening, Tensor | None]:
        """Return the mean and W, and where the prior of each class stands, (classes, d); None where all are one."""
        like = next(iter(view.update.values()))
        if self.source == "public" or (self.source == "usual" and len(view.shape) != 3):
            public = public_of(view, "whitened", self.public)
            inputs = public.inputs.to(like)
            if not self.by_class:
                return of_examples(inputs, self.floor), None
            labels = public.labels.to(like.device)
            means = class_means(inputs, labels, view.classes)
            mean = inputs.mean(0)
            white = of_examples(inputs - means[labels] + mean, self.floor)
            return white, white.invert(means - mean).flatten(1)
        if self.by_class:
            raise InputError(
                "whitened: by_class needs public examples of the classes, got no source of any (source: public)"
            )
        if len(view.shape) != 3:
            raise InputError(
                f"whitened: one_over_f needs pictures, got inputs of shape {view.shape} (try source: public)"
            )
        return one_over_f(view.shape, like), None
