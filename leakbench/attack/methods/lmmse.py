"""An attack that learns in closed form: the linear estimator with the least mean squared error, as a method and as a start."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from leakbench.attack.learn.linear_map import check_readable, linear_map, linear_map_of, tensors_of
from leakbench.attack.learn.origin import learned, origin_of
from leakbench.attack.looks import averaged
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.one_step import answered_at_once
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import flat
from leakbench.core.answers import Fit, Reconstruction
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["Lmmse", "LmmseStart"]


@part("method.lmmse")
class Lmmse:
    """Apply the linear map from gradients to inputs that is best on public examples (see `linear_map`).

    It is the linear case of Learning To Invert (Wu et al., UAI 2023), with the noise of the defense as its exact ridge.
    """

    public: Annotated[Count, Field(description="Largest number of public examples.")] = 3000
    ridge: Annotated[
        Positive | None,
        Field(
            description="Ridge for gradients without noise (see `linear_map`); None to choose it on the public examples."
        ),
    ] = None

    @property
    def needs(self) -> Needs:
        """Public examples, and updates of one example each."""
        return Needs(alone=True, public=self.public, kinds=PLAIN)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims, clamped to [0, 1]; one fit serves all, and rngs are not used.

        Returns:
            NaN if the attacked model has diverged.

        Raises:
            InputError: As `linear_map` does, and without public examples.
        """
        inputs, fit = self.estimate(views)
        return answered_at_once(views, inputs.clamp(0, 1), rngs, fit)

    def estimate(self, views: tuple[View, ...]) -> tuple[Tensor, Fit]:
        """Return inputs (V, 1, *s), unclamped, and the cost of the fit; observations of one release are averaged."""
        releases = tuple(view for view, _ in averaged(views))
        public = public_of(views[0], "lmmse", self.public)
        check_readable(releases, public)
        origin = origin_of("lmmse", __name__, {"ridge": self.ridge}, public, releases)
        tensors, fit = learned(views[0], origin, public, lambda: tensors_of(linear_map(releases, public, self.ridge)))
        return linear_map_of(tensors)(tuple(flat(view.update) for view in releases))[:, None], fit


@part("start.lmmse")
class LmmseStart:
    """Start from the linear estimate of `lmmse`, unclamped; every restart starts from the same point."""

    public: Annotated[Count, Field(description="Largest number of public examples.")] = 3000
    ridge: Annotated[
        Positive | None,
        Field(
            description="Ridge for gradients without noise (see `linear_map`); None to choose it on the public examples."
        ),
    ] = None

    @property
    def needs(self) -> Needs:
        """The needs of `Lmmse`."""
        return Lmmse(self.public, self.ridge).needs

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess (V, 1, *s); raises InputError as `linear_map` does, and without public examples."""
        return Lmmse(self.public, self.ridge).estimate((view,))[0]
