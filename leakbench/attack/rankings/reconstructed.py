"""Identification by a reconstruction: which candidate is nearest, and does the attacker have evidence that it is the victim?

The likelihood of what leaked identifies victims under noise at which no picture can be reconstructed. Behind a batch it has to
guess the other examples, and then a good reconstruction identifies more. The attacker chooses for each victim, by what it can see.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from leakbench.answers import Ranking, Reconstruction
from leakbench.attack.batch_features import decided
from leakbench.attack.posterior import missed
from leakbench.federated.view import Public, View
from leakbench.measure.metrics import pairwise_rmse
from leakbench.measure.rates import IDENTIFIED
from leakbench.measure.recognised import high_passed, scaled

__all__ = ["CALIBRATION", "by_both", "certain", "chosen", "explains", "nearest"]

CALIBRATION = 1000
"""Largest number of public examples by which the evidence of a reconstruction is judged."""

PICTURE = 4
"""Dimensions of several pictures, (n, C, H, W)."""

SAME = 1e-6
"""RMSE below which a public example is a copy of a candidate."""

EXPLAINED = 0.01
"""Share of what mean pictures leave unexplained that a reconstruction may leave, to be taken for right."""


def by_both(
    views: tuple[View, ...],
    likelihood: Ranking,
    shown: Public,
    public: Tensor,
    answer: Reconstruction | Ranking,
) -> dict[str, Ranking]:
    """Return who was identified by either way and by the one that the attacker chooses; by the likelihood without the other.

    Args:
        views: of V victims, shown to an attacker that knows the defense.
        likelihood: the scores of the candidates by what leaked.
        shown: the k candidates.
        public: (P, *s) public examples, of which no more than `CALIBRATION` are needed.
        answer: of the attack.
    """
    alone = {"identified_by_likelihood": likelihood}
    if isinstance(answer, Ranking):
        return alone
    near = nearest(answer.inputs, shown.inputs)
    sure = certain(near, public, shown.inputs)
    if views[0].examples > 1:  # The likelihood of one example is exact; that of one of a batch is not.
        sure = (sure | explains(views, answer, public)) & ~decided(views[0], shown).to(sure.device)
    return {**alone, "identified_by_reconstruction": near, IDENTIFIED.name: chosen(likelihood, near, sure)}


def nearest(inputs: Tensor, candidates: Tensor) -> Ranking:
    """Return minus the distance (V, k) of each candidate from the nearest reconstruction in the victim's batch.

    The distance of pictures is the RMSE after a high-pass and a scaling to equal contrast: reconstructions are often dull, and the
    RMSE of the pictures themselves then prefers dull candidates. The distance of tables is the RMSE.

    Args:
        inputs: (V, M, *s) reconstructions in [0, 1]; NaN where there is none. A victim without any gets NaN.
        candidates: (k, *s).
    """
    victims, members = inputs.shape[:2]
    distance = _distance(inputs.flatten(0, 1).clamp(0, 1), candidates.to(inputs)).reshape(victims, members, -1)
    closest = distance.nan_to_num(nan=torch.inf).amin(1)
    return Ranking(-closest.masked_fill(closest.isinf(), torch.nan))


def certain(found: Ranking, public: Tensor, candidates: Tensor) -> Tensor:
    """Return (V,) bool, whether a reconstruction shows by itself which candidate it is.

    The evidence is the ratio of the distances from the nearest and from the second nearest candidate (Lowe, IJCV 60, 2004, section
    7.1). It is near 1 for a picture that is none of the candidates, and small for a picture of a candidate. It is certain where the
    ratio is smaller than that of every public example, none of which is a candidate. A reconstruction that has nothing to do with
    the candidates is then certain about once in P + 1 for P public examples.

    Args:
        found: the answer of `nearest`.
        public: (P, *s) public examples; copies of candidates among them do not count.
        candidates: (k, *s).
    """
    if len(candidates) < 2:
        return torch.zeros(len(found.scores), dtype=torch.bool, device=found.scores.device)
    apart = _distance(public.to(candidates), candidates)
    others = _ratio(apart[apart.amin(1) > SAME])
    limit = others.amin() if len(others) else 0.0
    return _ratio(-found.scores) < limit


def explains(views: tuple[View, ...], answer: Reconstruction, public: Tensor) -> Tensor:
    """Return (V,) bool, whether a reconstruction explains what leaked.

    It does where its gradient misses what leaked by at most the share `EXPLAINED` of the squared distance by which the public mean
    does, with the same labels. Noise that is as strong as what single examples contribute cannot be explained, so that the
    likelihood then decides.

    Args:
        views: of an attacker that knows the defense.
        answer: its reconstructions.
        public: (P, *s) public examples.
    """
    mean = public.to(answer.inputs).mean(0).expand_as(answer.inputs)
    # A member without an answer has no label, and an answer that lacks members explains nothing.
    whole = (answer.labels >= 0).all(1)
    answer = dataclasses.replace(answer, labels=answer.labels.clamp_min(0))
    dull = dataclasses.replace(answer, inputs=mean.contiguous())
    left, most = (torch.stack([missed(view, some)[0] for view in views]).sum(0) for some in (answer, dull))
    return (left <= EXPLAINED * most) & whole.to(left.device)


def chosen(likelihood: Ranking, reconstruction: Ranking, which: Tensor) -> Ranking:
    """Return the scores (V, k) by the reconstruction for the victims in `which` (V,), else by the likelihood."""
    return Ranking(torch.where(which[:, None], reconstruction.scores.to(likelihood.scores), likelihood.scores))


def _distance(some: Tensor, others: Tensor) -> Tensor:
    """Return the distances (n, k) of examples (n, *s) and (k, *s)."""
    if some.dim() != PICTURE:
        return pairwise_rmse(some, others)
    return pairwise_rmse(*(scaled(high_passed(x.double())) for x in (some, others)))


def _ratio(distance: Tensor) -> Tensor:
    """Return (n,) the smallest of distances (n, k) over the second smallest; 1 where both are zero, NaN where they are NaN."""
    nearest_two = distance.topk(2, dim=1, largest=False).values
    first, second = nearest_two.unbind(1)
    return (first / second).masked_fill(second == 0, 1.0)
