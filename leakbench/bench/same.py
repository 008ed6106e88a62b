"""Whether a reference does the same work: one client's update without noise, ours beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.bench.task import BATCH, CLASSES, RATE, Task
from leakbench.defense.transform import Stations, Transform
from leakbench.federated.client import Examples, client_update
from leakbench.models import one_hot
from leakbench.types import Clock, Network, Parameters

__all__ = ["CHECKED", "CHECKED_CLIP", "TOLERANCE", "check_same", "our_update"]

CHECKED, CHECKED_CLIP = 5, 1.0
"""Local iterations over which updates are compared, and the clip then: it binds on some tensors, that of `fed_cdp` on none."""

TOLERANCE = 1e-5
"""Of the largest coordinate of an update, in float32."""


def our_update(
    task: Task, station: tuple[Transform, ...], inputs: Tensor, labels: Tensor, iterations: int
) -> Parameters:
    """Return the update of one client whose examples pass `station`, batch after batch, nothing drawn."""
    used = iterations * BATCH
    x = inputs[:used].reshape(1, iterations, BATCH, *inputs.shape[1:])
    y = one_hot(labels[:used], CLASSES).reshape(1, iterations, BATCH, CLASSES)
    examples = Examples(x, y, torch.ones(1, iterations, BATCH), BATCH, alone=False)
    stations = Stations(example=station)
    with torch.no_grad():
        update = client_update(
            Network(task.model, task.start), examples, RATE, stations, Clock(0, 0, 1, iterations), None
        )
    return {n: u[0, 0] for n, u in update.grads.items()}


def check_same(what: str, ours: Parameters, theirs: Parameters) -> None:
    """Raise RuntimeError where a reference's update is another one: then its time says nothing about ours."""
    for (name, u), v in zip(ours.items(), theirs.values(), strict=True):
        error = float((u - v).abs().max() / u.abs().max().clamp_min(1e-30))
        if not error <= TOLERANCE:
            raise RuntimeError(f"{what} does other work than ours: {name} differs by {error:.1e} of its largest number")
