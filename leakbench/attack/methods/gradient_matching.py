"""Gradient matching: searches inputs whose gradient is the observed one.

GradientMatching = labels x space x start x distance x priors x descent x stop. Every published optimisation attack is one choice
of these; the loop is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.clock import begun, cut_short, late_of
from leakbench.attack.looks import averaged, cut_of, releases, responses, unchanging
from leakbench.attack.search.restarts import best_of
from leakbench.attack.slots.descent import (
    DESCENT,
    Descended,
    Descent,
    Running,
    Terms,
    descend,
    evaluations_each,
    together,
)
from leakbench.attack.slots.distance import DISTANCE, Distance, MeasuresLikelihood
from leakbench.attack.slots.epochs import of_one_epoch
from leakbench.attack.slots.labels import LABELS, LabelGuess, Labels
from leakbench.attack.slots.pooling import POOLING, Least, Pooling
from leakbench.attack.slots.priors import PRIOR, Prior
from leakbench.attack.slots.space import SPACE, Coordinates, Pixels, Space
from leakbench.attack.slots.start import START, Start
from leakbench.attack.slots.stop import STOP, Iterations, Stop
from leakbench.attack.squared_distances import squared_distances
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.fitted import RecordedFits
from leakbench.core.part import Count, part
from leakbench.core.progress import Tick, unticked
from leakbench.core.task import Heads, heads_of
from leakbench.core.types import Generators
from leakbench.engine.replayed import Replays, pays
from leakbench.engine.side_by_side import Pieces
from leakbench.federated.view import View

__all__ = ["GradientMatching", "Points", "Value", "searched"]

Value: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]
"""(coordinates (v, M, d), targets (v, M, classes), hidden (v, h) or None, lanes (v,)) -> values (v,) to minimise."""

Distances: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None], Iterable[Tensor]]
"""(inputs (v, M, *s), targets (v, M, classes), victims (v,), hidden (v, h) or None) -> the distance (v,) of each observation."""


@part("method.gradient_matching")
class GradientMatching:
    """Run one search for each victim, all victims at once.

    The distances of several views of the same victims are added. Start, labels and space use the first view, or the mean of the
    observations of its release. With one view, an attacker that knows the defense also searches for its private numbers
    (`View.hidden`). Their standard normal prior counts if the distance is a likelihood (`MeasuresLikelihood`). Other distances
    have no unit in which a prior could be weighed, so that these numbers are free.

    If clients pass several times over their examples, the search has one set of inputs for all epochs, in one order. With a prior
    `epochs_agree` it has one for each epoch, and returns the average of matched inputs.
    """

    labels: Annotated[Labels, LABELS]
    start: Annotated[Start, START]
    distance: Annotated[Distance, DISTANCE]
    descent: Annotated[Descent, DESCENT]
    space: Annotated[Space, SPACE] = Pixels()
    priors: tuple[Annotated[Prior, PRIOR], ...] = ()
    stop: Annotated[Stop, STOP] = Iterations()
    restarts: Annotated[
        Count,
        Field(
            description=(
                "Number of searches for each victim, each with its own start, all at once. `pooling` combines them to one "
                "reconstruction, by default the one with the smallest distance. The iterations and evaluations of all count."
            )
        ),
    ] = 1
    pooling: Annotated[Pooling, POOLING] = Least()
    local_steps: Annotated[
        Count | None,
        Field(description="Number of local iterations that the attacker unrolls instead of L; None for all of them."),
    ] = None

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims, clamped to [0, 1].

        The result is the guess with the smallest distance, priors included, during the search. With n restarts, each iteration of
        all of them counts as n iterations.

        Args:
            views: Views of V victims.
            rngs: Victim v draws from rngs[v].

        Returns:
            NaN for a victim whose distance was never finite.

        Raises:
            InputError: If the views differ in victims, numbers of examples or shapes.
        """
        view = views[0]
        if any((v.victims, v.examples, v.shape) != (view.victims, view.examples, view.shape) for v in views):
            raise InputError("views: all must show the same victims with the same number of examples of one shape")
        if self.local_steps is not None:
            views = tuple(v.coarser(self.local_steps) for v in views)
        if views[0].epochs > 1 and any(getattr(prior, "apart", False) for prior in self.priors):
            views = tuple(replace(v, apart=True) for v in views)
        view = averaged(views)[0][0]
        fits = RecordedFits(view.fits)
        view = replace(view, fits=fits)
        space = self.space(view)
        starts = [(self._labels(view, rngs), space.encode(self.start(view, rngs))) for _ in range(self.restarts)]
        z, targets = torch.cat([z for _, z in starts]), torch.cat([guess.targets for guess, _ in starts])
        hidden = view.hidden() if len(views) == 1 else None
        apart = view if view.apart else None
        points = Points(space, z.shape[1:], targets, starts[0][0].joint, hidden, apart, heads_of(view.network.model))
        stop = begun(self.stop)
        results = self._searched(views, points, points.joined(z).detach(), stop, rngs)
        best, chosen = best_of(results, self.restarts)
        guesses = points.inputs(results.best)
        searches = (self.restarts, view.victims)
        pooled = self.pooling(guesses.reshape(*searches, *guesses.shape[1:]), results.value.reshape(searches), view)
        answer = points.answered(pooled, best.value)
        reached = points.split(best.best, chosen)[1]
        if view.apart:
            reached = reached.reshape(view.victims, view.cohort, view.epochs, -1, view.classes)[:, :, 0].flatten(1, 2)
        return replace(points.reconstruction(best, answer, reached, stop), fit=fits.fit)

    def _labels(self, view: View, rngs: Generators) -> LabelGuess:
        """Return the labels of the examples, the same in each epoch where the epochs are searched apart."""
        if not view.apart:
            return self.labels(view, rngs)
        guess = self.labels(replace(view, apart=False), rngs)
        targets = guess.targets.reshape(view.victims, view.cohort, 1, -1, view.classes)
        return replace(guess, targets=targets.expand(-1, -1, view.epochs, -1, -1).flatten(1, 3))

    def _searched(
        self, views: tuple[View, ...], points: Points, start: Tensor, stop: Stop, rngs: Generators
    ) -> Descended:
        searches = views[0].searches
        running = None if searches is None else searches.begin(self)
        value = self._value(views, points)
        return searched(
            points, start, value, self.descent, stop, cut_of(views), running, views[0].tick, unchanging(views)
        )

    def _value(self, views: tuple[View, ...], points: Points) -> Value:
        """Return what the searches minimise: the distances, the energy of the coordinates and the priors."""
        distances = self._distances(views, points)

        def value(z: Tensor, targets: Tensor, hidden: Tensor | None, lanes: Tensor) -> Tensor:
            victims = lanes % views[0].victims
            inputs = points.space.decode(z)
            value = points.space.energy(z, targets)
            if hidden is not None and isinstance(self.distance, MeasuresLikelihood):
                value = value + hidden.square().sum(1) / 2
            for distance in distances(inputs, targets, victims, hidden):
                value = value + distance
            for prior in self.priors:
                value = value + prior(inputs, views[0], victims)
            return value

        return value

    def _distances(self, views: tuple[View, ...], points: Points) -> Distances:
        """Return the function of guesses that yields their distances from the observations of each view."""
        squares = self._squared(views, points)
        if squares is not None:
            return squares

        def by_gradients(inputs: Tensor, targets: Tensor, victims: Tensor, hidden: Tensor | None) -> Iterator[Tensor]:
            for guess, view in responses(views, inputs, targets, victims, hidden):
                reached = {name: g for name, g in guess.items() if name not in points.space.unreached}
                yield self.distance(reached, view.observed(victims), view)

        return by_gradients

    def _squared(self, views: tuple[View, ...], points: Points) -> Distances | None:
        """Return `_distances` without the gradients of guesses, if the distance has a form for updates of one example."""
        alone = len(releases(views)) == len(views) and points.hidden is None and not points.space.unreached
        # Its own form: a subclass may be another distance.
        of_one_example = vars(type(self.distance)).get("of_one_example")
        if not alone or of_one_example is None:
            return None
        each = [(squares, view) for view in views if (squares := squared_distances(view)) is not None]
        if len(each) < len(views):
            return None
        return lambda inputs, targets, victims, _: (
            of_one_example(self.distance, squares, (inputs, targets, victims), view) for squares, view in each
        )


