"""Scores that compare a reconstructed table with the truth: which features are right, and in which records all are right.

Counted as in TabLeak (Vero et al., ICML 2023, arXiv:2210.01785; released code at 6b8c1c8, `utils/eval_metrics.py` and
`create_tolerance_map`): a category is right where the largest of its columns is the true one, a number where it is within
0.319 standard deviations of the true one. A Gaussian number is that close to its mean with probability 1/4. The released
code rounds numbers to integers first; here they are compared as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakbench.data.columns import Columns

__all__ = ["NO_FEATURES", "TOLERANCE", "TableScores", "match_features", "table_scores"]

TOLERANCE = 0.319
NO_FEATURES = "n/a: pictures"


@dataclass(frozen=True)
class TableScores:
    """Both scores, float64, NaN without a reconstruction.

    A category that the record itself leaves open (all its columns 0) has no right value and is not counted; TabLeak drops such
    records.

    Args:
        feature_accuracy: (V, M) in [0, 1], the share of a record's features that are right.
        record_match: (V, M), 1 where all its features are right, else 0.
    """

    feature_accuracy: Tensor
    record_match: Tensor


def table_scores(answer: Tensor, truth: Tensor, columns: Columns) -> TableScores:
    """Score answers (V, M, d) for the true records (V, M, d), each answer at the truth that `match_features` gives it."""
    order = match_features(answer, truth, columns)
    matched = answer.gather(1, order[..., None].expand_as(answer))
    wrong, known = _wrong(matched, truth, columns), _known(truth, columns)
    answered = matched.isfinite().all(-1)
    accuracy = 1 - (wrong & known).sum(-1) / known.sum(-1).double()
    match = (~(wrong & known).any(-1)).double()
    return TableScores(accuracy.masked_fill(~answered, torch.nan), match.masked_fill(~answered, torch.nan))


def match_features(answer: Tensor, truth: Tensor, columns: Columns) -> Tensor:
    """Return the order (V, M) int64 in which `answer[v, order[v, m]]` is the answer for `truth[v, m]`.

    One answer goes to one truth, at the least total share of wrong features (Hungarian method, as TabLeak's
    `match_reconstruction_ground_truth`); both (V, M, d). No answer (NaN) costs the same at every truth, so that it takes the one
    that fits no other. Raises ValueError where the shapes differ.
    """
    if answer.shape != truth.shape or truth.dim() != 3 or truth.shape[-1] != columns.width:
        raise ValueError(
            f"answer: got shape {tuple(answer.shape)} for a truth of {tuple(truth.shape)}, expected (V, M, {columns.width})"
        )
    wrong = _wrong(answer[:, None], truth[:, :, None], columns)
    known = _known(truth, columns)[:, :, None]
    cost = (wrong & known).sum(-1) / known.sum(-1).clamp_min(1).double()
    cost = torch.where(answer.isfinite().all(-1)[:, None], cost, 1.0)
    orders = [torch.as_tensor(linear_sum_assignment(c)[1]) for c in cost.cpu().numpy()]
    return torch.stack(orders).to(truth.device)


def _wrong(answer: Tensor, truth: Tensor, columns: Columns) -> Tensor:
    """Return (..., F) bool for answers and truths that broadcast to (..., d); categories that are open are compared too."""
    each = []
    for feature in columns.features:
        given, true = (x[..., feature.start : feature.stop] for x in (answer, truth))
        if feature.values:
            each.append(given.argmax(-1) != true.argmax(-1))
        else:
            off = (given.double().clamp(0, 1) - true.double())[..., 0].abs()
            each.append(~(off <= TOLERANCE * float(columns.deviation[feature.start])))
    return torch.stack(each, -1)


def _known(truth: Tensor, columns: Columns) -> Tensor:
    """Return (..., F) bool: whether the record says anything of the feature."""
    each = [
        (truth[..., f.start : f.stop] > 0).any(-1) if f.values else truth[..., f.start] >= 0 for f in columns.features
    ]
    return torch.stack(each, -1)
