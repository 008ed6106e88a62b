"""The slot of a defense: one transform of a signal. Four stations hold an ordered tuple of them each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from leakbench.types import Clock, Fact, Generators, Signal

__all__ = ["SILENT", "STATIONS", "RunsNetwork", "Stations", "Transform", "apply", "stations_before"]

STATIONS = ("example", "batch", "client", "server")


def stations_before(tap: str) -> tuple[str, ...]:
    """Return the stations that what leaks at a tap has passed, in order; at `global`, and wherever the server acts, all of them."""
    return {"type-2": STATIONS[:1], "type-1": STATIONS[:3]}.get(tap, STATIONS)


@runtime_checkable
class Transform(Protocol):
    """One step of a defense at one station."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Return the transformed signal with one more `Fact`, from which the ledger learns what was done.

        Args:
            rngs: One generator a lane, the only source of randomness, to be drawn from by `leakbench.rng.normal`. None asks for
                the deterministic part alone, as an attacker runs it on a guess: what is drawn is then zero.
        """


SILENT = "changes the gradients and does not say how"
"""Why a transform that states no fact is held against the epsilon."""


@runtime_checkable
class RunsNetwork(Protocol):
    """A transform that runs the network itself (Soteria): its parameters are swapped meanwhile, so one thread at a time may."""

    runs_network: Literal[True]


@dataclass(frozen=True)
class Stations:
    """What acts on an example's gradient, on the mean over a batch, on a client's update, and on the updates at the server."""

    example: tuple[Transform, ...] = ()
    batch: tuple[Transform, ...] = ()
    client: tuple[Transform, ...] = ()
    server: tuple[Transform, ...] = ()

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms of all stations, in the order in which they act."""
        return self.example + self.batch + self.client + self.server

    def before(self, tap: str) -> Stations:
        """Return what of it acts on what leaks at a tap; the stations behind the tap are empty."""
        return Stations(**{name: getattr(self, name) for name in stations_before(tap)})


def apply(station: tuple[Transform, ...], signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
    """Run the transforms of one station in order; one that changes the gradients and states no fact is held against the epsilon."""
    for transform in station:
        after = transform(signal, clock, rngs)
        if after.grads is not signal.grads and after.facts == signal.facts:
            name = type(transform).__name__
            silent = Fact("other", reason=f"{name} {SILENT}")
            after = dataclasses.replace(after, facts=(*after.facts, silent))
        signal = after
    return signal
