"""The ways of private local training that people have without leakbench, by name."""

from __future__ import annotations

import copy

from torch import nn

from leakbench.bench.plain import Step, per_example_step
from leakbench.bench.task import BATCH, CLIP, RATE, SIGMA

__all__ = ["WAYS", "private_step"]

WAYS = ("vmap", "Opacus, layers", "Opacus, flat", "Opacus, ghost")
"""Per-example gradients by torch.func's vmap(grad), or Opacus with one of its clips."""


def private_step(way: str, model: nn.Module, sigma: float = SIGMA) -> tuple[nn.Module, Step]:
    """Return (a copy of the model, its private local iteration)."""
    if way == "vmap":
        own = copy.deepcopy(model)
        return own, per_example_step(own, RATE, CLIP, sigma)
    from leakbench.bench.opacus_loop import opacus_step  # noqa: PLC0415

    return opacus_step(way.removeprefix("Opacus, "), model, RATE, BATCH, CLIP, sigma)
