"""What an adaptive attacker, which knows the defense, runs on its guess.

a clip             the clip itself: a guess above the bound is scaled to it as well, and the derivative includes the norm
noise              nothing; the likelihood uses the deviation of Gaussian noise (`View.noise`) and ignores other noise
pruning, Soteria   the zeros of the observed gradient, as a constant (`Surviving`). If later noise hides the zeros: the part's
                   own rule; for a random choice, all coordinates that it could have chosen
Outpost            the zeros where no noise was added, its own rule elsewhere, and a likelihood of both
                   (`leakbench.defense.outpost`)
a sign             a soft sign, and a logistic likelihood of the observed signs (`leakbench.defense.sign`)
a clamp            the zeros of the observed update; a clamped coordinate may have any value beyond the bound (`Saturated`)
random rounding    nothing; the likelihood weighs each bucket by the distance of its levels
percentile noise   nothing; the likelihood uses the deviation that the observed update shows
a random rate      the factor that fits the observed update best
PRECODE            nothing: the bottleneck is in the network, which every attacker knows. It runs at its mean, since the
                   attacker does not know the draws
DCS-2              the gradient of concealed examples, which a search adds to its unknowns (`Hides`)
the key of FedKL   nothing: the network's scales and shifts, which a search adds to its unknowns (`HidesDraws`)
CENSOR             nothing; a likelihood of the lengths and the angles (`leakbench.defense.censor`)
GradDefense        nothing; a likelihood in which each coordinate may have noise, or in which clipped slices do not count
refusal            nothing: a gradient that is not zero was not refused (`leakbench.defense.refuse`)
everything else    its deterministic part
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.transform import STATIONS, Stations, Transform

__all__ = ["Chooses", "Explains", "Hides", "Ranks", "Surviving", "on_a_guess", "ranks", "surviving", "unlikelihood"]


@runtime_checkable
class Chooses(Protocol):
    """A transform that the attacker replaces on a guess: the leaked gradient shows its choice, or it has no derivative."""

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that does to a guess what this one did to the truth.

        Args:
            seen: {p: (lanes, *p)}, the leaked gradient of each lane.
        """


@runtime_checkable
class Explains(Protocol):
    """A transform with a likelihood of the leaked gradient other than that of Gaussian noise (`View.noise`)."""

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return minus the log-likelihood of the leaked gradient, up to a constant.

        Args:
            guess: {p: (lanes, *p)}, the guess's gradient after the stations as the attacker runs them.
            seen: {p: (lanes, *p)}, the leaked gradient.

        Returns:
            (lanes,), differentiable in `guess`. None if this transform did not send `seen`: a mean of several members leaked, or
            noise was added later.
        """


@runtime_checkable
class Ranks(Explains, Protocol):
    """A transform whose own likelihood ranks candidates too: what it sends does not resemble their gradients."""

    ranks: Literal[True]


@runtime_checkable
class Hides(Protocol):
    """A transform with private numbers that an attacker can search together with the inputs."""

    def hidden(self, seen: Parameters, examples: int, shape: tuple[int, ...], classes: int) -> Tensor:
        """Return where a search of the private numbers starts, (lanes, h). Their prior is standard normal.

        Args:
            seen: {p: (lanes, *p)}, the leaked gradient of each lane.
            examples: Number of examples behind it.
            shape: (*s) of one input.
            classes: Number of classes.
        """

    def revealed(self, numbers: Tensor) -> Transform:
        """Return the transform that does to a guess what this one does with private numbers (lanes, h); differentiable in them."""


@dataclass(frozen=True)
class Surviving:
    """Set the coordinates to zero that no member sent: those that are zero in `seen` {p: (lanes, *p)}.

    In a mean over several members, a coordinate is not zero if any of them sent it. The mask then does not show a member's own
    choice, only the coordinates that it did not send.
    """

    seen: Parameters

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Mask every member alike; nothing is drawn."""
        kept = {n: g * (self.seen[n] != 0).unsqueeze(1).to(g) for n, g in signal.grads.items()}
        return signal.replace(kept, signal.sensitivity, Fact("other"))


def surviving(transform: Transform, seen: Parameters) -> Transform:
    """Return the mask of the coordinates that were sent, or the transform itself if later noise hides this mask."""
    hidden = all(bool((u != 0).all()) for u in seen.values())
    return transform if hidden else Surviving(seen)


def on_a_guess(stations: Stations, seen: Parameters, hidden: Tensor | None = None) -> Stations:
    """Return the stations as the attacker runs them on a guess.

    Args:
        seen: {p: (lanes, *p)}, the leaked gradient.
        hidden: (lanes, h), guessed private numbers of the part that `Hides` them; None to leave it as it is.
    """
    guessed = {name: tuple(_guessed(t, seen, hidden) for t in getattr(stations, name)) for name in STATIONS}
    return Stations(**guessed, inputs=stations.inputs)


def unlikelihood(stations: Stations, guess: Parameters, seen: Parameters) -> Tensor | None:
    """Return the unlikelihood (see `Explains`) of the first transform that has one for this gradient, else None."""
    several = (t for t in stations.transforms if isinstance(t, Explains))
    values = (transform.unlikelihood(guess, seen) for transform in several)
    return next((value for value in values if value is not None), None)


def ranks(stations: Stations) -> bool:
    """Return whether candidates are ranked by `unlikelihood`."""
    return any(isinstance(t, Ranks) for t in stations.transforms)


def _guessed(transform: Transform, seen: Parameters, hidden: Tensor | None) -> Transform:
    if hidden is not None and isinstance(transform, Hides):
        return transform.revealed(hidden)
    return transform.on_a_guess(seen) if isinstance(transform, Chooses) else transform
