"""The number of lanes per computation: as many as fit into the caches and into memory."""

from __future__ import annotations

import torch

from leakbench.engine.memory import memory_of

__all__ = ["ALL_CACHES", "CORE_CACHE", "lanes_within", "memory_budget"]

CORE_CACHE = 8_000_000
"""Bytes of gradients per core for the fastest training; measured (docs/performance.md)."""

ALL_CACHES = 16_000_000
"""Bytes of gradients for a computation on all cores."""

MEMORY = 3_000_000_000
"""Largest number of bytes for the victims of one chunk."""


def lanes_within(budget: int, each: int, most: int | None = None) -> int:
    """Return the number of lanes of `each` bytes that fit into `budget` bytes, at least 1 and at most `most`."""
    fit = max(1, budget // max(1, each))
    return fit if most is None else min(most, fit)


def memory_budget(device: torch.device) -> int:
    """Return the number of bytes for a chunk of victims: 3 GB, or a quarter of the machine's or GPU's memory if that is less."""
    return min(MEMORY, memory_of(device) // 4)