def searched(
    points: Points,
    start: Tensor,
    value: Value,
    descent: Descent,
    stop: Stop,
    cut: Pieces,
    running: Running | None = None,
    tick: Tick = unticked,
    changing: tuple[Tensor, ...] | None = None,
) -> Descended:
    """Minimise `value`, in parallel over the lanes.

    Args:
        points: The meaning of a point.
        start: Starting points (lanes, d).
        value: The function to minimise.
        descent: Chooses the steps.
        stop: Ends the searches.
        cut: How lanes are divided among threads, and into chunks of one evaluation.
        running: Reports progress, ends converged searches and saves states; None for none of these.
        tick: Called after each gradient evaluation of a chunk, also by threads.
        changing: The tensors, besides its arguments, on which `value` depends and whose numbers change during the search; its
            operations are then replayed. None if it may depend on something else.
    """

    def evaluated(lanes: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = some.detach().requires_grad_()
            values = value(*points.split(leaf, lanes), lanes)
            (gradients,) = torch.autograd.grad(values.sum(), leaf)
        return values.detach(), gradients

    def piece(replays: Replays | None, some: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        function = partial(evaluated, lanes)
        values, gradients = (function if replays is None else replays(lanes, function))(some)
        tick()
        return values, gradients

    def objective(first: int, replays: Replays | None, some: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        done = cut([partial(piece, replays, some[where], first + lanes[where]) for where in cut.pieces(len(lanes))])
        return torch.cat([values for values, _ in done]), torch.cat([gradients for _, gradients in done])

    terms = Terms(stop.limit, points.size, points.project, late_of(stop))

    def share(lanes: slice) -> Descended:
        by = None if running is None else running.share(lanes.start, points.picture)
        worth = start.device.type == "cpu" and pays(stop.limit * evaluations_each(descent))
        replays = Replays(changing) if changing is not None and worth else None
        return descend(descent(start[lanes], terms), partial(objective, lanes.start, replays), stop, by)

    return together(cut([partial(share, lanes) for lanes in cut.shares(len(start))]))


@dataclass(frozen=True)
class Points:
    """The meaning of a point (d,) of a search: coordinates of the inputs, logits if labels are searched too, hidden numbers.

    Args:
        space: The coordinates.
        shape: Their shape (M, d).
        targets: The labels (lanes, M, classes) of each search, or its first logits.
        joint: Whether labels are searched too.
        hidden: Where the search of the defense's private numbers starts, (V, h); None for none. Lane n is that of victim n mod V.
        epochs: The view whose epochs have inputs of their own, see `View.apart`; None for one set of inputs.
        heads: The task of a network that does not name classes; its targets take the place of labels.
    """

    space: Coordinates
    shape: torch.Size
    targets: Tensor
    joint: bool
    hidden: Tensor | None = None
    epochs: View | None = None
    heads: Heads | None = None

    @property
    def size(self) -> int:
        """Number of coordinates of the inputs."""
        return self.shape.numel()

    def joined(self, z: Tensor) -> Tensor:
        """Return the starting points (lanes, d) of all searches."""
        parts = [z.flatten(1), *([self.targets.flatten(1)] if self.joint else [])]
        if self.hidden is not None:
            parts.append(self.hidden.repeat(len(z) // len(self.hidden), 1))
        return torch.cat(parts, 1)

    def split(self, points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return (coordinates of the inputs, targets, hidden numbers or None) of points in the given lanes."""
        searched = self.targets[0].numel() if self.joint else 0
        z, logits, hidden = points.tensor_split([self.size, self.size + searched], 1)
        if not self.joint:
            targets = self.targets[lanes]
        else:
            free = logits.reshape(-1, *self.targets.shape[1:])
            targets = free.softmax(-1) if self.heads is None else self.heads.possible(free)
        return z.reshape(-1, *self.shape), targets, None if self.hidden is None else hidden

    def project(self, points: Tensor) -> Tensor:
        """Return the points with their inputs moved to possible ones, for most spaces into [0, 1]."""
        z = self.space.encode(self.space.inside(self.inputs(points)))
        return torch.cat([z.flatten(1), points[:, self.size :]], 1)

    def picture(self, points: Tensor, value: Tensor) -> Tensor:
        """Return the reconstructions of V victims at points (V, d); NaN if the victim's value (V,) is not finite."""
        return self.answered(self.inputs(points), value)

    def answered(self, inputs: Tensor, value: Tensor) -> Tensor:
        """Return the reconstructions of V victims, given the inputs at which their searches ended and their values (V,)."""
        x = self.space.answer(inputs)
        if self.epochs is not None:
            x = of_one_epoch(x, self.epochs)
        return torch.where(value.isfinite().reshape(-1, *[1] * (x.dim() - 1)), x, torch.nan)

    def reconstruction(self, best: Descended, answer: Tensor, targets: Tensor, stop: Stop) -> Reconstruction:
        """Return reconstructed inputs (V, M, *s) with their targets (V, M, k) and the records of the best searches."""
        labels, finite = targets.argmax(-1), best.value.isfinite()[:, None, None]
        return Reconstruction(
            inputs=answer,
            labels=labels if self.heads is None else torch.full_like(labels, -1),
            targets=None if self.heads is None else self.heads.decided(targets).where(finite, torch.nan),
            certainty=-best.value[:, None].expand(-1, labels.shape[1]),
            trajectory=best.trajectory,
            steps=best.steps,
            evaluations=best.evaluations,
            iterates=torch.stack([*(self.picture(some, best.value) for some in best.snapshots[:-1]), answer]),
            snapshots=best.at,
            spent=best.spent,
            doubts=cut_short(stop, best.steps),
        )

    def inputs(self, points: Tensor) -> Tensor:
        """Return the inputs at points."""
        return self.space.decode(points[:, : self.size].reshape(-1, *self.shape))
