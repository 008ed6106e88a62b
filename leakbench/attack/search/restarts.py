"""Several searches for each victim, and the best of them by the attacker's own distance."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.slots.descent import Descended

__all__ = ["best_of"]


def best_of(found: Descended, restarts: int) -> tuple[Descended, Tensor]:
    """Return (what the best of n = `restarts` searches found for each of V victims, its lane (V,) among all).

    Args:
        found: Of n * V lanes, in which victim v's r-th search is lane r * V + v. A snapshot is the best among the n until then.
            Iterations are counted one by one: the n searches take their t-th iterations as numbers n * (t - 1) + 1 to n * t, and
            that is the order of the trajectory (n * iterations, V). steps and evaluations are sums over the n.
    """
    victims = found.value.numel() // restarts
    everyone = torch.arange(victims, device=found.value.device)

    def lanes_of_least(values: Tensor) -> Tensor:
        return values.reshape(restarts, victims).argmin(0) * victims + everyone

    chosen = lanes_of_least(found.value)
    least = found.trajectory.nan_to_num(nan=torch.inf).cummin(0).values
    snapshots = [
        points[lanes_of_least(least[at - 1])] for points, at in zip(found.snapshots[:-1], found.at[:-1], strict=True)
    ]
    best = found.best[chosen]
    return Descended(
        best=best,
        value=found.value[chosen],
        trajectory=found.trajectory.reshape(-1, victims),
        steps=found.steps.reshape(restarts, victims).sum(0),
        evaluations=found.evaluations.reshape(restarts, victims).sum(0),
        snapshots=torch.stack([*snapshots, best]),
        at=tuple(restarts * at for at in found.at),
        spent=found.spent.reshape(-1, restarts, victims).sum(1),
    ), chosen
