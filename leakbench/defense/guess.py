"""What an attacker who knows a defense runs on its guess.

a clip             the clip itself: what of a tensor, or of the whole, is above the bound is scaled to it on the guess too, and
                   the derivative goes through the norm
noise              nothing; the likelihood has the deviation of Gaussian noise (`View.noise`), of other noise none
pruning, Soteria   the zeros of what leaked, as a constant (`Surviving`); its own rule where noise after it hid the zeros, of a
                   random choice what it could have chosen
a sign             a soft sign, and a logistic likelihood of the signs that leaked (`leakbench.defense.sign`)
PRECODE            nothing more than who is told nothing: the bottleneck is in the network that everybody is sent, and runs by
                   its mean, since nobody knows the draws
refusal            nothing: what is not zero was not refused (`leakbench.defense.refuse`)
everything else    its deterministic part
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from leakbench.defense.transform import STATIONS, Stations, Transform
from leakbench.types import Clock, Fact, Generators, Parameters, Signal

__all__ = ["Chooses", "Explains", "Surviving", "on_a_guess", "surviving", "unlikelihood"]


@runtime_checkable
class Chooses(Protocol):
    """A transform that is not run on a guess as it is: its choice can be read off what leaked, or it has no derivative."""

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return what does to a guess what the transform did to the truth.

        Args:
            seen: {p: (lanes, *p)} what leaked of each lane.
        """


@runtime_checkable
class Explains(Protocol):
    """A transform of which the attacker knows how likely what leaked is, beside a law of Gaussian noise (`View.noise`)."""

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,), minus the log-likelihood of what leaked, up to a constant; differentiable in `guess`.

        Args:
            guess: {p: (lanes, *p)} what a guess would have shown past the stations as the attacker runs them.
            seen: Likewise what leaked. None where what leaked is not what this transform sends, as of a mean of several or past
                later noise.
        """


@dataclass(frozen=True)
class Surviving:
    """Zero what is zero in `seen` {p: (lanes, *p)}: the coordinates that no member sent.

    Of a mean over several members a coordinate survives that any of them sent, so that a member's own choice is not known but
    what it cannot have sent is.
    """

    seen: Parameters

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Mask every member alike; nothing is drawn."""
        kept = {n: g * (self.seen[n] != 0).unsqueeze(1).to(g) for n, g in signal.grads.items()}
        return signal.replace(kept, signal.sensitivity, Fact("other"))


def surviving(transform: Transform, seen: Parameters) -> Transform:
    """Return the mask of what was sent; the transform itself where noise after it hid what was not."""
    hidden = all(bool((u != 0).all()) for u in seen.values())
    return transform if hidden else Surviving(seen)


def on_a_guess(stations: Stations, seen: Parameters) -> Stations:
    """Return the stations as an attacker runs them on a guess, who saw {p: (lanes, *p)}."""
    return Stations(*(tuple(_guessed(t, seen) for t in getattr(stations, name)) for name in STATIONS))


def unlikelihood(stations: Stations, guess: Parameters, seen: Parameters) -> Tensor | None:
    """Return what the first transform that explains what leaked says of a guess, see `Explains`; None where none does."""
    several = (t for t in stations.transforms if isinstance(t, Explains))
    told = (transform.unlikelihood(guess, seen) for transform in several)
    return next((each for each in told if each is not None), None)


def _guessed(transform: Transform, seen: Parameters) -> Transform:
    return transform.on_a_guess(seen) if isinstance(transform, Chooses) else transform
