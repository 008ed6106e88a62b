"""Quantisation with random rounding: each coordinate becomes one of a few levels, and keeps its mean."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.part import Count, part
from leakbench.core.rng import uniform
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.transform import apart, together
from leakbench.engine.rows import length

__all__ = ["Qsgd"]

ROUNDED = (
    "random rounding leaves a coordinate that is on a level as it is, so that two updates can be told apart for sure"
)

ROUNDING = 1 / 6
"""Mean variance of a rounding between two levels, in squared units of their distance: the mean of f (1 - f) over f in [0, 1]."""


@part("transform.qsgd")
class Qsgd:
    """Round every coordinate at random to one of the two levels next to it, so that its mean is the coordinate.

    QSGD (Alistarh et al., NeurIPS 2017, section 3.1): the levels of a bucket of length |v| are |v| l / s for l = 0 to s, and a
    coordinate at a |v| / s has level floor(a) + 1 with probability a - floor(a). The buckets are consecutive coordinates over all
    tensors of a member. The bucket's length and the levels are sent.
    """

    levels: Annotated[Count, Field(description="Number s of levels above zero.")]
    bucket: Annotated[Count, Field(description="Number of coordinates with one scale.")] = 512
    scale: Annotated[
        Literal["length", "largest"],
        Field(
            description="Scale of a bucket: its L2 norm (`length`), or its `largest` magnitude, as in the paper's experiments."
        ),
    ] = "length"

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Round; `sensitivity` stays. Without `rngs` the gradients stay as they are, which is the mean of the result."""
        fact = Fact("other", reason=ROUNDED)
        if rngs is None:
            return signal.replace(dict(signal.grads), signal.sensitivity, fact)
        flat = together(signal.grads)
        values = self._buckets(flat)
        unit = (length(values, -1) if self.scale == "length" else values.abs().amax(-1)).unsqueeze(-1) / self.levels
        level = values.abs() / torch.where(unit == 0, 1.0, unit)
        lower = level.floor()
        up = uniform(values, rngs, signal.members) < level - lower
        rounded = (values.sign() * (lower + up) * unit).flatten(2)
        whole = rounded[:, :, : flat.shape[2]]
        return signal.replace(apart(whole, signal.grads), signal.sensitivity, fact)

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,), the sum over the coordinates of (guess - seen)^2 / (2 w u^2), with the distance u of two levels.

        The variance of a rounding is f (1 - f) u^2 for a fraction f. Its mean w u^2 over a bucket is estimated by w = 1/6, or by
        the mean level if this is smaller: most coordinates are then far below the first level, where f (1 - f) is about the
        level. A bucket shows u as its smallest magnitude that is not zero. Buckets of zeros count nothing. Returns None if
        `seen` is not one member's levels.
        """
        values = self._buckets(together(seen, 1))
        sizes = values.abs()
        unit = sizes.masked_fill(sizes == 0, torch.inf).amin(-1, keepdim=True)
        level = sizes / unit
        # Rounding errors of the division by the learning rate are relative to the level.
        if bool(((level - level.round()).abs() > 1e-4 * (1 + level)).any()):
            return None
        rest = self._buckets(together(guess, 1)) - values
        variance = level.mean(-1, keepdim=True).clamp_max(ROUNDING).where(unit.isfinite(), 1.0)
        return ((rest / unit).square() / (2 * variance)).flatten(1).sum(1)

    def _buckets(self, values: Tensor) -> Tensor:
        """Return values (..., d) as (..., buckets, bucket), the last bucket filled with zeros."""
        missing = -values.shape[-1] % self.bucket
        filled: Tensor = torch.nn.functional.pad(values, (0, missing))
        return filled.reshape(*values.shape[:-1], -1, self.bucket)
