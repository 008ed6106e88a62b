"""Groups of public examples: the mean gradient of each, and how well each explains what leaked of one example."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.federated.view import View

__all__ = ["Groups", "explained", "group_means"]


@dataclass(frozen=True)
class Groups:
    """Of public gradients by group: means (groups, p), that of all where a group has none; shares (groups,) of the groups."""

    means: Tensor
    shares: Tensor


def group_means(gradients: Iterable[Tensor], groups: Tensor, many: int) -> Groups:
    """Return the means of public gradients, which come as pieces of (n, p), by groups (n,) int64 in [0, many)."""
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
    # In place: behind an imprint for each of a hundred clients the sums of ten classes are 3 GB.
    means = sums.div_(counts[:, None].clamp_min(1))
    means[counts == 0] = overall
    return Groups(means, counts / counts.sum())


def explained(view: View, observed: Tensor, found: Groups, where_sent: bool = False) -> Tensor:
    """Return scores (V, groups) of what leaked (V, p) of one example each; -inf for groups without a public example.

    With a noise of known variance s^2: log p_g + <y, m_g> / s^2 - |m_g|^2 / (2 s^2), the log-posterior up to a constant of the
    victim were all examples of a group alike; else the cosine of y and m_g.

    Args:
        where_sent: Whether the length of m_g counts only the coordinates that are not zero in y.
    """
    if view.noise:
        likelihood = observed @ found.means.T - found.means.square().sum(1) / 2
        scores = found.shares.log() + likelihood / view.noise**2
    elif where_sent:
        lengths = ((observed != 0).to(found.means) @ found.means.square().T).sqrt()
        scores = torch.nn.functional.normalize(observed) @ found.means.T / lengths.clamp_min(1e-12)
    else:
        scores = torch.nn.functional.normalize(observed) @ torch.nn.functional.normalize(found.means).T
    return scores.masked_fill(found.shares == 0, -torch.inf)
