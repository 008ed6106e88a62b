"""The worst case over several attacks: each goes on with the victims that those before it did not break."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.attack.analytic import AnalyticFc
from leakbench.attack.coordinates import Coordinates
from leakbench.attack.distance import Likelihood, SquaredL2
from leakbench.attack.gradient_matching import GradientMatching
from leakbench.attack.space_whitened import Whitened
from leakbench.errors import InputError
from leakbench.federated.leakage import View
from leakbench.fitted import Asked
from leakbench.models import one_hot
from leakbench.recipe import slot
from leakbench.types import Generators, Positive, Reconstruction, part

__all__ = ["SEARCHES", "AutoLeak", "Search"]


@runtime_checkable
class Search(Protocol):
    """A method that answers with a reconstruction."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Answer for the V victims that all views show; victim v draws from rngs[v]."""


SEARCHES: dict[str, type[Search]] = {"gradient_matching": GradientMatching, "analytic_fc": AnalyticFc}


@part
class AutoLeak:
    """Run the stages in order and answer each victim by the likeliest of their answers.

    The attacker judges by what it knows itself: minus the logarithm of the posterior of an answer, the noise's likelihood beside
    a Gaussian prior (pictures: one of a 1 / f spectrum; tables: the public covariance). Where the defense adds no noise that the
    attacker is told of, an answer whose gradient misses what leaked by less than the share `broken` of its squared length is
    taken for right, and later stages leave the victim alone; under noise nothing certifies an answer, and all stages run.
    """

    stages: tuple[Annotated[Search, *slot("method", SEARCHES)], ...]
    broken: Positive = 1e-8

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct; work and snapshots of the stages follow each other. Raises InputError for no stage."""
        if not self.stages:
            raise InputError("autoleak: stages: got none, expected at least one")
        asked = Asked(views[0].fits)
        views = tuple(dataclasses.replace(view, fits=asked) for view in views)
        best = self.stages[0](views, rngs)
        value = posterior(views, best)
        for stage in self.stages[1:]:
            left = (~self._is_broken(views, best)).nonzero()[:, 0]
            if not len(left):
                break
            few = tuple(view.of(left) for view in views)
            found = stage(few, tuple(rngs[int(v)] for v in left))
            new = posterior(few, found)
            better = new < value[left]
            best, value = followed(best, found, left, better), value.index_put((left[better],), new[better])
        return dataclasses.replace(best, certainty=-value[:, None].expand_as(best.certainty), fit=asked.fit)

    def _is_broken(self, views: tuple[View, ...], answer: Reconstruction) -> Tensor:
        if any(view.noise for view in views):
            return torch.zeros(views[0].victims, dtype=torch.bool, device=answer.inputs.device)
        missed, length = (sum(each) for each in zip(*(_missed(view, answer) for view in views), strict=True))
        return torch.as_tensor(missed <= self.broken * length)


def _missed(view: View, answer: Reconstruction) -> tuple[Tensor, Tensor]:
    """Return the squared distance (V,) of an answer's gradient from what leaked, and the squared length of that."""
    zero = {name: torch.zeros_like(u) for name, u in view.update.items()}
    return SquaredL2()(_response(view, answer), view.update, view), SquaredL2()(view.update, zero, view)


def _response(view: View, answer: Reconstruction) -> dict[str, Tensor]:
    targets = one_hot(answer.labels, view.classes).to(answer.inputs)
    with torch.no_grad():
        return view.respond(answer.inputs, targets, by_what_leaked=True)


def posterior(views: tuple[View, ...], answer: Reconstruction) -> Tensor:
    """Return (V,) minus the logarithm of the posterior of each victim's answer, up to a constant; infinite where there is none."""
    told = [Likelihood()(_response(view, answer), view.update, view) for view in views]
    prior = _prior(views[0])
    with torch.no_grad():
        value = torch.stack(told).sum(0) + prior.energy(prior.encode(answer.inputs))
    return value.nan_to_num(nan=torch.inf)


def _prior(view: View) -> Coordinates:
    return Whitened()(view) if len(view.shape) == 3 else Whitened(source="public")(view)


def followed(best: Reconstruction, found: Reconstruction, lanes: Tensor, better: Tensor) -> Reconstruction:
    """Return the answer for V victims after another search of those in `lanes`, which is `better` (n,) for some of them.

    Its iterations and evaluations come after those before it. What the attacker would have answered meanwhile is the best
    before, since it compares answers when a search has ended.
    """
    taken = lanes[better]

    def replaced(old: Tensor, new: Tensor) -> Tensor:
        return old.index_put((taken,), new[better])

    def everywhere(part: Tensor, like: Tensor, empty: float) -> Tensor:
        """Return (n, V) with the columns of `part` (n, lanes) where they belong."""
        whole = torch.full((len(part), like.shape[1]), empty, dtype=like.dtype, device=like.device)
        whole[:, lanes] = part.to(like)
        return whole

    inputs = replaced(best.inputs, found.inputs)
    earlier = best.snapshots[-1]
    meanwhile = best.inputs.expand(len(found.snapshots) - 1, *best.inputs.shape)
    more = everywhere(found.spent, best.spent, 0)
    return Reconstruction(
        inputs=inputs,
        labels=replaced(best.labels, found.labels),
        certainty=replaced(best.certainty, found.certainty),
        trajectory=torch.cat([best.trajectory, everywhere(found.trajectory, best.trajectory, torch.nan)]),
        steps=best.steps.index_add(0, lanes, found.steps),
        evaluations=best.evaluations.index_add(0, lanes, found.evaluations),
        iterates=torch.cat([best.iterates, meanwhile, inputs[None]]),
        snapshots=(*best.snapshots, *(earlier + at for at in found.snapshots)),
        spent=torch.cat([best.spent, best.spent[-1] + more]),
    )
