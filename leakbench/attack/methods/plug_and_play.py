"""Plug-and-play: a search by likelihood alternates with a denoiser, so that any denoiser is a prior of inputs."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.clock import begun, cut_short
from leakbench.attack.looks import averaged, cut_of, responses, unchanging
from leakbench.attack.methods.gradient_matching import Points, searched
from leakbench.attack.slots.denoiser import DENOISER, Denoiser, Denoising
from leakbench.attack.slots.descent import DESCENT, Descended, Descent, LbfgsDescent
from leakbench.attack.slots.distance import DISTANCE, Distance, Likelihood
from leakbench.attack.slots.labels import LABELS, Labels, LastLayer
from leakbench.attack.slots.start import START, Start
from leakbench.attack.slots.stop import STOP, Iterations, Stop
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.fitted import RecordedFits
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["PlugAndPlay"]


@part("method.plug_and_play")
class PlugAndPlay:
    """Solve min distance(z) - log p(z) by ADMM, with a denoiser in place of the step by p.

    S. Venkatakrishnan, C. Bouman, B. Wohlberg, "Plug-and-Play Priors for Model Based Reconstruction", GlobalSIP 2013, eqs. 6 to 8:

        z = argmin distance(z) + |z - (v - u)|^2 / (2 s^2),   v = denoiser(z + u, s),   u = u + z - v

    The deviation s falls from `first` to `last` over the rounds, in equal ratios; u is then scaled by the ratio of the variances.
    For the posterior mean of a Gaussian prior as denoiser and a likelihood that is Gaussian in z, it converges to the posterior
    mean, for every s. For other priors it is an approximation.
    """

    denoiser: Annotated[Denoiser, DENOISER]
    start: Annotated[Start, START]
    labels: Annotated[Labels, LABELS] = LastLayer()
    distance: Annotated[Distance, DISTANCE] = Likelihood()
    descent: Annotated[Descent, DESCENT] = LbfgsDescent()
    stop: Annotated[Stop, STOP] = Iterations(20)
    rounds: Annotated[Count, Field(description="Largest number of rounds; they share the iterations of `stop`.")] = 20
    first: Annotated[Positive, Field(description="Deviation s in the first round, in the denoiser's coordinates.")] = (
        1.0
    )
    last: Annotated[Positive, Field(description="Deviation s in the last round.")] = 1.0

    def between(self, limit: int) -> int:
        """Return the number of evaluations in addition to those of one search of `limit` iterations: the ends of other rounds."""
        return min(self.rounds, limit) - 1

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims, clamped to [0, 1]; the distances of several views are added.

        The result is the denoiser's last estimate. The trajectory contains the values of the searches, whose objective changes
        from round to round.

        Returns:
            NaN for a victim whose distance was never finite.

        Raises:
            InputError: If labels are searched jointly.
        """
        fits = RecordedFits(views[0].fits)
        view = dataclasses.replace(averaged(views)[0][0], fits=fits)
        denoising, guess = self.denoiser(view), self.labels(view, rngs)
        if guess.joint:
            raise InputError("plug_and_play: labels: got a joint search, expected labels that are inferred or given")
        start = denoising.space.encode(self.start(view, rngs)).detach()
        points = Points(denoising.space, start.shape[1:], guess.targets, False)
        stop = begun(self.stop)
        estimates, results = self._alternate(views, points, denoising, start, stop)
        answers = [points.picture(z.flatten(1), done.value) for z, done in zip(estimates, results, strict=True)]
        evaluations = torch.stack([done.evaluations for done in results]).cumsum(0)
        steps = torch.stack([done.steps for done in results]).sum(0)
        value = results[-1].value
        labels = guess.targets.argmax(-1)
        return Reconstruction(
            inputs=answers[-1],
            labels=labels,
            certainty=-value[:, None].expand(-1, labels.shape[1]),
            trajectory=torch.cat([done.trajectory for done in results]),
            steps=steps,
            evaluations=evaluations[-1],
            iterates=torch.stack(answers),
            snapshots=tuple(itertools.accumulate(len(done.trajectory) for done in results)),
            spent=evaluations,
            doubts=cut_short(stop, steps),
            fit=fits.fit,
        )

    def _alternate(
        self, views: tuple[View, ...], points: Points, denoising: Denoising, start: Tensor, stop: Stop
    ) -> tuple[list[Tensor], list[Descended]]:
        """Return the denoiser's estimate (V, M, d) and the search of each round."""
        rounds = min(self.rounds, stop.limit)
        each, left = divmod(stop.limit, rounds)
        clean, dual, before, done = start, torch.zeros_like(start), self.first, 0
        estimates, results = [], []
        for number in range(rounds):
            noise = self.first * (self.last / self.first) ** (number / max(1, rounds - 1))
            dual, before = dual * (noise / before) ** 2, noise
            limit = each + (number < left)
            found = self._search(views, points, clean - dual, noise, _Round(stop, done, limit))
            z = found.best.reshape(start.shape)
            clean = denoising.estimate(z + dual, noise)
            dual, done = dual + z - clean, done + limit
            estimates.append(clean)
            results.append(found)
        return estimates, results

    def _search(self, views: tuple[View, ...], points: Points, near: Tensor, noise: float, stop: Stop) -> Descended:
        """Return the search for the likeliest z near `near` (V, M, d), where it also starts."""

        def value(z: Tensor, targets: Tensor, hidden: Tensor | None, lanes: Tensor) -> Tensor:
            apart = (z - near[lanes]).flatten(1).square().sum(1) / (2 * noise**2)
            for guess, view in responses(views, points.space.decode(z), targets, lanes, hidden):
                apart = apart + self.distance(guess, view.observed(lanes), view)
            return apart

        cut, tick = cut_of(views), views[0].tick
        return searched(
            points, points.joined(near), value, self.descent, stop, cut, tick=tick, changing=unchanging(views)
        )


@dataclass(frozen=True)
class _Round:
    """A stop that ends a round after `limit` iterations, and as `stop` does, which also counts the `done` iterations before."""

    stop: Stop
    done: int
    limit: int

    def __call__(self, iteration: int, values: Tensor) -> Tensor:
        return self.stop(self.done + iteration, values) | (iteration >= self.limit)
