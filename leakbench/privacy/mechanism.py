"""Mechanisms: sums with Gaussian noise, each released a number of times, and mixtures of them over a draw of clients.

`leakbench.privacy.discrete` has sums with integer noise, `leakbench.privacy.group` those with several examples of one person.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from leakbench.core.errors import InputError
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.group import Group

__all__ = [
    "LEAST_NOISE",
    "AnyMechanism",
    "Gaussians",
    "Mechanism",
    "Mechanisms",
    "Mixture",
    "Plain",
    "gathered",
    "gaussians",
    "merged",
    "participations",
]

LEAST_NOISE = 1e-6
"""Noise multiplier below which an epsilon, then at least 1e11, counts as infinite."""


@dataclass(frozen=True)
class Mechanism:
    """A sum with Gaussian noise, released `steps` times.

    Args:
        noise_multiplier: Standard deviation of the noise divided by the largest L2 norm of one unit's contribution, >= 0.
        sampling_rate: Probability, in [0, 1], that the unit is in one sum.
        steps: Number of releases, >= 0.
        sampling: `poisson`: each unit is drawn independently (adjacency: add or remove one unit); `fixed`: a fixed number of units
            without replacement (zero-out: the unit's contribution becomes zero); `visible`: each unit is drawn independently, and
            the release shows whether the unit is in the sum (zero-out).

    Raises:
        InputError: For a number outside its range.
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
        """Whether it releases nothing about a unit."""
        return self.sampling_rate == 0 or self.steps == 0 or self.noise_multiplier == math.inf

    def event(self) -> Any:
        """Return a dp_accounting DpEvent, for adjacency ADD_OR_REMOVE_ONE, whose privacy loss is at least as large.

        Poisson sampling with half the noise covers a sample of fixed size: the output moves by up to twice a contribution if one
        unit replaces another.

        Raises:
            InputError: For `visible` sampling, which has no such event.
        """
        import dp_accounting  # noqa: PLC0415  (takes a second)

        if self.sampling == "visible":
            raise InputError("sampling: got 'visible', expected 'poisson' or 'fixed' for a DpEvent")
        half = 0.5 if self.sampling == "fixed" and self.sampling_rate < 1 else 1.0
        gaussian = dp_accounting.GaussianDpEvent(half * self.noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(self.sampling_rate, gaussian), self.steps
        )

    @property
    def releases(self) -> int:
        """Number of releases."""
        return self.steps

    def with_noise(self, noise_multiplier: float) -> Mechanism:
        """Return the same mechanism with another noise multiplier."""
        return dataclasses.replace(self, noise_multiplier=noise_multiplier)


@dataclass(frozen=True)
class Mixture:
    """Rounds in which a unit takes part a random number of times, which the observer sees.

    The draw of clients does not depend on the data. So for every epsilon, the delta of one round is the mean over the draw of the
    deltas for each number of participations, and the privacy loss is the mixture of their privacy losses (the hockey-stick
    divergence of two joint distributions with the same first marginal is the mean of the conditional divergences).

    Args:
        mechanisms: The releases of one participation.
        clients: N.
        holders: Number of clients that hold the unit.
        per_round: K_t.
        draw: `fixed`: K_t clients without replacement, so that a hypergeometric number of holders takes part; `poisson`: each
            client with probability K_t / N, so that a binomial number does.
        steps: Number of rounds.
    """

    mechanisms: tuple[Mechanism | Group, ...]
    clients: int
    holders: int
    per_round: int
    draw: Literal["fixed", "poisson"]
    steps: int

    @property
    def weights(self) -> NDArray[np.float64]:
        """Probabilities of 0, 1, 2, ... participations in one round."""
        return participations(self.clients, self.holders, self.per_round, self.draw)

    @property
    def idle(self) -> bool:
        """Whether it releases nothing about a unit."""
        return self.steps == 0 or all(m.idle for m in self.mechanisms)

    @property
    def noise_multiplier(self) -> float:
        """The least noise multiplier among the releases."""
        return min(m.noise_multiplier for m in self.mechanisms)

    @property
    def sampling_rate(self) -> float:
        """The largest probability with which one release of a participation uses the unit."""
        return max(m.sampling_rate for m in self.mechanisms)

    @property
    def sampling(self) -> Literal["mixture"]:
        """The kind of sampling, as in `Mechanism.sampling`."""
        return "mixture"

    @property
    def releases(self) -> int:
        """Expected number of releases, rounded."""
        expected = self.holders * self.per_round / self.clients * self.steps
        return round(expected * sum(m.steps for m in self.mechanisms))

    def with_noise(self, noise_multiplier: float) -> Mixture:
        """Return the same mixture with another noise multiplier in every release."""
        return dataclasses.replace(self, mechanisms=tuple(m.with_noise(noise_multiplier) for m in self.mechanisms))


@lru_cache(maxsize=256)
def participations(
    clients: int, holders: int, per_round: int, draw: Literal["fixed", "poisson"]
) -> NDArray[np.float64]:
    """Return the probabilities that 0, 1, 2, ... holders are among the clients of one round; see `Mixture`."""
    from scipy import stats  # noqa: PLC0415  (takes a second)

    if draw == "fixed":
        counts = np.arange(min(holders, per_round) + 1)
        weights = stats.hypergeom(clients, holders, per_round).pmf(counts)
    else:
        counts = np.arange(holders + 1)
        weights = stats.binom(holders, per_round / clients).pmf(counts)
    found: NDArray[np.float64] = weights / weights.sum()
    found.flags.writeable = False
    return found


Plain: TypeAlias = tuple[Mechanism, ...]
"""Mechanisms without a mixture, as papers account for them."""

Gaussians: TypeAlias = tuple[Mechanism | Mixture | Group, ...]
"""Mechanisms with Gaussian noise, for which the whole distribution of the privacy loss is known."""

AnyMechanism: TypeAlias = Mechanism | Mixture | Group | DiscreteMechanism

Mechanisms: TypeAlias = tuple[AnyMechanism, ...]
"""One after the other, each with its parameters fixed beforehand."""


Kind = TypeVar("Kind", Mechanism, AnyMechanism)


def merged(mechanisms: Iterable[Kind]) -> tuple[Kind, ...]:
    """Merge neighbours that differ only in their steps."""
    found: list[Kind] = []
    for mechanism in mechanisms:
        if found and dataclasses.replace(found[-1], steps=mechanism.steps) == mechanism:
            mechanism = dataclasses.replace(mechanism, steps=found.pop().steps + mechanism.steps)  # noqa: PLW2901
        found.append(mechanism)
    return tuple(found)


def gathered(mechanisms: Iterable[AnyMechanism], ratio: float | None = None) -> Mechanisms:
    """Return every kind of mechanism once, with all its steps, and without idle mechanisms.

    The composition does not depend on the order.

    Args:
        ratio: Ratio of the geometric grid to which noise multipliers of Gaussian noise are rounded *down*, which gives an upper
            bound of the epsilon; None does not round.
    """
    steps: dict[AnyMechanism, int] = {}
    for mechanism in mechanisms:
        if mechanism.idle:
            continue
        kind: AnyMechanism
        if isinstance(mechanism, Mixture):
            inner = tuple(m for m in gathered(mechanism.mechanisms, ratio) if isinstance(m, Mechanism | Group))
            kind = dataclasses.replace(mechanism, mechanisms=inner, steps=0)
        elif isinstance(mechanism, DiscreteMechanism):
            kind = dataclasses.replace(mechanism, steps=0)
        else:
            kind = dataclasses.replace(mechanism, noise_multiplier=_rounded(mechanism.noise_multiplier, ratio), steps=0)
        steps[kind] = steps.get(kind, 0) + mechanism.steps
    return tuple(dataclasses.replace(kind, steps=n) for kind, n in steps.items())


def gaussians(mechanisms: Mechanisms) -> Gaussians:
    """Return the same mechanisms; raise ValueError for integer noise, of which only Rényi divergences are known."""
    found = tuple(m for m in mechanisms if not isinstance(m, DiscreteMechanism))
    if len(found) < len(mechanisms):
        raise ValueError("mechanisms: got integer noise, expected Gaussian noise")
    return found


def _rounded(sigma: float, ratio: float | None) -> float:
    if ratio is None or sigma <= 0:
        return sigma
    # The minimum handles a logarithm that is rounded up at a point of the grid.
    return min(sigma, ratio ** math.floor(math.log(sigma) / math.log(ratio)))
