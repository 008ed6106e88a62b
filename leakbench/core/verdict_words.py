"""The words of a verdict."""

from __future__ import annotations

import math

__all__ = [
    "FAILED",
    "IDENTIFIES",
    "INCONCLUSIVE",
    "LEAKING",
    "NO_LEAK",
    "RECONSTRUCTS",
    "VERDICTS",
    "resilient",
]

RECONSTRUCTS = "reconstructs"
IDENTIFIES = "identifies"
NO_LEAK = "no leak found"
INCONCLUSIVE = "inconclusive"
FAILED = "attack failed"

VERDICTS = (RECONSTRUCTS, IDENTIFIES, INCONCLUSIVE, FAILED, NO_LEAK)
"""All of them, from the strongest evidence of a leak to the strongest evidence against one."""

LEAKING = (RECONSTRUCTS, IDENTIFIES)
"""Verdicts that state a significant leak."""


def resilient(word: str) -> float:
    """Return 1 where no leak was found, 0 where there is one, NaN where the evidence decides neither."""
    return {NO_LEAK: 1.0, RECONSTRUCTS: 0.0, IDENTIFIES: 0.0}.get(word, math.nan)
