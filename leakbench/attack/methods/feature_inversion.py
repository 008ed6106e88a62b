"""Feature inversion: reads the inputs of a fully connected layer from its gradients, then searches the network's inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.clock import Until, begun, until_of
from leakbench.attack.doubts import BUDGET
from leakbench.attack.features import Features, read, readable
from leakbench.attack.front import Front
from leakbench.attack.looks import averaged, cut_of, unchanging
from leakbench.attack.methods.gradient_matching import Points, searched
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.search.restarts import best_of
from leakbench.attack.slots.descent import DESCENT, Descent
from leakbench.attack.slots.priors import PRIOR, Prior
from leakbench.attack.slots.space import SPACE, Pixels, Space
from leakbench.attack.slots.start import START, Start
from leakbench.attack.slots.stop import STOP, Iterations, Stop, Watched
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, Positive, part
from leakbench.core.types import Generators
from leakbench.engine.side_by_side import Pieces
from leakbench.federated.view import View

__all__ = ["FeatureInversion"]


@part("method.feature_inversion")
class FeatureInversion:
    """Search x with the features that were read, and with the observed gradients of the layers before them.

    The features h are the input of the first fully connected layer that `leakbench.attack.features` can read, together with
    dL/dh. The gradients of the layers before it are the derivative of <dL/dh, h(x)>. The search needs neither a label nor the
    random draws of the network after that layer. It minimises

        |h(x) - h|^2 / |h|^2  +  weight * mean over the tensors p of those layers of |g_p(x) - g_p|^2 / |g_p|^2

    plus the priors. With a `sharpness`, ReLUs and max pooling of the guess are smooth at first, since the gradients of a network
    with kinks jump and a search stops at the jumps. The sharpness grows from iteration to iteration by a constant factor, and the
    weights of gradients and priors shrink in the same way.

    If a layer without a bias leaves several candidates for h, each gets a search, and the result is the reconstruction of the
    lowest value. Only the first of several views is read, or the mean of the observations of its release.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    start: Annotated[Start, START]
    descent: Annotated[Descent, DESCENT]
    space: Annotated[Space, SPACE] = Pixels()
    priors: tuple[Annotated[Prior, PRIOR], ...] = ()
    stop: Annotated[Stop, STOP] = Iterations()
    weight: Annotated[NonNegative, Field(description="Weight of the gradients at the first iteration.")] = 1.0
    sharpness: Annotated[
        tuple[Positive, Positive] | None,
        Field(
            description=(
                "Sharpness (`leakbench.attack.smooth`) at the first and at the last iteration; None does not change the network."
            )
        ),
    ] = None
    fading: Annotated[
        tuple[Positive, Positive],
        Field(description="Factors of the weights of gradients and of priors at the last iteration."),
    ] = (1.0, 1.0)

    def applies(self, view: View) -> bool:
        """Return whether the features can be read from a view."""
        return readable(view) is not None

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims, clamped to [0, 1]; NaN if the features could not be read.

        Raises:
            InputError: If no features can be read from the view.
        """
        view = averaged(views)[0][0]
        layer = readable(view)
        if layer is None:
            raise InputError(
                "attack: feature_inversion reads the input of a fully connected layer behind others, from the gradient of one local"
                " iteration without noise; got a view that does not show one; choose another attack"
            )
        stop = begun(self.stop)
        features = read(view, layer, rngs, until_of(stop))
        restarts = len(features.entered)
        space = self.space(view)
        z = torch.cat([space.encode(self.start(view, rngs)) for _ in range(restarts)])
        targets = torch.nn.functional.one_hot(features.labels.flatten(0, 1), view.classes).to(z)
        points = Points(space, z.shape[1:], targets, joint=False)
        value = _Misfit(self, view, features)
        # A front that is not a chain runs the network's own code, which threads cannot share. Searches whose value changes from
        # iteration to iteration must also move together.
        alone = value.front.chain is None or value.changes
        following = Watched(stop, value.reach) if value.changes else stop
        cut = Pieces(None) if alone else cut_of((view,))
        running = None if view.searches is None else view.searches.begin(self)
        changing = None if unchanging((view,)) is None else (value.numbers,)
        start = points.joined(z).detach()
        ended = searched(points, start, value, self.descent, following, cut, running, view.tick, changing)
        best, chosen = best_of(ended, restarts)
        answer = points.picture(best.best, best.value)
        unread = ~features.entered.flatten(2).isfinite().all(2).any(0)
        result = points.reconstruction(best, answer, targets[chosen], stop)
        work = {name: getattr(result, name).masked_fill(unread, 0) for name in ("steps", "evaluations", "spent")}
        doubts = dict(result.doubts)
        if BUDGET in doubts and features.cut is not None:
            doubts[BUDGET] = doubts[BUDGET] | features.cut.to(doubts[BUDGET].device)
        return replace(result, doubts=doubts, **work)

    def prepare(self, views: tuple[View, ...], rngs: Generators, until: Until) -> None:
        """Separate the victims' batches until `until` at most, for all searches with the same views."""
        view = averaged(views)[0][0]
        layer = readable(view)
        if layer is not None and view.examples > 1:
            read(view, layer, rngs, until)


class _Misfit:
    """The distance of guesses from the features that were read and from the gradients of the layers before them."""

    def __init__(self, method: FeatureInversion, view: View, features: Features) -> None:
        self.method, self.view = method, view
        self.space = method.space(view)
        self.entered, self.cotangents = features.entered.flatten(0, 1), features.cotangents.flatten(0, 1)
        self.front = Front.of(view.network, features.layer, view.shape)
        self.numbers = features.entered.new_empty(3)
        self.reach(0.0)

    @property
    def changes(self) -> bool:
        """Whether the value depends on the share of the iterations that are done."""
        return self.method.sharpness is not None or self.method.fading != (1.0, 1.0)

    def reach(self, share: float) -> None:
        """Set the sharpness and the weights of gradients and priors, given the share of the iterations that are done, in [0, 1]."""
        first, last = self.method.sharpness or (1.0, 1.0)
        weight, shrunk = (factor**share for factor in self.method.fading)
        self.numbers.copy_(torch.tensor([first * (last / first) ** share, weight * self.method.weight, shrunk]))

    def __call__(self, z: Tensor, targets: Tensor, hidden: Tensor | None, lanes: Tensor) -> Tensor:
        """Return values (v,) at the coordinates (v, M, d) in the given lanes."""
        inputs, victims = self.space.decode(z), lanes % self.view.victims
        front, method = self.front, self.method
        sharpness, weight, shrunk = self.numbers
        if method.sharpness is not None:
            front = front.smoothed(sharpness, self.entered[lanes])
        entered, gradients = front(inputs, self.cotangents[lanes], victims)
        value = _apart(entered, self.entered[lanes]) + self.space.energy(z, targets)
        for name, gradient in gradients.items():
            apart = _apart(gradient, self.view.update[name][victims])
            value = value + weight / len(gradients) * apart
        for prior in method.priors:
            value = value + shrunk * prior(inputs, self.view, victims)
        return value


def _apart(guess: Tensor, observed: Tensor) -> Tensor:
    """Return |guess - observed|^2 / |observed|^2 (v,); |guess|^2 if all of `observed` is zero."""
    length = observed.flatten(1).square().sum(1)
    return (guess - observed).flatten(1).square().sum(1) / torch.where(length > 0, length, 1.0)
