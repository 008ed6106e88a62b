"""Fits: what an attacker learned, with the origin that it is valid for, and the interface for parts that need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from leakbench.core.answers import Fit
from leakbench.core.errors import InputError
from leakbench.core.types import Parameters

__all__ = ["Fits", "Fitted", "Origin", "RecordedFits", "fitted_anew"]

Origin = Mapping[str, str]
"""{input of the learning: its hash}, `part` first; see `leakbench.attack.learn.origin`."""


@dataclass(frozen=True)
class Fitted:
    """The result of learning from an origin.

    Args:
        origin: The inputs of the learning.
        tensors: {name: tensor}.
        fit: The time and the number of public examples.
    """

    origin: Origin
    tensors: Parameters
    fit: Fit

    def read(self, origin: Origin, like: Tensor) -> Parameters:
        """Return the tensors for use on `origin`, on the device of `like`.

        Raises:
            InputError: If they have another origin, with the difference.
        """
        if dict(origin) == dict(self.origin):
            # In one memory layout, stored or not, since sums in another order have other rounding errors.
            return {name: tensor.to(like.device).contiguous() for name, tensor in self.tensors.items()}
        names = dict.fromkeys((*self.origin, *origin))
        other = " and ".join(name for name in names if self.origin.get(name) != origin.get(name))
        raise InputError(
            f"{origin['part']}: what was fitted holds for what it was fitted to alone, here differs: {other} (fit it again)"
        )


class Fits(Protocol):
    """A source of fits for parts that learn."""

    def __call__(self, origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
        """Return the fit of `origin`, a stored one or the result of `fit()`."""


def fitted_anew(origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
    """Compute the fit without storing it."""
    return fit()


@dataclass(frozen=True)
class RecordedFits:
    """A source of fits that records the requests, so that a method of several parts can report the fits of all of them."""

    fits: Fits
    found: dict[tuple[str, ...], Fit] = field(default_factory=dict)

    def __call__(self, origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
        """Return the fit and record it."""
        fitted = self.fits(origin, fit)
        self.found[tuple(origin.values())] = fitted.fit
        return fitted

    @property
    def fit(self) -> Fit | None:
        """The seconds of all fits together, each counted once, and the largest number of examples of a fit."""
        fits = self.found.values()
        return Fit(sum(f.seconds for f in fits), max(f.public for f in fits)) if fits else None
