"""Attribute inference: ranks the values of a category, such as sex, by mean public gradients.

It works as `leakbench.attack.rankings.classes` does for labels. The attacker knows neither the label nor the value, and sums over
the labels (as the prior-aware attack of Hayes et al. 2023 sums over unknowns).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.needs import TABULAR, Needs
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import flat, gradients_alone, numbers
from leakbench.attack.rankings.groups import explained, group_means
from leakbench.core.answers import Ranking
from leakbench.core.errors import InputError
from leakbench.core.part import Text, part
from leakbench.core.types import Generators
from leakbench.data.attributes import values_of
from leakbench.data.dataset import Feature
from leakbench.federated.view import Public, View

__all__ = ["Attributes"]

RECORDS = 2000
"""Largest number of public records of the ranking; a rare value needs some records of each label."""

WORK = 100_000_000
"""Largest number of values of the records' gradients, which are all in memory; the largest network gets 100 records."""


@part("attributes")
class Attributes:
    """Rank the values a of categories by the mean public gradients g_ca of the records of label c and value a, and their shares.

    With known noise, the score is log sum_c p_ca exp((<y, g_ca> - |g_ca|^2 / 2) / s^2), the log-posterior of a if all records of a
    label and a value were equal. Without, it is the largest cosine of y and g_ca over c. Observations of one release are
    averaged; for other views, the scores of each label and value are added.
    """

    needs: ClassVar[Needs] = Needs(kinds=(TABULAR,), alone=True, public=RECORDS)

    names: Annotated[tuple[Text, ...], Field(description="Names of the categories.")]

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        """Return scores (V, values) of the categories, joined along the values; -inf for values without a public record.

        Args:
            views: Views of V victims.
            rngs: Not used.

        Raises:
            InputError: If a view does not have such a category or public records, or has several examples in one update.
        """
        means = averaged(views)
        each = [_scores(view, self._features(view)) for view, _ in means]
        totals = {name: torch.stack([scores[name] for scores in each]).sum(0) for name in self.names}
        known = all(view.noise for view, _ in means)
        ranked = {name: t.logsumexp(1) if known else t.amax(1) for name, t in totals.items()}
        return Ranking(torch.cat(list(ranked.values()), 1), {name: t.shape[1] for name, t in ranked.items()})

    def _features(self, view: View) -> tuple[Feature, ...]:
        if view.examples > 1:
            raise InputError(f"attributes: they are ranked of one record, got {view.examples} behind one update")
        categories = {} if view.columns is None else {f.name: f for f in view.columns.categories}
        for name in self.names:
            if name not in categories:
                raise InputError(
                    f"attributes: the table has no category {name!r} (it has {', '.join(categories) or 'none'})"
                )
        return tuple(categories[name] for name in self.names)


def _scores(view: View, features: tuple[Feature, ...]) -> dict[str, Tensor]:
    public = public_of(view, "attributes", max(100, min(RECORDS, WORK // numbers(view))))
    gradients, observed = torch.cat(list(gradients_alone(view, public))), flat(view.update)
    return {f.name: _of_values(view, public, observed, gradients, f) for f in features}


def _of_values(view: View, public: Public, observed: Tensor, gradients: Tensor, feature: Feature) -> Tensor:
    """Return scores (V, classes, values) of each pair of label and value."""
    values, many = values_of(public.inputs, feature), len(feature.values)
    # A network with other targets does not answer with the classes of the examples.
    classes = view.classes if public.answers is None else int(public.labels.max()) + 1
    known = values >= 0
    if not known.any():
        return observed.new_full((len(observed), classes, many), -torch.inf)
    groups = public.labels[known] * many + values[known]
    means = group_means([gradients[known]], groups, classes * many)
    return explained(view, observed, means).reshape(-1, classes, many)
