"""The worst case over several attacks: each runs on the victims that those before it did not break."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.attack.clock import late_of, most_work, until_of
from leakbench.attack.doubts import BUDGET, OUTDONE, STUCK, UNCHECKED, UNCONVERGED, UNKNOWN, stuck, twins
from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.patch_embedding import PatchEmbedding
from leakbench.attack.methods.r_gap import RGap
from leakbench.attack.methods.stage import Reconstructs, Stage
from leakbench.attack.needs import PLAIN, TEXT, Needs
from leakbench.attack.posterior import missed, plausible, posterior, posterior_of_features, prior_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.slots.distance import Likelihood
from leakbench.attack.slots.stop import watched
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.fitted import RecordedFits
from leakbench.core.part import Count, Positive, part
from leakbench.core.recipe import nested
from leakbench.core.types import Generators
from leakbench.federated.searches import search_name
from leakbench.federated.separations import Separations
from leakbench.federated.view import View

__all__ = ["CHECK", "AutoLeak"]


AMPLE = 4
"""Number of observed coordinates per number of a reconstruction from which any reconstruction that explains them is accepted."""


CHECK = "check on public examples"
"""Name of the step in which the searches are tried on public examples."""


TRIAL = 5
"""Smallest number of pairs of evaluations of each search for one group in a check on public examples."""


@part("method.autoleak")
class AutoLeak:
    """Run the stages in order and return the most likely reconstruction of each victim, as `posterior` compares them.

    On networks with ReLUs or maxima, if a stage of `feature_inversion` runs, the result is the most likely reconstruction given
    the features that were read, as `posterior_of_features` compares them.

    Without noise that the attacker knows of, a reconstruction is accepted if the squared distance of its gradient from the
    observed one is below the share `broken` of the latter's squared length. Later stages then skip the victim. If there are fewer
    observed coordinates than `AMPLE` times its numbers, it must also be about as likely as public examples are. Under noise, and
    if there are fewer observed coordinates than numbers, no reconstruction is accepted, and all stages for the network run.

    Signs that an attack is weak are reported as doubts with the reconstruction of each unbroken victim: a search that never got
    below the distance of its start; a search by likelihood that ends at a less likely reconstruction than another stage; a
    defense with random draws of unknown likelihood; and stages that fail on the undefended gradients of public examples
    (`converged`).

    Before the stages, the closed forms of a patch embedding and of leaky ReLUs (`patch_embedding`, `r_gap`) run where they apply.
    """

    behaviour = 2

    stages: tuple[Annotated[Stage, nested(Stage)], ...]
    broken: Annotated[
        Positive,
        Field(
            description=(
                "Squared distance of a reconstruction's gradient from the observed one, as a share of the latter's squared length, "
                "below which the victim counts as broken."
            )
        ),
    ] = 1e-6
    converged: Annotated[
        Positive,
        Field(
            description=(
                "Largest such share on undefended public examples; above it for most groups, a failure under a defense proves "
                "nothing."
            )
        ),
    ] = 1e-3
    twins: Annotated[
        Count,
        Field(description="Number of groups of public examples on which the stages are checked without a defense."),
    ] = 3

    @property
    def needs(self) -> Needs:
        """The kinds of data that its stages can attack: texts, or pictures and tables."""
        texts = any(stage.where == "texts" for stage in self.stages)
        others = any(stage.where != "texts" for stage in self.stages)
        return Needs(kinds=(PLAIN if others else ()) + ((TEXT,) if texts else ()))

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims; iterations and snapshots of the stages follow each other.

        Raises:
            InputError: If no stage runs on the network.
        """
        if not self._stages(views[0]):
            raise InputError("autoleak: stages: got none for this network, expected at least one")
        fits = RecordedFits(views[0].fits)
        # Under a limit on seconds, the views already contain separations.
        separations = views[0].separations or Separations()
        views = tuple(dataclasses.replace(view, fits=fits, separations=separations) for view in views)
        answer = dataclasses.replace(self._answered(views, rngs), fit=fits.fit)
        left = ~self._is_broken(views, answer, prior_of(views[0]))
        if not left.any():
            return dataclasses.replace(answer, doubts={})
        # After a search that the clock ended, no time is left to try the same searches on public examples.
        short = bool((answer.doubts[BUDGET] & left).any()) or self._without_time(views[0])
        deferred = views[0].searches is not None and not views[0].searches.checks
        more = {BUDGET: left} if short else {} if deferred else self._of_twins(views[0], rngs[0])
        doubts = answer.doubts | more
        if any(view.unknown or (view.network.draws and not view.reads_draws) for view in views):
            doubts[UNKNOWN] = torch.ones_like(left)
        return dataclasses.replace(answer, doubts={why: whom & left for why, whom in doubts.items()})

    def checked(self, answer: Reconstruction, view: View, rng: torch.Generator) -> Reconstruction:
        """Return a reconstruction with the doubts from the same searches on public examples; see `Searches.checks`."""
        left = ~self._is_broken((view,), answer, prior_of(view))
        if not left.any():
            return answer
        more = {why: whom & left for why, whom in self._of_twins(view, rng).items()}
        return dataclasses.replace(answer, doubts=answer.doubts | more)

    def _without_time(self, view: View) -> bool:
        """Return whether a budget leaves too little time to try the searches on public examples."""
        stops = [stage.stop for stage in self._stages(view) if hasattr(stage, "stop")]
        return any(late_of(stop)(TRIAL * self.twins) for stop in stops)

    def _answered(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        first, *others = self._stages(views[0])
        best, prior = first(views, rngs), prior_of(views[0])
        value = posterior(views, best, prior)
        rank, least = self._rank(views, best, value, prior), value.clone()
        never, cut = stuck(best), best.doubts.get(BUDGET, torch.zeros_like(best.steps, dtype=torch.bool))
        by_likelihood = torch.full_like(value, _by_likelihood(first), dtype=torch.bool)
        judged = value.masked_fill(~by_likelihood, torch.inf)
        won = torch.zeros_like(best.steps)
        names, not_begun = [search_name(first)], list[str]()
        for stage in others:
            left = (~self._is_broken(views, best, prior)).nonzero()[:, 0]
            if not len(left):
                break
            if _late(stage):  # Every victim already has a reconstruction.
                cut[left] = True
                not_begun.append(search_name(stage))
                continue
            names.append(search_name(stage))
            few = tuple(view.of(left) for view in views)
            answer = stage(few, tuple(rngs[int(v)] for v in left))
            new = posterior(few, answer, prior)
            if _by_likelihood(stage):
                # The best of all stages by likelihood, since their order can differ.
                judged[left], by_likelihood[left] = torch.minimum(judged[left], new), True
            never[left] |= stuck(answer)
            cut = cut.index_put((left,), cut[left] | answer.doubts.get(BUDGET, torch.zeros_like(cut[left])))
            least[left] = torch.minimum(least[left], new)
            ranks = self._rank(few, answer, new, prior)
            better = ranks < rank[left]
            best, taken = followed(best, answer, left, better), left[better]
            won[taken] = len(names) - 1
            value, rank = value.index_put((taken,), new[better]), rank.index_put((taken,), ranks[better])
        doubts = {STUCK: never, OUTDONE: by_likelihood & (least < judged - 1), BUDGET: cut}
        certainty = -value[:, None].expand_as(best.certainty)
        best = dataclasses.replace(best, stage=won, stages=tuple(names), not_begun=tuple(not_begun))
        return dataclasses.replace(best, certainty=certainty, doubts=doubts)

    def _rank(
        self, views: tuple[View, ...], answer: Reconstruction, value: Tensor, prior: Coordinates | None
    ) -> Tensor:
        """Return scores (V,) that compare reconstructions; the lowest is the best, and accepted ones have -inf.

        Args:
            views: Views of V victims.
            answer: Their reconstructions.
            value: Their `posterior` (V,), which compares them if features do not.
            prior: The prior of both.
        """
        reads = any(isinstance(method, FeatureInversion) for method in self._stages(views[0]))
        likely = posterior_of_features(views, answer, prior) if reads else None
        if likely is None:
            return value
        return torch.where(likely.isnan(), value, likely).masked_fill(self._is_broken(views, answer, prior), -torch.inf)

    def _stages(self, view: View) -> tuple[Reconstructs, ...]:
        """Return the methods that run on the view's network and can read what they need from the view."""
        return (*_closed_forms(view), *(stage.method for stage in self.stages if stage.applies(view)))

    def _of_twins(self, view: View, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the doubt from the same stages on public examples without a defense, the same for all victims."""
        everyone = torch.ones(view.victims, dtype=torch.bool, device=view.like.device)
        # Two for an external update, since its user waits. The doubt then needs both to fail, otherwise two of three.
        undefended = twins(view, self.twins if view.searches is None else min(2, self.twins))
        if undefended is None:
            return {UNCHECKED: everyone}
        if undefended.searches is not None:
            undefended = dataclasses.replace(undefended, searches=undefended.searches.of_check())
        quiet = watched(self, None)  # The progress of the victims' searches must not start over.
        if undefended.searches is None:
            work = most_work(self, (undefended,))
            quiet = watched(self, lambda share: view.tick(CHECK, share), work)
            view.tick(CHECK, 0.0)
            # The steps inside are those of the check.
            undefended = dataclasses.replace(undefended, tick=lambda *_: view.tick(CHECK))
        else:
            # An example that is close enough for the check needs no further search.
            quiet = dataclasses.replace(quiet, broken=max(self.broken, self.converged))
        answer = quiet._answered((undefended,), (rng,) * undefended.victims)
        if answer.doubts[BUDGET].any():
            return {BUDGET: everyone}
        apart, length = missed(undefended, answer)
        lost = ~(apart <= self.converged * length)
        return {UNCONVERGED: everyone & (lost.double().mean() > 0.5)}

    def _is_broken(self, views: tuple[View, ...], answer: Reconstruction, prior: Coordinates | None) -> Tensor:
        if any(view.noise for view in views):
            return torch.zeros(views[0].victims, dtype=torch.bool, device=answer.inputs.device)
        apart, length = (sum(each) for each in zip(*(missed(view, answer) for view in views), strict=True))
        # Many different inputs explain fewer coordinates than unknowns, and many nearly explain slightly more.
        coordinates = sum(u.flatten(1).count_nonzero(1) for view in views for u in view.update.values())
        many = answer.inputs[0].numel()
        enough = (coordinates >= AMPLE * many) | ((coordinates >= many) & plausible(views[0], answer, prior))
        return torch.as_tensor((apart <= self.broken * length) & enough)


def _closed_forms(view: View) -> tuple[Reconstructs, ...]:
    """Return the closed forms that apply. They are not stages, so that the identity of the recipe stays the same."""
    leaky = any(isinstance(module, nn.LeakyReLU) for module in view.network.model.modules())
    embedding, recursion = PatchEmbedding(), RGap()
    return (
        *([embedding] if embedding.applies(view) else []),
        *([recursion] if leaky and recursion.applies(view) else []),
    )


def _late(stage: Reconstructs) -> bool:
    """Return whether the time of a budget is over before a stage starts."""
    stop = getattr(stage, "stop", None)
    until = None if stop is None else until_of(stop)
    return until is not None and until()


def _by_likelihood(stage: Reconstructs) -> bool:
    """Return whether a stage minimises what `posterior` compares."""
    return isinstance(stage, GradientMatching) and isinstance(stage.distance, Likelihood)


def followed(best: Reconstruction, later: Reconstruction, lanes: Tensor, better: Tensor) -> Reconstruction:
    """Return the reconstruction of V victims after another search for some of them.

    The iterations and evaluations of the search follow those before it. The snapshots during the search contain the best
    reconstruction before it, since the attacker compares reconstructions when a search has ended. A victim without a
    reconstruction has the search's own best in them.

    Args:
        best: Reconstructions of V victims.
        later: Reconstructions of n of them.
        lanes: Positions (n,) of these victims.
        better: (n,) bool, whether `later` replaces `best`.
    """
    taken = lanes[better]

    def replaced(old: Tensor, new: Tensor) -> Tensor:
        return old.index_put((taken,), new[better])

    def everywhere(part: Tensor, like: Tensor, empty: float) -> Tensor:
        """Return (n, V) with the columns of `part` (n, lanes) at the positions `lanes`."""
        whole = torch.full((len(part), like.shape[1]), empty, dtype=like.dtype, device=like.device)
        whole[:, lanes] = part.to(like)
        return whole

    inputs = replaced(best.inputs, later.inputs)
    earlier = best.snapshots[-1]
    meanwhile = best.inputs.repeat(len(later.snapshots) - 1, *[1] * best.inputs.dim())
    none = best.inputs[lanes].flatten(1).isnan().any(1)
    meanwhile[:, lanes[none]] = later.iterates[:-1, none]
    more = everywhere(later.spent, best.spent, 0)
    return Reconstruction(
        inputs=inputs,
        labels=replaced(best.labels, later.labels),
        targets=None if best.targets is None or later.targets is None else replaced(best.targets, later.targets),
        certainty=replaced(best.certainty, later.certainty),
        trajectory=torch.cat([best.trajectory, everywhere(later.trajectory, best.trajectory, torch.nan)]),
        steps=best.steps.index_add(0, lanes, later.steps),
        evaluations=best.evaluations.index_add(0, lanes, later.evaluations),
        iterates=torch.cat([best.iterates, meanwhile, inputs[None]]),
        snapshots=(*best.snapshots, *(earlier + at for at in later.snapshots)),
        spent=torch.cat([best.spent, best.spent[-1] + more]),
    )
