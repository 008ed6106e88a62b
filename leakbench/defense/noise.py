"""Gaussian noise, scaled by the signal's sensitivity, and Laplace noise of a fixed scale."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, part
from leakbench.core.rng import normal
from leakbench.core.types import Clock, Fact, Generators, Signal
from leakbench.privacy.decay import Multiplier

__all__ = ["GaussianNoise", "LaplaceNoise", "laplace"]


@part("transform.gaussian_noise")
class GaussianNoise:
    """Add Gaussian noise of standard deviation multiplier * S, where S is the signal's sensitivity."""

    multiplier: Annotated[
        Multiplier,
        Field(description="Noise multiplier sigma: a number >= 0, or a schedule (`leakbench.privacy.decay`)."),
    ]
    to: Annotated[
        Literal["each", "sum", "mean"],
        Field(
            description=(
                "Target of the noise. `each`: every member gets its own noise (Fed-alphaCDP, section 5.2). `sum`: the sum gets "
                "one noise (DP-SGD; accountants assume it), of standard deviation multiplier * S / n on a mean of n items. "
                "`mean`: the mean gets one noise (Fed-alphaCDP, Algorithm 1, line 18), n times that of `sum`."
            )
        ),
    ]
    uncalibrated: Annotated[
        bool,
        Field(description="Whether noise without a clip before it is allowed; S is then 1 and no epsilon follows."),
    ] = False

    @property
    def acts_on(self) -> Literal["each", "sum", "mean"]:
        """See `leakbench.defense.transform.Transform`."""
        return self.to

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise; raises InputError if no clip came before and `uncalibrated` is not set."""
        return self.times(1.0, signal, clock, rngs)

    def times(self, length: float | Tensor, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise multiplied by `length`, a number or (lanes,); the fact states the noise without this factor."""
        scale = signal.sensitivity
        if scale is None and not self.uncalibrated:
            raise InputError(
                "gaussian_noise: no clip before it, so its scale means nothing; put a clip first, or set uncalibrated: true"
            )
        multiplier = self.multiplier(clock) if callable(self.multiplier) else self.multiplier
        items = signal.averaged * signal.members
        drawn = signal.members if self.to == "each" else 1
        divisor = items if self.to == "sum" else 1
        deviation = (1.0 if scale is None else scale) * (length * (multiplier / divisor))
        grads = {}
        for name, g in signal.grads.items():
            by_lane = deviation.to(g) if isinstance(deviation, Tensor) else g.new_full((1,), deviation)
            # One pass over the gradient instead of three (draw, scale, add), which take a tenth of a private iteration.
            grads[name] = torch.addcmul(g, normal(g, rngs, drawn), by_lane.reshape(-1, *[1] * (g.dim() - 1)))
        return signal.replace(grads, scale, self._fact(signal, multiplier, items))

    def _fact(self, signal: Signal, multiplier: float, items: int) -> Fact:
        if signal.sensitivity is None:
            return Fact("uncalibrated_noise", std=multiplier, each=self.to == "each", reason="noise without a clip")
        std = multiplier * float(signal.sensitivity[0])
        return Fact("noise", std=std * items if self.to == "mean" else std, each=self.to == "each")


def laplace(like: Tensor, rngs: Generators | None, members: int) -> Tensor:
    """Return Laplace noise of scale 1, (lanes, members, *p); the arguments are those of `leakbench.core.rng.normal`."""
    # The length of a 2-vector of normals times a normal is Laplace distributed, a normal of exponential variance.
    x, y, z = (normal(like, rngs, members) for _ in range(3))
    return torch.hypot(x, y) * z


@part("transform.laplace_noise")
class LaplaceNoise:
    """Add Laplace noise of scale b, and so of standard deviation sqrt(2) b, to every coordinate of each member.

    No epsilon follows, with or without a clip: Laplace noise is calibrated to an L1 norm, and the clips here bound an L2 norm.
    """

    scale: Annotated[NonNegative, Field(description="Scale b of the noise, in units of the gradient.")]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise; `sensitivity` stays."""
        grads = {}
        for name, g in signal.grads.items():
            grads[name] = g + self.scale * laplace(g, rngs, signal.members)
        fact = Fact(
            "uncalibrated_noise", std=2**0.5 * self.scale, each=True, reason="Laplace noise, and no bound of an L1 norm"
        )
        return signal.replace(grads, signal.sensitivity, fact)
