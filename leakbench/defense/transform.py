"""Slot `transform`: one transform of a signal. Each of the four stations has an ordered tuple of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.core.behaviour import part_name
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.augmentation import Augmentation

__all__ = [
    "SILENT",
    "STATIONS",
    "AddsNoise",
    "InOrder",
    "RunsNetwork",
    "Stations",
    "Transform",
    "acts_on",
    "apart",
    "apply",
    "name_of",
    "stations_before",
    "together",
]

STATIONS = ("example", "batch", "client", "server")


def stations_before(tap: str) -> tuple[str, ...]:
    """Return the stations before a leakage point, in order; all of them for every point other than `type-2` and `type-1`."""
    return {"type-2": STATIONS[:1], "type-1": STATIONS[:3]}.get(tap, STATIONS)


@runtime_checkable
class Transform(Protocol):
    """One step of a defense at one station.

    A part may say more about itself in attributes of its class:

    - `multiplier`, a field: noise multiplier sigma, which `--noise-factor` and `--epsilon` scale.
    - `scales_clip`: name of the field with the fixed norm of a clip, which `--clip-factor` scales.
    - `stations`: names of the stations at which the part is accepted; all of them without it.
    - `acts_on`: `sum` or `mean` if the part only adds something to the sum or the mean of the members, and so needs no single
      member; `each` without it.
    - `by_example`: whether it computes something of each example alone, also at the batch station.
    - `over_rounds`: whether what it does in one round counts on what it does in all others.
    - `stateful`: whether it keeps a state between uses, so that a defense has one of it at most.
    - `at_server`, of a part of the client station: the transform with which the server reads the sum of what clients sent. It runs
      before the transforms of the server station, under `aggregation: secure` alone.
    - `reads_network`: whether it reads the network; `runs_network`: whether it runs it.
    """

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Return the transformed signal, with at least one more `Fact` for the ledger.

        Args:
            rngs: One generator per lane, the only source of randomness; draw with `leakbench.core.rng.normal`. None runs only the
                deterministic part, as the attacker does on a guess: all draws are then zero.
        """


def together(tensors: Parameters, axes: int = 2) -> Tensor:
    """Return all tensors side by side, (*a, coordinates), where a are the first `axes` axes of each."""
    return torch.cat([t.flatten(axes) for t in tensors.values()], axes)


def apart(flat: Tensor, like: Parameters) -> Parameters:
    """Return the inverse of `together`: tensors with the names and shapes of `like`."""
    axes = flat.dim() - 1
    pieces = torch.split(flat, [t.shape[axes:].numel() for t in like.values()], axes)
    return {name: piece.reshape(t.shape) for (name, t), piece in zip(like.items(), pieces, strict=True)}


SILENT = "changes the gradients and does not say how"
"""Reason for no epsilon if a transform changes the gradients without a fact."""


@runtime_checkable
class RunsNetwork(Protocol):
    """A transform that runs the network itself (Soteria). It swaps the parameters meanwhile, so only one thread may run it."""

    runs_network: Literal[True]


@runtime_checkable
class AddsNoise(Protocol):
    """A transform that only adds noise. If `acts_on` is `each`, the noise of several members can be drawn once, for their sum."""

    def times(self, length: float | Tensor, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise multiplied by `length`, a number or (lanes,); the fact states the noise without this factor."""


def acts_on(transform: Transform) -> str:
    """Return whether a transform acts on `each` member, or only on the `sum` or the `mean` of the members."""
    return str(getattr(transform, "acts_on", "each"))


def name_of(transform: Transform) -> str:
    """Return the name of a transform in recipes; for a class that is not a part, the name of the class."""
    return (part_name(type(transform)) or type(transform).__name__).removeprefix("transform.")


@dataclass(frozen=True)
class Stations:
    """The transforms of an example's gradient, of the mean over a batch, of a client's update, and of updates at the server.

    `inputs` are the changes of a client's batch before its gradients are computed.
    """

    example: tuple[Transform, ...] = ()
    batch: tuple[Transform, ...] = ()
    client: tuple[Transform, ...] = ()
    server: tuple[Transform, ...] = ()
    inputs: tuple[Augmentation, ...] = ()

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms of all stations, in the order in which they run."""
        return self.example + self.batch + self.client + self.server

    def before(self, tap: str) -> Stations:
        """Return the stations before a leakage point; the stations after it are empty."""
        return Stations(**{name: getattr(self, name) for name in stations_before(tap)}, inputs=self.inputs)


@dataclass(frozen=True)
class InOrder:
    """Several transforms, one after another, as one."""

    transforms: tuple[Transform, ...]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Run them."""
        return apply(self.transforms, signal, clock, rngs)


def apply(station: tuple[Transform, ...], signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
    """Run the transforms of one station in order.

    A transform that changes the gradients without a fact gets a fact that rules out an epsilon.
    """
    for transform in station:
        after = transform(signal, clock, rngs)
        if after.grads is not signal.grads and after.facts == signal.facts:
            name = type(transform).__name__
            silent = Fact("other", reason=f"{name} {SILENT}")
            after = dataclasses.replace(after, facts=(*after.facts, silent))
        signal = after
    return signal
