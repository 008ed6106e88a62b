"""Gaussian noise, scaled by the sensitivity that travels in the signal."""

from __future__ import annotations

from typing import Literal

from leakbench.errors import InputError
from leakbench.rng import normal
from leakbench.types import Clock, Fact, Generators, NonNegative, Signal, part

__all__ = ["GaussianNoise"]


@part
class GaussianNoise:
    """Add Gaussian noise of standard deviation multiplier * S, where S is the signal's sensitivity.

    to: what the standard deviation refers to.
        `each`: every member gets its own noise (Fed-alphaCDP, section 5.2: "to the per-example gradients").
        `sum`: one noise for the sum over all that is merged (the DP-SGD convention, and the one accountants assume): on a
        mean of n items its standard deviation is multiplier * S / n.
        `mean`: one noise for the mean itself (Fed-alphaCDP, Algorithm 1, line 18): n times that of `sum`.
    uncalibrated: allow noise without a clip before it; S is then 1 and no epsilon follows.
    """

    multiplier: NonNegative
    to: Literal["each", "sum", "mean"]
    uncalibrated: bool = False

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise; raises InputError where no clip came before and `uncalibrated` is not set."""
        scale = signal.sensitivity
        if scale is None and not self.uncalibrated:
            raise InputError(
                "gaussian_noise: no clip before it, so its scale means nothing; put a clip first, or set uncalibrated: true"
            )
        items = signal.averaged * signal.members
        drawn = signal.members if self.to == "each" else 1
        divisor = items if self.to == "sum" else 1
        grads = {}
        for name, g in signal.grads.items():
            std = self.multiplier / divisor
            noise = normal(g, rngs, drawn) * std
            if scale is not None:
                noise = noise * scale.reshape(-1, *[1] * (g.dim() - 1)).to(g)
            grads[name] = g + noise
        return signal.replace(grads, scale, self._fact(signal, items))

    def _fact(self, signal: Signal, items: int) -> Fact:
        if signal.sensitivity is None:
            return Fact(
                "uncalibrated_noise", std=self.multiplier, each=self.to == "each", reason="noise without a clip"
            )
        std = self.multiplier * float(signal.sensitivity[0])
        return Fact("noise", std=std * items if self.to == "mean" else std, each=self.to == "each")
