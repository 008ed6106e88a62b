"""The classical Gaussian mechanism, which papers calibrate by: noise of c / epsilon times the sensitivity."""

from __future__ import annotations

import math

__all__ = ["least_constant"]


def least_constant(delta: float) -> float:
    """Return c = sqrt(2 ln(1.25 / delta)), the least with which the theorem holds, for epsilon < 1 only; 0 < delta < 1.

    Dwork and Roth, The Algorithmic Foundations of Differential Privacy, 2014, Theorem A.1.
    """
    return math.sqrt(2 * math.log(1.25 / delta))
