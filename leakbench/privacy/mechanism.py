"""A mechanism: a sum with Gaussian noise, released some number of times; a training is a sequence of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from leakbench.errors import InputError

__all__ = ["LEAST_NOISE", "Mechanism", "Mechanisms", "gathered", "merged"]

LEAST_NOISE = 1e-6
"""Noise multiplier under which an epsilon, of at least 1e11, is called infinite."""


@dataclass(frozen=True)
class Mechanism:
    """A sum with Gaussian noise, released `steps` times.

    noise_multiplier: standard deviation of the noise over the largest L2 norm that one unit adds to the sum; >= 0.
    sampling_rate: probability, in [0, 1], that the unit is in one sum.  steps: number of releases, >= 0.
    sampling: `poisson`: every unit by its own coin (adjacency: add or remove one unit); `fixed`: a fixed number of
        units without replacement (zero-out: the unit's contribution becomes zero); `visible`: by coin, but the release
        shows whether the unit is in (zero-out).
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    sampling: Literal["poisson", "fixed", "visible"] = "poisson"

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0:
            raise InputError(f"noise_multiplier: got {self.noise_multiplier}, expected a number >= 0")
        if not 0 <= self.sampling_rate <= 1:
            raise InputError(f"sampling_rate: got {self.sampling_rate}, expected a number in [0, 1]")
        if self.steps < 0:
            raise InputError(f"steps: got {self.steps}, expected a whole number >= 0")

    @property
    def idle(self) -> bool:
        """Whether it tells nothing at all of a unit."""
        return self.sampling_rate == 0 or self.steps == 0 or self.noise_multiplier == math.inf

    def event(self) -> Any:
        """Return a dp_accounting DpEvent, for adjacency ADD_OR_REMOVE_ONE, that is at least as revealing.

        A sample of fixed size is covered by Poisson sampling at half the noise: the output moves by up to twice a
        contribution when one unit takes another's place. A visible use has no such event: raises InputError.
        """
        import dp_accounting  # noqa: PLC0415  (takes a second)

        if self.sampling == "visible":
            raise InputError("sampling: got 'visible', expected 'poisson' or 'fixed' for a DpEvent")
        half = 0.5 if self.sampling == "fixed" and self.sampling_rate < 1 else 1.0
        gaussian = dp_accounting.GaussianDpEvent(half * self.noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(self.sampling_rate, gaussian), self.steps
        )


Mechanisms: TypeAlias = tuple[Mechanism, ...]
"""One after the other, each with its parameters fixed beforehand."""


def merged(mechanisms: Iterable[Mechanism]) -> Mechanisms:
    """Return the same sequence with neighbours that differ in their steps alone made one."""
    found: list[Mechanism] = []
    for mechanism in mechanisms:
        if found and dataclasses.replace(found[-1], steps=mechanism.steps) == mechanism:
            mechanism = dataclasses.replace(mechanism, steps=found.pop().steps + mechanism.steps)  # noqa: PLW2901
        found.append(mechanism)
    return tuple(found)


def gathered(mechanisms: Iterable[Mechanism], ratio: float | None = None) -> Mechanisms:
    """Return every kind of mechanism once, with all its steps: what composes does not depend on the order.

    Those that tell nothing are left out. ratio: of the geometric grid to which noise multipliers are rounded *down*, so
    that what follows stays an upper bound; None leaves them as they are.
    """
    steps: dict[Mechanism, int] = {}
    for mechanism in mechanisms:
        if mechanism.idle:
            continue
        sigma = mechanism.noise_multiplier
        if ratio is not None and sigma > 0:
            # The smaller of the two guards against a logarithm that is rounded up at a point of the grid.
            sigma = min(sigma, ratio ** math.floor(math.log(sigma) / math.log(ratio)))
        kind = Mechanism(sigma, mechanism.sampling_rate, 0, mechanism.sampling)
        steps[kind] = steps.get(kind, 0) + mechanism.steps
    return tuple(dataclasses.replace(kind, steps=n) for kind, n in steps.items())
