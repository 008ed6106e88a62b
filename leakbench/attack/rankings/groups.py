"""Mean public gradients by group, and how well each explains the observed gradient of one example."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.federated.view import View

__all__ = ["Groups", "explained", "group_means"]


@dataclass(frozen=True)
class Groups:
    """Public gradients by group.

    Args:
        means: Mean gradients (groups, p); the mean of all for a group without examples.
        shares: Share (groups,) of the public examples in each group.
    """

    means: Tensor
    shares: Tensor


def group_means(gradients: Iterable[Tensor], groups: Tensor, many: int) -> Groups:
    """Return the mean public gradients by group.

    Args:
        gradients: Chunks (n, p) of the gradients.
        groups: The group (P,) int64 of each example, in [0, many).
        many: Number of groups.
    """
    sums: Tensor | None = None
    start = 0
    for some in gradients:
        sums = some.new_zeros(many, some.shape[1]) if sums is None else sums
        sums.index_add_(0, groups[start : start + len(some)], some)
        start += len(some)
    if sums is None:
        raise ValueError("gradients: got none, expected one a public example")
    counts = torch.bincount(groups, minlength=many).to(sums)
    overall = sums.sum(0) / counts.sum()
    # In place: with an imprint for each of a hundred clients, the sums of ten classes take 3 GB.
    means = sums.div_(counts[:, None].clamp_min(1))
    means[counts == 0] = overall
    return Groups(means, counts / counts.sum())


def explained(view: View, observed: Tensor, groups: Groups, where_sent: bool = False) -> Tensor:
    """Return scores (V, groups) of the groups for the observed gradients of one example each.

    With noise of known variance s^2, the score is log p_g + <y, m_g> / s^2 - |m_g|^2 / (2 s^2). It is the log-posterior, up to a
    constant of the victim, if all examples of a group were equal. Without known noise, it is the cosine of y and m_g.

    Args:
        view: The view of V victims.
        observed: Their gradients (V, p).
        groups: The public gradients by group.
        where_sent: Whether the length of m_g counts only the nonzero coordinates of y.

    Returns:
        -inf for groups without a public example.
    """
    if view.noise:
        likelihood = observed @ groups.means.T - groups.means.square().sum(1) / 2
        scores = groups.shares.log() + likelihood / view.noise**2
    elif where_sent:
        lengths = ((observed != 0).to(groups.means) @ groups.means.square().T).sqrt()
        scores = torch.nn.functional.normalize(observed) @ groups.means.T / lengths.clamp_min(1e-12)
    else:
        scores = torch.nn.functional.normalize(observed) @ torch.nn.functional.normalize(groups.means).T
    return scores.masked_fill(groups.shares == 0, -torch.inf)
