"""What single examples would have shown had each stood alone behind what leaked: the hypotheses of every ranking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from leakbench.federated.leakage import Public, View
from leakbench.models import one_hot
from leakbench.types import Parameters

__all__ = ["fitting", "flat", "gradients_alone"]


def gradients_alone(view: View, examples: Public, chunk: int = 64) -> Iterator[Tensor]:
    """Yield the gradients (n, p) that each example would have shown alone, in order, n <= chunk at a time."""
    alone = replace(
        view, tap="type-0" if view.tap == "global" else view.tap, update={}, cohort=1, local_steps=1, batch=1
    )
    inputs, targets = examples.inputs, one_hot(examples.labels, view.classes).to(examples.inputs)
    chunk = min(chunk, fitting(view, 600_000_000))
    with torch.no_grad():
        for x, y in zip(torch.split(inputs, chunk), torch.split(targets, chunk), strict=True):
            yield flat(alone.respond(x[:, None], y[:, None]))


def fitting(view: View, budget: int) -> int:
    """Return how many of the network's gradients fit into `budget` bytes; 4 at least, as two halves of two."""
    return max(4, budget // (4 * sum(u[0].numel() for u in view.update.values())))


def flat(gradients: Parameters) -> Tensor:
    """Return {p: (V, *p)} side by side, (V, p)."""
    return torch.cat([g.flatten(1) for g in gradients.values()], 1)
