"""Noise that is correlated over the rounds, at the server (DP-FTRL): later rounds take back a part of the noise of earlier ones.

The released models are sums of all rounds so far, and these sums get less noise than with independent noise of the same epsilon.
One round by itself gets more. `CorrelatedNoise` needs no random draw of clients; a hidden draw amplifies `BandedNoise`.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Count, NonNegative, part
from leakbench.core.recipe import Slot
from leakbench.core.rng import normal
from leakbench.core.types import AT_SERVER, Clock, Fact, Generators, Signal
from leakbench.privacy.factorization import Factorization, Tree
from leakbench.privacy.factorization_search import banded, buffered, independent
from leakbench.privacy.participation import SINGLE, Participation

__all__ = [
    "BandedNoise",
    "BandedToeplitz",
    "BufferedToeplitz",
    "CorrelatedNoise",
    "Correlation",
    "Independent",
    "Trees",
]

STATE = f"{AT_SERVER}noise."
"""Start of the names of the noise of earlier rounds in the memory of `correlated_noise`; the name of the parameter follows."""

BANDED_STATE = f"{AT_SERVER}banded_noise."
"""The same for `banded_noise`: the noise of one part is never taken back by another one."""


@runtime_checkable
class Correlation(Protocol):
    """The slot `correlation`: how the noise of a round depends on that of earlier rounds."""

    def __call__(self, rounds: int, participation: Participation) -> Factorization:
        """Return the factorization for T rounds, in which a client takes part as given."""

    def __hash__(self) -> int: ...


@part("correlation.trees")
class Trees:
    """Binary trees (Kairouz et al., ICML 2021, Algorithm 1): a sum of t rounds has the noise of at most log2(t) + 1 nodes."""

    restarts: Annotated[
        bool,
        Field(
            description="Whether a new tree starts with every turn of a client (appendix D), or one tree has all rounds."
        ),
    ] = True

    def __call__(self, rounds: int, participation: Participation) -> Factorization:
        """Return the trees."""
        several = self.restarts and participation.count(rounds) > 1
        return Tree(rounds, participation.separation if several else None)


@part("correlation.banded")
class BandedToeplitz:
    """A banded Toeplitz matrix of the least mean error (BandMF: Choquette-Choo et al., NeurIPS 2023)."""

    bands: Annotated[
        Count,
        Field(
            description="Number of bands, at most T; noise of this many rounds, less one, is kept. 1 is independent noise."
        ),
    ] = 8

    def __call__(self, rounds: int, participation: Participation) -> Factorization:
        """Return the factorization of the least mean error."""
        return banded(rounds, min(self.bands, rounds), participation)


@part("correlation.buffered")
class BufferedToeplitz:
    """A buffered Toeplitz matrix of a small largest error (BLT-DP-FTRL: McMahan, Xu and Zhang 2024, arXiv:2408.08868)."""

    buffers: Annotated[Count, Field(description="Number of buffers of noise that are kept, usually 2 to 5.")] = 3

    def __call__(self, rounds: int, participation: Participation) -> Factorization:
        """Return the factorization."""
        return buffered(rounds, self.buffers, participation, "largest")


@part("correlation.independent")
class Independent:
    """Independent noise, as in DP-SGD without amplification, to compare with."""

    def __call__(self, rounds: int, participation: Participation) -> Factorization:
        """Return the identity."""
        return independent(rounds)


CORRELATION = Slot("correlation", (__name__,))

Made: TypeAlias = tuple[Factorization, float, tuple[float, ...]]


@lru_cache(maxsize=64)
def _made(correlation: Correlation, rounds: int, participation: Participation) -> Made:
    """Return (factorization, sensitivity, deviations of the noise of each round); a search takes seconds."""
    found = correlation(rounds, participation)
    return found, found.sensitivity(participation).value, tuple(found.round_deviations().tolist())


@part("transform.correlated_noise")
class CorrelatedNoise:
    """Add to the sum of a round its row of C^-1 z, where z is noise of all rounds, of deviation multiplier * S * sensitivity(C).

    S is the signal's sensitivity, the same in every round. The whole training is then one Gaussian mechanism with this noise
    multiplier (Denisov et al., NeurIPS 2022, Theorem 2.1) for a client that takes part as the cohorts allow: once in N / K_t rounds
    with `cohorts: in_turn`, else in any rounds, which costs far more noise.
    """

    stateful: ClassVar[bool] = True
    over_rounds: ClassVar[bool] = True
    stations: ClassVar[tuple[str, ...]] = ("server",)

    multiplier: Annotated[NonNegative, Field(description="Noise multiplier sigma of the whole training.")]
    correlation: Annotated[Correlation, CORRELATION] = Trees()

    @property
    def acts_on(self) -> Literal["sum"]:
        """See `leakbench.defense.transform.Transform`."""
        return "sum"

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise of this round, and remember what later rounds need; raises InputError if no clip came before.

        Without a memory of earlier rounds, as for a leak of one round, the noise of the round is drawn by itself.
        """
        separation = clock.separation
        most = -(-max(1, clock.rounds) * clock.cohort // clock.clients) if clock.in_turn else None
        made = _made(self.correlation, max(1, clock.rounds), Participation(separation, most))
        bound = _bound("correlated_noise", signal)
        one = self.multiplier * float(bound[0])
        fact = Fact("noise", std=one * made[1] * made[2][_index(clock)], training=one, separation=separation)
        return _added(signal, clock, rngs, bound * (self.multiplier * made[1]), made, fact, STATE)


@part("transform.banded_noise")
class BandedNoise:
    """Add to the sum of a round its row of C^-1 z, where z has the deviation multiplier * S * the largest norm of a column of C.

    S is the signal's sensitivity, the same in every round. C is the banded Toeplitz matrix of the least mean error, with as many
    bands as there are rounds from one in which a client can take part to the next: the number of groups with `cohort_groups`. A
    client's rounds then share no noise, and each of them is protected as by independent noise of this multiplier. A hidden draw
    from the group whose turn it is amplifies it, as in DP-SGD (BandMF: Choquette-Choo et al., NeurIPS 2023, Theorem 4).
    """

    stateful: ClassVar[bool] = True
    over_rounds: ClassVar[bool] = True
    stations: ClassVar[tuple[str, ...]] = ("server",)

    multiplier: Annotated[NonNegative, Field(description="Noise multiplier sigma of one round of a client.")]

    @property
    def acts_on(self) -> Literal["sum"]:
        """See `leakbench.defense.transform.Transform`."""
        return "sum"

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise of this round; memory and errors are those of `CorrelatedNoise`."""
        rounds = max(1, clock.rounds)
        bands = min(clock.separation, rounds)
        made = _made(BandedToeplitz(bands), rounds, SINGLE)
        bound = _bound("banded_noise", signal)
        one = self.multiplier * float(bound[0])
        fact = Fact("noise", std=one * made[1] * made[2][_index(clock)], participation=one, separation=bands)
        return _added(signal, clock, rngs, bound * (self.multiplier * made[1]), made, fact, BANDED_STATE)


def _index(clock: Clock) -> int:
    """Return the index of the round; a finished model can leak in one more round, which is as the last one."""
    return min(clock.round, max(1, clock.rounds) - 1)


def _bound(name: str, signal: Signal) -> Tensor:
    """Return S (lanes,); raise InputError if no clip came before."""
    if signal.sensitivity is None:
        raise InputError(f"{name}: no clip before it, so its scale means nothing; put a clip first")
    return signal.sensitivity


def _added(
    signal: Signal, clock: Clock, rngs: Generators | None, deviation: Tensor, made: Made, fact: Fact, named: str
) -> Signal:
    """Return the signal with the noise of this round, and with what later rounds need in its memory.

    Args:
        deviation: (lanes,), the standard deviation of z.
        named: Start of the names in the memory.
    """
    factorization, _, alone = made
    # The noise that is remembered is that of the sum, since the number of members may differ from round to round.
    index, items = _index(clock), signal.averaged * signal.members
    remembered = index == 0 or all(named + name in signal.memory for name in signal.grads)
    grads, memory = {}, dict(signal.memory)
    for name, g in signal.grads.items():
        noise = normal(g, rngs, 1) * deviation.to(g).reshape(-1, *[1] * (g.dim() - 1))
        if not remembered:
            grads[name] = g + noise * (alone[index] / items)
            continue
        state = signal.memory.get(named + name)
        before = factorization.start(noise) if state is None else state.movedim(2, 0)
        noise, after = factorization.correlate(noise, before, index)
        grads[name] = g + noise / items
        memory[named + name] = after.movedim(0, 2)
    return dataclasses.replace(signal.replace(grads, signal.sensitivity, fact), memory=memory)
