"""The ledger: what a federation does with one unit's data: how it samples, and in which phases it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from leakbench.errors import InputError, nearest
from leakbench.types import Fact

__all__ = ["OWN_NOISE", "Phase", "Schedule", "Stretch", "Unit", "first_rounds", "stretches"]

Unit: TypeAlias = Literal["example", "client"]

OWN_NOISE = "noise of its own, not accounted"
"""How the reason of a fact begins whose part draws random numbers and states nothing about them."""

COUNTS = ("example", "client", "uses")


@dataclass(frozen=True)
class Schedule:
    """How a federation trains and samples, and what was counted while it did.

    Args:
        clients: N.
        clients_per_round: K_t.
        rounds: T >= 0.
        local_iterations: L.
        batch: B.
        examples_per_client: |D_i|.
        copies: How many clients hold one training example, on average and at most.
        most_copies: How many clients hold one training example, on average and at most.
        client_sampling: `poisson` or `fixed` (K_t without replacement).
        batch_sampling: `poisson`, `fixed` (B without replacement, anew in each local iteration) or `split` (one pass after
            another over a shuffled list).
        tensors: Number of parameter tensors.
        largest: What a finished run counted at most, None before it. `example`: in how many clients' updates one example took
            part; `client`: in how many rounds one client took part; `uses`: how often one example was drawn into a batch. Only
            the realised figure uses it, never a valid epsilon.
        secure_aggregation: Whether the server sees only the sum of the updates of a round.
        dropout: Probability that a drawn client fails while the round goes on without it, and so without its noise.
        client_optimizer: `sgd`, whose updates are sums of the noisy gradients, or `adam`, whose are a function of them.
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
    secure_aggregation: bool = False
    dropout: float = 0.0
    client_optimizer: str = "sgd"

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
        if not 0 <= self.dropout <= 1:
            raise InputError(f"dropout: got {self.dropout}, expected a probability")
        for name in self.largest or {}:
            if name not in COUNTS:
                raise InputError(f"largest: unknown count {name!r}{nearest(name, COUNTS)}")

    @property
    def complete(self) -> bool:
        """Whether the noise of exactly K_t clients is in every sum of a round."""
        return self.client_sampling == "fixed" and not self.dropout

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

    def expected_participations(self, unit: Unit, drawn: int | None = None) -> float:
        """Return how often a unit takes part on average: a client in rounds, an example in updates of its holders.

        Args:
            drawn: The clients of all rounds together where K_t varies; None: T * K_t.
        """
        drawn = self.rounds * self.clients_per_round if drawn is None else drawn
        return drawn / self.clients * (self.copies if unit == "example" else 1.0)

    def most_participations(self, unit: Unit, cohort: int) -> int:
        """Return how often a unit can take part in one round of `cohort` clients, whatever the draw of clients."""
        holders = self.most_copies if unit == "example" else 1
        return min(holders, cohort) if self.client_sampling == "fixed" else holders

    def passes(self) -> int:
        """Return how often one participation uses an example of a fixed split: once a pass."""
        whole = self.examples_per_client - self.examples_per_client % self.batch
        return -(-self.local_iterations * self.batch // whole)


@dataclass(frozen=True)
class Phase:
    """A block of the training in which every station does the same thing.

    Args:
        facts: {station: what its transforms did, oldest first}.
        rounds: How many consecutive rounds.
        local_iterations: How many local iterations of each of these rounds.
        ends: Whether the last local iteration is among them, so that the rounds' updates are released in this phase.
        clients_per_round: K_t in these rounds. The phases of one round stand one after the other and the last of them ends.
            Raises InputError for counts under 1.
    """

    facts: Mapping[str, tuple[Fact, ...]]
    rounds: int
    local_iterations: int
    ends: bool
    clients_per_round: int

    def __post_init__(self) -> None:
        for name in ("rounds", "local_iterations", "clients_per_round"):
            if getattr(self, name) < 1:
                raise InputError(f"phase: {name}: got {getattr(self, name)}, expected at least 1")


@dataclass(frozen=True)
class Stretch:
    """Consecutive rounds that go through the same phases.

    Args:
        first: The 0-based first of them and how many.
        rounds: The 0-based first of them and how many.
    """

    phases: tuple[Phase, ...]
    first: int
    rounds: int

    @property
    def clients_per_round(self) -> int:
        """K_t in each of these rounds."""
        return self.phases[-1].clients_per_round


def stretches(phases: Sequence[Phase], schedule: Schedule) -> tuple[Stretch, ...]:
    """Return the training as stretches; raise InputError where the phases are not exactly the schedule's iterations."""
    found: list[Stretch] = []
    first, block = 0, list[Phase]()
    for phase in phases:
        block.append(phase)
        if (phase.rounds, phase.clients_per_round) != (block[0].rounds, block[0].clients_per_round):
            raise InputError(
                f"phases: from round {first + 1} on {phase.rounds} rounds of {phase.clients_per_round} clients, "
                f"expected {block[0].rounds} of {block[0].clients_per_round} as in the phase before it"
            )
        if phase.clients_per_round > schedule.clients:
            raise InputError(
                f"phases: got {phase.clients_per_round} clients a round, expected at most the {schedule.clients} clients"
            )
        if phase.ends:
            iterations = sum(p.local_iterations for p in block)
            if iterations != schedule.local_iterations:
                raise InputError(
                    f"phases: round {first + 1} has {iterations} local iterations, expected {schedule.local_iterations}"
                )
            _append(found, Stretch(tuple(block), first, phase.rounds))
            first, block = first + phase.rounds, []
    if block or first != schedule.rounds:
        raise InputError(f"phases: got {first} whole rounds, expected {schedule.rounds}")
    return tuple(found)


def _append(found: list[Stretch], stretch: Stretch) -> None:
    """Add a stretch, or more rounds to the last one where it continues."""
    if found:
        last = found[-1]
        same = tuple(replace(phase, rounds=stretch.rounds) for phase in last.phases)
        if same == stretch.phases:
            rounds = last.rounds + stretch.rounds
            longer = tuple(replace(phase, rounds=rounds) for phase in last.phases)
            found[-1] = Stretch(longer, last.first, rounds)
            return
    found.append(stretch)


def first_rounds(phases: Sequence[Phase], rounds: int) -> tuple[Phase, ...]:
    """Return the phases of the first rounds of a training that may be longer."""
    found, left = [], rounds
    for phase in phases:
        if left > 0:
            found.append(replace(phase, rounds=min(phase.rounds, left)))
        left -= phase.rounds if phase.ends else 0
    return tuple(found)
