"""A budget of privacy: when it is spent, training stops."""

from __future__ import annotations

from typing import Literal

from leakbench.part import Positive, Probability, part

__all__ = ["Budget"]


@part("budget")
class Budget:
    """Train as long as epsilon at `delta` is at most `epsilon`, that is, delta at `epsilon` is at most `delta`.

    Args:
        of: The epsilon to use: the `claimed` one, by the paper's own accountant, or the `valid` one of released models.
    """

    epsilon: Positive
    delta: Probability = 1e-5
    of: Literal["claimed", "valid"] = "valid"
