"""Chooses the best of several searches for each victim, by the attacker's own distance."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.slots.descent import Descended

__all__ = ["best_of"]


def best_of(results: Descended, restarts: int) -> tuple[Descended, Tensor]:
    """Return the best of n searches for each of V victims.

    Args:
        results: The result of n * V lanes. Lane r * V + v is the r-th search for victim v.
        restarts: n.

    Returns:
        The result for V victims, and the lane (V,) of the best search. The searches take turns: the t-th iterations of the n
        searches are the iterations n * (t - 1) + 1 to n * t of the trajectory (n * iterations, V). A snapshot is the best of the n
        until then. `steps` and `evaluations` are sums over the n.
    """
    victims = results.value.numel() // restarts
    everyone = torch.arange(victims, device=results.value.device)

    def lanes_of_least(values: Tensor) -> Tensor:
        return values.reshape(restarts, victims).argmin(0) * victims + everyone

    chosen = lanes_of_least(results.value)
    least = results.trajectory.nan_to_num(nan=torch.inf).cummin(0).values
    snapshots = [
        points[lanes_of_least(least[at - 1])]
        for points, at in zip(results.snapshots[:-1], results.at[:-1], strict=True)
    ]
    best = results.best[chosen]
    return Descended(
        best=best,
        value=results.value[chosen],
        trajectory=results.trajectory.reshape(-1, victims),
        steps=results.steps.reshape(restarts, victims).sum(0),
        evaluations=results.evaluations.reshape(restarts, victims).sum(0),
        snapshots=torch.stack([*snapshots, best]),
        at=tuple(restarts * at for at in results.at),
        spent=results.spent.reshape(-1, restarts, victims).sum(1),
    ), chosen
