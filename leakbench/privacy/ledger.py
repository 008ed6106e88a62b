"""The ledger: what a federation does with one unit's data, and which noise stands between that and an observer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from leakbench.errors import InputError, nearest
from leakbench.types import Fact

__all__ = ["Noise", "Schedule", "Unit", "calibrated"]

Unit: TypeAlias = Literal["example", "client"]

COUNTS = ("example", "client", "uses")

STATIONS: dict[str, tuple[str, ...]] = {"example": ("example", "batch"), "client": ("client", "server")}
"""Where one unit's contribution can be bounded: a clip of examples says nothing of a whole client, nor the reverse."""


@dataclass(frozen=True)
class Schedule:
    """How a federation trains and samples, and what was counted while it did.

    clients: N. clients_per_round: K_t. rounds: T >= 0. local_iterations: L. batch: B. examples_per_client: |D_i|.
    copies, most_copies: in how many clients one training example lies, on average and at most.
    client_sampling: `poisson` or `fixed` (K_t without replacement). batch_sampling: `poisson`, `fixed` (B without
        replacement, anew in each local iteration) or `split` (one pass after another over a shuffled list). tensors:
        number of parameter tensors.
    largest: what a finished run counted, None before it: of `example`: in how many clients' updates one example took
        part at most; of `client`: in how many rounds one client did; `uses`: how often one example was drawn into a
        batch.
    """

    clients: int
    clients_per_round: int
    rounds: int
    local_iterations: int
    batch: int
    examples_per_client: int
    copies: float
    most_copies: int
    client_sampling: Literal["poisson", "fixed"]
    batch_sampling: Literal["poisson", "fixed", "split"]
    tensors: int
    largest: dict[str, int] | None = None

    def __post_init__(self) -> None:
        for name in ("clients", "clients_per_round", "local_iterations", "batch", "examples_per_client", "tensors"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.rounds < 0:
            raise InputError(f"rounds: got {self.rounds}, expected at least 0")
        if self.clients_per_round > self.clients:
            raise InputError(
                f"clients_per_round: got {self.clients_per_round}, expected at most the {self.clients} clients"
            )
        if self.batch > self.examples_per_client:
            raise InputError(
                f"batch: got {self.batch}, expected at most the {self.examples_per_client} examples of a client"
            )
        if not 0 < self.copies <= self.most_copies <= self.clients:
            raise InputError(
                f"copies: got {self.copies} (most_copies {self.most_copies}), expected 0 < mean <= most <= clients"
            )
        for name, known in (
            ("client_sampling", ("poisson", "fixed")),
            ("batch_sampling", ("poisson", "fixed", "split")),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"{name}: got {getattr(self, name)!r}, expected one of {', '.join(known)}")
        for name in self.largest or {}:
            if name not in COUNTS:
                raise InputError(f"largest: unknown count {name!r}{nearest(name, COUNTS)}")

    @property
    def client_rate(self) -> float:
        """K_t / N: how probably a client takes part in a round."""
        return self.clients_per_round / self.clients

    @property
    def example_rate(self) -> float:
        """B / |D_i|: how probably an example of a client is in a batch of its local iteration."""
        return self.batch / self.examples_per_client

    def counted(self, name: str) -> int | None:
        """Return what the run counted at most under `name`, None where it was not counted."""
        return (self.largest or {}).get(name)

    def expected_participations(self, unit: Unit) -> float:
        """Return how often a unit takes part on average: a client in rounds, an example in updates of its holders."""
        return self.rounds * self.client_rate * (self.copies if unit == "example" else 1.0)

    def participations(self) -> int:
        """Return for how many updates an example is accounted.

        The largest of: one a round, the average over its copies, what was counted. The draw of clients is not used as
        amplification, because a holder may take part in every round.
        """
        # Rounding guards against 10.000000000000002 becoming 11.
        average = -int(-round(self.expected_participations("example"), 9) // 1)
        return max(self.rounds, average, self.counted("example") or 0)

    def passes(self) -> int:
        """Return how often one participation uses an example of a fixed split: once a pass."""
        whole = self.examples_per_client - self.examples_per_client % self.batch
        return -(-self.local_iterations * self.batch // whole)

    def uses(self) -> int:
        """Return in how many batches an example is expected to be, or was at most: what who sees each use sees."""
        participations = self.participations()
        drawn = -(-participations * self.local_iterations * self.batch // self.examples_per_client)
        expected = participations * self.passes() if self.batch_sampling == "split" else drawn
        return max(expected, self.counted("uses") or 0)


@dataclass(frozen=True)
class Noise:
    """One Gaussian noise that is calibrated to the unit.

    station: where it is added. std, each: as in `Fact`. bound: largest L2 norm that one unit adds to the sum there.
    part: noises of one part share a bound and add up; a clip after a noise begins the next part.
    alone: something acts on the members after this noise and before they are merged, so that others' noise does not add
        to it.
    """

    station: str
    std: float
    each: bool
    bound: float
    part: int
    alone: bool


def calibrated(facts: Mapping[str, tuple[Fact, ...]], unit: Unit, batch: int) -> tuple[tuple[Noise, ...], str]:
    """Return (the noises that guard one unit, "") or ((), why there is none).

    facts: of each station, oldest first, at the moment with the least noise. batch: B. Where no clip bounds an example,
    a clip of the batch's mean still bounds what one example changes there: by twice its norm, B-fold on the sum.
    """
    noises: list[Noise] = []
    bound, part, scaled, failure = math.inf, 0, "", ""
    for station, index, fact in _steps(facts, unit):
        if fact.kind == "clip":
            if noises and noises[-1].part == part:
                bound, part = math.inf, part + 1
            # Clips in a row: the smallest bound holds; one without a bound (it scales up) takes the earlier one away.
            norm = fact.norm * (2 * batch if station == "batch" else 1)
            bound, scaled = (min(bound, norm), "") if norm < math.inf else (math.inf, fact.reason)
        elif fact.kind == "scale":
            scaled = _data_dependent(fact.reason)
        elif fact.kind == "other" and fact.reason and not noises:
            failure = failure or fact.reason
        elif fact.kind == "uncalibrated_noise" or (fact.kind == "noise" and fact.std > 0):
            alone = any(later.kind in ("clip", "other") for later in facts[station][index + 1 :])
            why = failure or scaled or ("" if fact.kind == "noise" and bound < math.inf else "noise without a clip")
            if alone and not fact.each and station in ("example", "server"):
                why = why or "one noise for the sum, changed for each member by what follows it"
            if why and not noises:
                failure = why
            elif not why:
                noises.append(Noise(station, fact.std, fact.each, bound, part, alone))
    return tuple(noises), "" if noises else _nothing(facts, unit, failure)


def _steps(facts: Mapping[str, tuple[Fact, ...]], unit: Unit) -> Iterator[tuple[str, int, Fact]]:
    for station in STATIONS[unit]:
        for index, fact in enumerate(facts.get(station, ())):
            yield station, index, fact


def _data_dependent(reason: str) -> str:
    name = "data-dependent sensitivity"
    return reason if reason.startswith(name) else f"{name}: {reason}" if reason else name


def _nothing(facts: Mapping[str, tuple[Fact, ...]], unit: Unit, failure: str) -> str:
    """Return why no noise guards a unit, in the words after `none: `."""
    noisy = [s for s, done in facts.items() if any(f.kind == "uncalibrated_noise" or f.std > 0 for f in done)]
    if failure and (set(noisy) & set(STATIONS[unit]) or not noisy):
        return failure if noisy else f"no noise; {failure}"
    if not noisy:
        return "no noise"
    other = "an example's gradient" if unit == "client" else "a client's whole update"
    return f"the only noise is at the {' and '.join(noisy)} station, calibrated to {other}, not to one {unit}"
