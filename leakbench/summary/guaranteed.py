"""Whether a leakage point is guaranteed: by a bound that follows from a valid epsilon and is below a stated limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CANDIDATES", "LIMIT", "guaranteed"]

LIMIT = 0.02
"""The largest bound on the identification rate that is called a guarantee."""

CANDIDATES = 1000
"""Among so many candidates. A bound among fewer also holds among so many, since picking one of fewer is easier."""


def guaranteed(tap: Mapping[str, Any], violations: Sequence[Any]) -> float | None:
    """Return the guaranteed limit of the identification rate at a leakage point; None where none is guaranteed.

    Args:
        tap: The summary of the leakage point, with `identified_bound`, which exists only where a valid epsilon follows from
            what leaked, and `candidates`.
        violations: Measurements at the leakage point that are significantly above their bounds.
    """
    bound = tap["identified_bound"]
    if violations or bound is None or bound > LIMIT or tap["candidates"] > CANDIDATES:
        return None
    return float(bound)
