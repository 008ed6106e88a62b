"""How many lanes go together: as many as fit into the cache of a core or of all of them, and no more than memory has room for."""

from __future__ import annotations

import torch

from leakbench.engine.memory import memory_of

__all__ = ["ALL_CACHES", "CORE_CACHE", "lanes_within", "memory_budget"]

CORE_CACHE = 8_000_000
"""Bytes of the gradients of the lanes that one core trains; measured best (docs/performance.md)."""

ALL_CACHES = 16_000_000
"""Bytes of those on which all cores work together."""

MEMORY = 3_000_000_000
"""Bytes that the victims of one chunk may take on a machine that has enough."""


def lanes_within(budget: int, each: int, most: int | None = None) -> int:
    """Return how many lanes of `each` bytes fit into `budget` bytes: one at least, `most` at most."""
    fit = max(1, budget // max(1, each))
    return fit if most is None else min(most, fit)


def memory_budget(device: torch.device) -> int:
    """Return the bytes that a chunk of victims may take: 3 GB, and of a small machine's or GPU's memory a quarter."""
    return min(MEMORY, memory_of(device) // 4)
