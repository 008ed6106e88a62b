"""Scores of the other rankings of an attack: membership in the batch, the count of each label, and attributes.

One row per example, as in `leakbench.scoring.scores`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakbench.attack.search.label_counts import rounded
from leakbench.core.answers import Ranking
from leakbench.data.dataset import Feature
from leakbench.measure.rates import IDENTIFIED, LABEL_RANKED
from leakbench.measure.truth import VictimTruth
from leakbench.scoring.rankings import identified_first, told

__all__ = [
    "FALSE_ALARMS",
    "IDENTIFIED_BY",
    "LEAST_NON_MEMBERS",
    "counted",
    "membership",
    "score_attributes",
    "score_rankings",
    "score_ways",
]

IDENTIFIED_BY = ("identified_by_likelihood", "identified_by_reconstruction")
"""The two ways to identify, between which the attacker chooses for each victim."""

FALSE_ALARMS = 0.01
"""The false positive rate at which members are found."""

LEAST_NON_MEMBERS = 100
"""Of fewer, one false alarm is more than that rate."""


def score_rankings(
    rankings: Mapping[str, Ranking], shown: Tensor, public_labels: Tensor, truth: VictimTruth
) -> pd.DataFrame:
    """Return the columns below of V * M rows in the order of `score`, each on the first example of a victim, NaN on its fellows.

    Args:
        rankings: `identified` over k candidates, which are the examples `shown` (k,); `label_ranked` over the classes, of M > 1
            examples their shares.
        public_labels: (n,) int64, from which the baseline guesses labels without an update. identified_by_likelihood,
            identified_by_reconstruction: 1 where the victim is named by that way alone, as in `told`; NaN without such an answer.
            member_above, member_found: see `membership`. label_counts, null_label_counts: see `counted`; NaN for M = 1
            and without a ranking of classes.
    """
    members = (truth.examples[:, :, None] == shown).any(1)
    above, found = membership(rankings[IDENTIFIED.name].scores.cpu(), truth.own, members.cpu())
    labels = truth.labels.cpu()
    counts = null_counts = torch.full((len(labels),), torch.nan, dtype=torch.float64)
    if labels.shape[1] > 1 and LABEL_RANKED.name in rankings:
        expected = rankings[LABEL_RANKED.name].scores.cpu()
        shares = torch.bincount(public_labels.cpu(), minlength=expected.shape[1]).to(expected).expand_as(expected)
        counts, null_counts = counted(expected, labels), counted(shares, labels)
    columns = {
        "member_above": above,
        "member_found": found,
        "label_counts": counts,
        "null_label_counts": null_counts,
    }
    rows = pd.DataFrame({name: _on_first(values, labels.shape[1]) for name, values in columns.items()})
    return score_ways(rankings, truth).join(rows)


def score_ways(rankings: Mapping[str, Ranking], truth: VictimTruth) -> pd.DataFrame:
    """Return the columns `IDENTIFIED_BY` alone, as `score_rankings` does."""
    nobody = torch.full((len(truth.labels),), torch.nan, dtype=torch.float64)
    ways = {way: identified_first(rankings[way].scores, truth) if way in rankings else nobody for way in IDENTIFIED_BY}
    return pd.DataFrame({name: _on_first(values, truth.labels.shape[1]) for name, values in ways.items()})


def score_attributes(
    rankings: Mapping[str, Ranking], features: Sequence[Feature], nulls: Sequence[float], truth: VictimTruth
) -> pd.DataFrame:
    """Return two columns for each of `features`, of V * M rows as `score_rankings`: `attribute_NAME` and `null_attribute_NAME`.

    Args:
        rankings: `attribute` over the values of each feature; missing for a batch, where no attribute is ranked.
        nulls: For each feature, how often the best constant guess is right.

    Returns:
        attribute_NAME: 1 where the victim's value comes first, 1 / n where n tie, else 0; NaN where it is unknown or in no public
        record. null_attribute_NAME: the feature's number in `nulls`.
    """
    members, columns = truth.labels.shape[1], dict[str, Tensor]()
    for (column, right), null in zip(told(rankings, "attribute", truth, features).items(), nulls, strict=True):
        columns |= {column: right, f"null_{column}": torch.full_like(right, null)}
    return pd.DataFrame(
        {name: _on_first(values, members) for name, values in columns.items()}, index=range(truth.labels.numel())
    )


def membership(scores: Tensor, own: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Return (share of the non-members that score below the victim's own example, whether it is found), (V,) float64 each.

    Args:
        scores: (V, k).
        own: (V,), the victim's position.
        members: (V, k), which candidates are other examples of the update.

    Returns:
        share: Within one update, the log-likelihood ratio of "this candidate was in the batch" is the candidate's score up to a
        constant of that update, so the share is the area under the curve of the best test for one member. Ties count one half. A
        score that is not finite is the lowest, as for identification, so equal scores give 1/2. NaN without non-members.
        found: 1 where (1 + non-members at least as high) / (1 + non-members) is at most 1 %. For any scores, this is so for at most
        one in a hundred of those that were not in the batch (Phipson and Smyth, Statistical Applications in Genetics and Molecular
        Biology 9, 2010). NaN below 100 non-members, which are too few for that rate.
    """
    known = torch.where(scores.isfinite(), scores, -torch.inf).double()
    mine = known.gather(1, own[:, None])
    others = ~members.scatter(1, own[:, None], True)
    many, below, level = others.sum(1), ((known < mine) & others).sum(1), ((known == mine) & others).sum(1)
    above = torch.where(many > 0, (below + level / 2) / many.clamp_min(1), torch.nan)
    found = (1 + many - below <= FALSE_ALARMS * (1 + many) + 1e-9).double()
    return above.double(), torch.where(many >= LEAST_NON_MEMBERS, found, torch.nan)


def counted(shares: Tensor, labels: Tensor) -> Tensor:
    """Return (V,) float64, the share of a batch's labels (V, M) that is counted right: 1 - sum_c |guess_c - count_c| / (2 M).

    Args:
        shares: (V, classes), the expected share of each class, up to a factor; -inf for a class that is excluded. The guess is
            the nearest integers >= 0 with the sum M, which is rounding by largest remainder where all shares are >= 0. Shares
            that are not finite give no guess, and 0.
    """
    possible, many = shares != -torch.inf, labels.shape[1]
    whole = shares.double().where(possible, 0.0)
    wanted = (many * whole / whole.sum(1, keepdim=True)).masked_fill(~possible, -torch.inf)
    true = torch.zeros_like(whole).scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float64))
    right = 1 - (rounded(wanted, many) - true).abs().sum(1) / (2 * many)
    return right.where(whole.isfinite().all(1), 0.0)


def _on_first(values: Tensor, members: int) -> np.ndarray:
    rows = torch.full((len(values), members), torch.nan, dtype=torch.float64)
    rows[:, 0] = values
    return np.asarray(rows.reshape(-1))
