"""Noise that the clients of a round add in equal shares, so that their sum carries what a server would have added."""

from __future__ import annotations

import math

from leakbench.defense.noise import GaussianNoise
from leakbench.part import NonNegative, part
from leakbench.types import Clock, Generators, Signal

__all__ = ["ShareOfNoise"]


@part("transform.share_of_noise")
class ShareOfNoise:
    """Add Gaussian noise of standard deviation multiplier * S / sqrt(m) to each client's update, m = `Clock.cohort`.

    Flower's client-side noising ("Differential Privacy Wrappers in Flower", section "Customizable Responsibility for Noise
    injection"): the sum of m honest clients' updates carries noise of multiplier * S, as if the server had added it. One
    client's update alone carries sqrt(m) times less. Use it at the `client` station, after a clip.
    """

    multiplier: NonNegative

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise; raises InputError where no clip came before."""
        return GaussianNoise(multiplier=self.multiplier / math.sqrt(clock.cohort), to="each")(signal, clock, rngs)
