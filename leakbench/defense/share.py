"""Noise that the clients of a round add in equal shares, so that their sum has the noise of a server that adds it alone."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field

from leakbench.core.part import NonNegative, part
from leakbench.core.types import Clock, Generators, Signal
from leakbench.defense.noise import GaussianNoise

__all__ = ["ShareOfNoise"]


@part("transform.share_of_noise")
class ShareOfNoise:
    """Add Gaussian noise of standard deviation multiplier * S / sqrt(m) to each client's update, m = `Clock.cohort`.

    Flower's client-side noising ("Differential Privacy Wrappers in Flower", section "Customizable Responsibility for Noise
    injection"): the sum of m honest clients' updates has noise of multiplier * S, as if the server had added it. The noise of one
    client's update is sqrt(m) times smaller. Use it at the `client` station, after a clip.
    """

    stations: ClassVar[tuple[str, ...]] = ("client",)

    multiplier: Annotated[NonNegative, Field(description="Noise multiplier of the sum over m clients.")]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise; raises InputError if no clip came before."""
        return GaussianNoise(multiplier=self.multiplier / math.sqrt(clock.cohort), to="each")(signal, clock, rngs)
