"""How many an attacker who saw nothing identifies by chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scipy.stats import binom

__all__ = ["null_interval"]


def null_interval(tap: Mapping[str, Any], confidence: float = 0.95) -> tuple[float, float]:
    """Return the shares (low, high) of the victims between which chance stays with at least this probability.

    tap: `victims` V, each among `candidates` k.  Quantiles of the binomial distribution of V trials at 1 / k, over V.
    """
    victims, chance = int(tap["victims"]), 1.0 / tap["candidates"]
    tail = (1 - confidence) / 2
    low, high = (float(binom.ppf(q, victims, chance)) for q in (tail, 1 - tail))
    return max(0.0, low) / victims, high / victims
