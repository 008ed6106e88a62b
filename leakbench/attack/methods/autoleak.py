"""The worst case over several attacks: each goes on with the victims that those before it did not break."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import torch
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.attack.clock import late_of, most_work, until_of
from leakbench.attack.doubts import BUDGET, OUTDONE, STUCK, UNCHECKED, UNCONVERGED, UNKNOWN, stuck, twins
from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.stage import Reconstructs, Stage
from leakbench.attack.posterior import missed, plausible, posterior, posterior_of_features, prior_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.searches import search_name
from leakbench.attack.slots.distance import Likelihood
from leakbench.attack.slots.stop import watched
from leakbench.errors import InputError
from leakbench.federated.view import View
from leakbench.fitted import Asked
from leakbench.nested import nested
from leakbench.part import Count, Positive, part
from leakbench.separations import Separations
from leakbench.types import Generators

__all__ = ["CHECK", "AutoLeak"]


AMPLE = 4
"""How many coordinates have to leak for each number of an answer, so that any answer that explains them is taken for right."""


CHECK = "check on public examples"
"""Name of the step in which the searches are tried on public examples."""


TRIAL = 5
"""Number of times two evaluations of each search that a check on public examples takes at least."""


@part("method.autoleak")
class AutoLeak:
    """Run the stages in order and return for each victim the likeliest of their reconstructions, as `posterior` judges them.

    On networks with ReLUs or maxima, where a stage of `feature_inversion` runs, the answer is the likeliest given the features
    that were read, as `posterior_of_features` judges them.

    Without noise that the attacker knows of, a reconstruction is accepted if its gradient misses the observed one by less than the
    share `broken` of its squared length; later stages then skip the victim. Where fewer coordinates leaked than `AMPLE` times its
    numbers, it must also be about as likely as public examples are. Under noise, and where fewer coordinates leaked than it has
    numbers, no reconstruction can be certified, and all stages for the network run.

    Evidence that an attack is weak is reported as a doubt with the reconstruction of each unbroken victim: a search that never came
    closer than its start; a search by likelihood that ends at a less likely reconstruction than another stage; a defense with
    random draws of unknown likelihood; and stages that miss the undefended gradients of most of `twins` groups of public examples
    by more than the share `converged` of their squared length, so that a failure under a defense proves nothing.
    """

    behaviour = 2

    stages: tuple[Annotated[Stage, nested(Stage)], ...]
    broken: Positive = 1e-6
    converged: Positive = 1e-3
    twins: Count = 3

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct; work and snapshots of the stages follow each other. Raises InputError for no stage."""
        if not self._stages(views[0]):
            raise InputError("autoleak: stages: got none for this network, expected at least one")
        asked = Asked(views[0].fits)
        # Of views that keep separations already, as under a limit on seconds, these are used.
        kept = views[0].separations or Separations()
        views = tuple(dataclasses.replace(view, fits=asked, separations=kept) for view in views)
        found = dataclasses.replace(self._answered(views, rngs), fit=asked.fit)
        left = ~self._is_broken(views, found, prior_of(views[0]))
        if not left.any():
            return dataclasses.replace(found, doubts={})
        # After a search that the clock stopped there is no time to try the same searches on public examples.
        short = bool((found.doubts[BUDGET] & left).any()) or self._without_time(views[0])
        put_off = views[0].searches is not None and not views[0].searches.checks
        more = {BUDGET: left} if short else {} if put_off else self._of_twins(views[0], rngs[0])
        doubts = found.doubts | more
        if any(view.unknown or (view.network.draws and not view.reads_draws) for view in views):
            doubts[UNKNOWN] = torch.ones_like(left)
        return dataclasses.replace(found, doubts={why: whom & left for why, whom in doubts.items()})

    def checked(self, answer: Reconstruction, view: View, rng: torch.Generator) -> Reconstruction:
        """Return an answer with the doubts that the same searches leave on public examples; see `Searches.checks`."""
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
        sought = torch.full_like(value, _by_likelihood(first), dtype=torch.bool)
        judged = value.masked_fill(~sought, torch.inf)
        won = torch.zeros_like(best.steps)
        names, not_begun = [search_name(first)], list[str]()
        for stage in others:
            left = (~self._is_broken(views, best, prior)).nonzero()[:, 0]
            if not len(left):
                break
            if _late(stage):  # Every victim has an answer already.
                cut[left] = True
                not_begun.append(search_name(stage))
                continue
            names.append(search_name(stage))
            few = tuple(view.of(left) for view in views)
            found = stage(few, tuple(rngs[int(v)] for v in left))
            new = posterior(few, found, prior)
            if _by_likelihood(stage):
                # The best of them, whatever their order.
                judged[left], sought[left] = torch.minimum(judged[left], new), True
            never[left] |= stuck(found)
            cut = cut.index_put((left,), cut[left] | found.doubts.get(BUDGET, torch.zeros_like(cut[left])))
            least[left] = torch.minimum(least[left], new)
            ranks = self._rank(few, found, new, prior)
            better = ranks < rank[left]
            best, taken = followed(best, found, left, better), left[better]
            won[taken] = len(names) - 1
            value, rank = value.index_put((taken,), new[better]), rank.index_put((taken,), ranks[better])
        doubts = {STUCK: never, OUTDONE: sought & (least < judged - 1), BUDGET: cut}
        certainty = -value[:, None].expand_as(best.certainty)
        best = dataclasses.replace(best, stage=won, stages=tuple(names), not_begun=tuple(not_begun))
        return dataclasses.replace(best, certainty=certainty, doubts=doubts)

    def _rank(self, views: tuple[View, ...], answer: Reconstruction, value: Tensor, prior: Coordinates) -> Tensor:
        """Return (V,) by which reconstructions are compared; the least is the best, and one that is taken for right is -inf.

        Args:
            views: The views of V victims.
            answer: Their reconstructions.
            value: What `posterior` says of these (V,), which compares them where features do not.
            prior: The prior of both.
        """
        reads = any(isinstance(method, FeatureInversion) for method in self._stages(views[0]))
        likely = posterior_of_features(views, answer, prior) if reads else None
        if likely is None:
            return value
        return torch.where(likely.isnan(), value, likely).masked_fill(self._is_broken(views, answer, prior), -torch.inf)

    def _stages(self, view: View) -> tuple[Reconstructs, ...]:
        """Return the methods that run on the view's network and can read what they need from it."""
        return tuple(stage.method for stage in self.stages if stage.applies(view))

    def _of_twins(self, view: View, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the doubt that the same stages leave on public examples without any defense, for all victims alike."""
        everyone = torch.ones(view.victims, dtype=torch.bool, device=next(iter(view.update.values())).device)
        # Two of an own network, whose user waits for them. Both have to fail for the doubt, before two of three.
        undefended = twins(view, self.twins if view.searches is None else min(2, self.twins))
        if undefended is None:
            return {UNCHECKED: everyone}
        if undefended.searches is not None:
            undefended = dataclasses.replace(undefended, searches=undefended.searches.of_check())
        unseen = watched(self, None)  # The progress of the victims' searches must not start over.
        if undefended.searches is None:
            work = most_work(self, (undefended,))
            unseen = watched(self, lambda share: view.tick(CHECK, share), work)
            view.tick(CHECK, 0.0)
        else:
            # An example that is close enough to count as found needs no further search.
            unseen = dataclasses.replace(unseen, broken=max(self.broken, self.converged))
        found = unseen._answered((undefended,), (rng,) * undefended.victims)
        if found.doubts[BUDGET].any():
            return {BUDGET: everyone}
        apart, length = missed(undefended, found)
        lost = ~(apart <= self.converged * length)
        return {UNCONVERGED: everyone & (lost.double().mean() > 0.5)}

    def _is_broken(self, views: tuple[View, ...], answer: Reconstruction, prior: Coordinates) -> Tensor:
        if any(view.noise for view in views):
            return torch.zeros(views[0].victims, dtype=torch.bool, device=answer.inputs.device)
        apart, length = (sum(each) for each in zip(*(missed(view, answer) for view in views), strict=True))
        # What leaves more unknowns than it has numbers is met by many answers, and by many nearly where it has few more.
        shown = sum(u.flatten(1).count_nonzero(1) for view in views for u in view.update.values())
        many = answer.inputs[0].numel()
        enough = (shown >= AMPLE * many) | ((shown >= many) & plausible(views[0], answer, prior))
        return torch.as_tensor((apart <= self.broken * length) & enough)


def _late(stage: Reconstructs) -> bool:
    """Return whether the time of a budget is over before a stage begins."""
    stop = getattr(stage, "stop", None)
    until = None if stop is None else until_of(stop)
    return until is not None and until()


def _by_likelihood(stage: Reconstructs) -> bool:
    """Say whether a stage searches for what `posterior` judges."""
    return isinstance(stage, GradientMatching) and isinstance(stage.distance, Likelihood)


def followed(best: Reconstruction, found: Reconstruction, lanes: Tensor, better: Tensor) -> Reconstruction:
    """Return the answer for V victims after another search of those in `lanes`, which is `better` (n,) for some of them.

    Its iterations and evaluations come after those before it. What the attacker would have answered meanwhile is the best
    before, since it compares answers when a search has ended, or, where there was none, the search's own best so far.
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
    meanwhile = best.inputs.repeat(len(found.snapshots) - 1, *[1] * best.inputs.dim())
    none = best.inputs[lanes].flatten(1).isnan().any(1)
    meanwhile[:, lanes[none]] = found.iterates[:-1, none]
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
