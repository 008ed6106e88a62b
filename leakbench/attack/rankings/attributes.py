"""Attributes: which sex, say, does the victim's record have? A Ranking of a category's values, by the means of public gradients.

Attribute inference as the rankings of `leakbench.attack.rankings.classes` do it for labels: the attacker knows neither, and sums
over the label (as the prior-aware attack of Hayes et al. 2023 does over what it does not know).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakbench.answers import Ranking
from leakbench.attack.looks import averaged
from leakbench.attack.needs import Needs
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import flat, gradients_alone, numbers
from leakbench.attack.rankings.groups import explained, group_means
from leakbench.data.attributes import values_of
from leakbench.data.dataset import Feature
from leakbench.errors import InputError
from leakbench.federated.view import Public, View
from leakbench.part import Text, part
from leakbench.types import Generators

__all__ = ["Attributes"]

RECORDS = 2000
"""How many public records the ranking goes by at most: a rare value needs some of each label."""

WORK = 100_000_000
"""Of how many numbers their gradients, which are held all together, may be; 100 records are taken of the largest network."""


@part("attributes")
class Attributes:
    """Rank the values a of categories by public mean gradients g_ca of the records of label c and value a, and their shares.

    With a known noise the posterior of a: log sum_c p_ca exp((<y, g_ca> - |g_ca|^2 / 2) / s^2), were all records of a label and a
    value alike; without one the largest cosine of y and g_ca over c. Looks at one release count as their mean; of other views the
    scores of each label and value add.

    Args:
        names: The categories.
    """

    needs: ClassVar[Needs] = Needs(table=True, alone=True, public=RECORDS)

    names: tuple[Text, ...]

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        """Return scores (V, values) of each category side by side, -inf for values without a public record.

        rngs are not drawn from. Raises InputError where a view has no such category, no public record, or several examples behind
        one update.
        """
        shown = averaged(views)
        each = [_scores(view, self._features(view)) for view, _ in shown]
        totals = {name: torch.stack([scores[name] for scores in each]).sum(0) for name in self.names}
        known = all(view.noise for view, _ in shown)
        found = {name: t.logsumexp(1) if known else t.amax(1) for name, t in totals.items()}
        return Ranking(torch.cat(list(found.values()), 1), {name: t.shape[1] for name, t in found.items()})

    def _features(self, view: View) -> tuple[Feature, ...]:
        if view.examples > 1:
            raise InputError(f"attributes: they are ranked of one record, got {view.examples} behind one update")
        found = {} if view.columns is None else {f.name: f for f in view.columns.categories}
        for name in self.names:
            if name not in found:
                raise InputError(
                    f"attributes: the table has no category {name!r} (it has {', '.join(found) or 'none'})"
                )
        return tuple(found[name] for name in self.names)


def _scores(view: View, features: tuple[Feature, ...]) -> dict[str, Tensor]:
    public = public_of(view, "attributes", max(100, min(RECORDS, WORK // numbers(view))))
    gradients, observed = torch.cat(list(gradients_alone(view, public))), flat(view.update)
    return {f.name: _of_values(view, public, observed, gradients, f) for f in features}


def _of_values(view: View, public: Public, observed: Tensor, gradients: Tensor, feature: Feature) -> Tensor:
    """Return scores (V, classes, values) of each label and value together."""
    values, many = values_of(public.inputs, feature), len(feature.values)
    known = values >= 0
    if not known.any():
        return observed.new_full((len(observed), view.classes, many), -torch.inf)
    groups = public.labels[known] * many + values[known]
    found = group_means([gradients[known]], groups, view.classes * many)
    return explained(view, observed, found).reshape(-1, view.classes, many)
