"""What an attacker learned, bound to what it was learned of, and how it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from leakbench.answers import Fit
from leakbench.errors import InputError
from leakbench.types import Parameters

__all__ = ["Asked", "Fits", "Fitted", "Origin", "fitted_anew"]

Origin = Mapping[str, str]
"""{what the learning read: its hash}, `part` first; see `leakbench.attack.learn.origin`."""


@dataclass(frozen=True)
class Fitted:
    """What was learned, as {name: tensor}, of `origin`, and what that took."""

    origin: Origin
    tensors: Parameters
    fit: Fit

    def read(self, origin: Origin, like: Tensor) -> Parameters:
        """Return the tensors for use on `origin`, on the device of `like`.

        Raises InputError where they were learned of something else, and says of what.
        """
        if dict(origin) == dict(self.origin):
            # In one layout whether they were kept or not, since sums in another order round otherwise.
            return {name: tensor.to(like.device).contiguous() for name, tensor in self.tensors.items()}
        names = dict.fromkeys((*self.origin, *origin))
        other = " and ".join(name for name in names if self.origin.get(name) != origin.get(name))
        raise InputError(
            f"{origin['part']}: what was fitted holds for what it was fitted to alone, here differs: {other} (fit it again)"
        )


class Fits(Protocol):
    """Where a part that learns asks for what it learned."""

    def __call__(self, origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
        """Return what was learned of `origin`, by `fit()` or from where it is kept."""


def fitted_anew(origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
    """Keep nothing."""
    return fit()


@dataclass(frozen=True)
class Asked:
    """The same fits, and what was asked for, so that a method made of several parts can say what all of them learned."""

    fits: Fits
    found: dict[tuple[str, ...], Fit] = field(default_factory=dict)

    def __call__(self, origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
        """Ask, and note the answer."""
        fitted = self.fits(origin, fit)
        self.found[tuple(origin.values())] = fitted.fit
        return fitted

    @property
    def fit(self) -> Fit | None:
        """The seconds of all that was learned, each fit once, and the most examples that one of them learned from."""
        fits = self.found.values()
        return Fit(sum(f.seconds for f in fits), max(f.public for f in fits)) if fits else None
