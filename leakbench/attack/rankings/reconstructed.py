"""Identification by a reconstruction: finds the nearest candidate, and whether it is certain to be the victim.

The likelihood of the observed gradient identifies victims under noise at which no image can be reconstructed. For a batch, it
approximates the other examples, and a good reconstruction then identifies more. The attacker chooses one of them for each victim
from what it observes.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from leakbench.attack.batch_features import decided
from leakbench.attack.posterior import missed
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.data.vocabulary import Vocabulary
from leakbench.federated.view import Public, View
from leakbench.measure.metrics import pairwise_rmse
from leakbench.measure.metrics_texts import pairwise_edit_distance
from leakbench.measure.rates import IDENTIFIED
from leakbench.measure.recognised import high_passed, scaled

__all__ = ["CALIBRATION", "by_both", "certain", "chosen", "explains", "nearest"]

CALIBRATION = 1000
"""Largest number of public examples that calibrate the evidence of a reconstruction."""

PICTURE = 4
"""Number of axes of several images (n, C, H, W)."""

SAME = 1e-6
"""RMSE below which a public example is a copy of a candidate."""

EXPLAINED = 0.01
"""Largest share of the distance of mean images that the distance of an accepted reconstruction may have."""


def by_both(
    views: tuple[View, ...],
    likelihood: Ranking,
    candidates: Public,
    public: Tensor,
    answer: Reconstruction | Ranking,
) -> dict[str, Ranking]:
    """Rank candidates by the likelihood, by the reconstruction, and by the one that the attacker chooses for each victim.

    Args:
        views: Views of V victims by an attacker that knows the defense.
        likelihood: Scores of the candidates by the observed gradients.
        candidates: The k candidates.
        public: Public examples (P, *s); the first `CALIBRATION` are enough.
        answer: The result of the attack.

    Returns:
        Rankings by the names of their measures; only the likelihood's if the attack is itself a ranking.
    """
    alone = {"identified_by_likelihood": likelihood}
    if isinstance(answer, Ranking):
        return alone
    words = views[0].vocabulary
    near = nearest(answer.inputs, candidates.inputs, words)
    sure = certain(near, public, candidates.inputs, words)
    if views[0].examples > 1:  # The likelihood of one example is exact; that of one of a batch is not.
        sure = (sure | explains(views, answer, public)) & ~decided(views[0], candidates).to(sure.device)
    return {**alone, "identified_by_reconstruction": near, IDENTIFIED.name: chosen(likelihood, near, sure)}


def nearest(inputs: Tensor, candidates: Tensor, words: Vocabulary | None = None) -> Ranking:
    """Rank candidates by their distance from the nearest reconstruction in the victim's batch.

    The distance of images is the RMSE after a high-pass filter and a scaling to equal contrast. Reconstructions often have low
    contrast, and the RMSE of the images themselves then prefers candidates with low contrast. The distance of tables is the RMSE,
    that of texts the edit distance.

    Args:
        inputs: Reconstructions (V, M, *s) in [0, 1]; NaN for missing ones.
        candidates: (k, *s).
        words: The tokens of texts; None for other data.

    Returns:
        Scores (V, k): minus the distance, NaN for a victim without reconstructions.
    """
    victims, members = inputs.shape[:2]
    flat = inputs.flatten(0, 1)
    distance = _distance(flat if words else flat.clamp(0, 1), candidates.to(inputs), words).reshape(
        victims, members, -1
    )
    closest = distance.nan_to_num(nan=torch.inf).amin(1)
    return Ranking(-closest.masked_fill(closest.isinf(), torch.nan))


def certain(near: Ranking, public: Tensor, candidates: Tensor, words: Vocabulary | None = None) -> Tensor:
    """Return (V,) bool, whether a reconstruction shows by itself which candidate it is.

    The evidence is the ratio of the distances from the nearest and from the second nearest candidate (Lowe, IJCV 60, 2004,
    section 7.1). It is small for an image of a candidate and near 1 for any other image. A reconstruction is certain if its ratio
    is smaller than those of all public examples, which are not candidates. A reconstruction that is unrelated to the candidates
    is then certain about once in P + 1 cases, for P public examples.

    Args:
        near: The result of `nearest`.
        public: Public examples (P, *s); copies of candidates among them do not count.
        candidates: (k, *s).
        words: The tokens of texts; None for other data.
    """
    if len(candidates) < 2:
        return torch.zeros(len(near.scores), dtype=torch.bool, device=near.scores.device)
    apart = _distance(public.to(candidates), candidates, words)
    others = _ratio(apart[apart.amin(1) > SAME])
    limit = others.amin() if len(others) else 0.0
    return _ratio(-near.scores) < limit


def explains(views: tuple[View, ...], answer: Reconstruction, public: Tensor) -> Tensor:
    """Return (V,) bool, whether a reconstruction explains the observed gradients.

    The squared distance of its gradients from the observed ones must be at most the share `EXPLAINED` of that of the public mean
    with the same labels. Noise as strong as the contribution of a single example cannot be explained; the likelihood then
    decides.

    Args:
        views: Views of V victims by an attacker that knows the defense.
        answer: The reconstructions.
        public: Public examples (P, *s).
    """
    # A mean of tokens is no sentence, so that one sentence takes its place.
    mean = public.to(answer.inputs)
    mean = (mean[0] if views[0].vocabulary else mean.mean(0)).expand_as(answer.inputs)
    # A missing example has no label, and a reconstruction with missing examples explains nothing.
    whole = (answer.labels >= 0).all(1)
    answer = dataclasses.replace(answer, labels=answer.labels.clamp_min(0))
    dull = dataclasses.replace(answer, inputs=mean.contiguous())
    left, most = (torch.stack([missed(view, some)[0] for view in views]).sum(0) for some in (answer, dull))
    return (left <= EXPLAINED * most) & whole.to(left.device)


def chosen(likelihood: Ranking, reconstruction: Ranking, which: Tensor) -> Ranking:
    """Return the scores (V, k) by the reconstruction for the victims in `which` (V,) bool, by the likelihood for the others."""
    return Ranking(torch.where(which[:, None], reconstruction.scores.to(likelihood.scores), likelihood.scores))


def _distance(some: Tensor, others: Tensor, words: Vocabulary | None) -> Tensor:
    """Return the distances (n, k) of examples (n, *s) and (k, *s)."""
    if words is not None:
        return pairwise_edit_distance(some, others, words)
    if some.dim() != PICTURE:
        return pairwise_rmse(some, others)
    return pairwise_rmse(*(scaled(high_passed(x.double())) for x in (some, others)))


def _ratio(distance: Tensor) -> Tensor:
    """Return the smallest of distances (n, k) over the second smallest (n,); 1 if both are zero, NaN if they are NaN."""
    nearest_two = distance.topk(2, dim=1, largest=False).values
    first, second = nearest_two.unbind(1)
    return (first / second).masked_fill(second == 0, 1.0)
