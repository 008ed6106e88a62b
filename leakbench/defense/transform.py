"""The slot of a defense: one transform of a signal. Four stations hold an ordered tuple of them each."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from leakbench.types import Clock, Generators, Signal

__all__ = ["Transform", "apply"]


@runtime_checkable
class Transform(Protocol):
    """One step of a defense at one station."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators) -> Signal:
        """Return the transformed signal; `rngs` holds one generator a lane and is the only source of randomness."""


def apply(station: tuple[Transform, ...], signal: Signal, clock: Clock, rngs: Generators) -> Signal:
    """Run the transforms of one station in order."""
    for transform in station:
        signal = transform(signal, clock, rngs)
    return signal
