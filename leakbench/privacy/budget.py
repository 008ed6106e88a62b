"""A privacy budget: training stops when it is spent."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from leakbench.core.part import Positive, Probability, part

__all__ = ["Budget"]


@part("budget")
class Budget:
    """Train as long as epsilon at `delta` is at most `epsilon`, that is, delta at `epsilon` is at most `delta`."""

    epsilon: Annotated[Positive, Field(description="Largest epsilon.")]
    delta: Annotated[Probability, Field(description="Delta of the epsilon, in (0, 1).")] = 1e-5
    of: Annotated[
        Literal["claimed", "valid"],
        Field(
            description="Epsilon to use: the `claimed` one of the paper's accountant, or the `valid` one of released models."
        ),
    ] = "valid"
