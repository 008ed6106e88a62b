"""The ledger: how a federation samples one unit's data, and the phases of its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from leakbench.core.errors import InputError, nearest
from leakbench.core.types import Fact

__all__ = ["OWN_NOISE", "UNREAD", "Phase", "Schedule", "Stretch", "Unit", "first_rounds", "stretches", "unit_name"]

Unit: TypeAlias = Literal["example", "client"]


def unit_name(unit: Unit, examples_per_person: int = 1, most_copies: int = 1) -> str:
    """Return what an epsilon protects, as it follows the word `one` on every page.

    Args:
        examples_per_person: K, see `Schedule`.
        most_copies: M, the largest number of clients that hold one example, and so of those that hold examples of a person.
    """
    if unit == "client" or examples_per_person == 1:
        return unit
    where = "no more than one client" if most_copies == 1 else f"each of at most {most_copies} clients"
    return f"person with at most {examples_per_person} examples at {where}"


OWN_NOISE = "noise of its own, not accounted"
"""Start of the reason in the fact of a part that draws random numbers and states no fact about them."""

UNREAD = "no epsilon follows from code that is not read"
"""Start of the reason in the fact of a part that runs the code of another framework."""

COUNTS = ("example", "client", "uses")


@dataclass(frozen=True)
class Schedule:
    """How a federation trains and samples, and the counts of a finished run.

    Args:
        clients: N.
        clients_per_round: K_t.
        rounds: T >= 0.
        local_iterations: L.
        batch: B.
        examples_per_client: |D_i|.
        copies: Average number of clients that hold one training example.
        most_copies: Largest number of clients that hold one training example.
        client_sampling: `poisson`, `fixed` (K_t without replacement) or `in_turn` (the next K_t of one shuffled list).
        groups: Number of groups of clients that take turns with Poisson cohorts: a client can take part in each so many-th round
            only, with as many times the probability K_t / N. 1 without groups.
        batch_sampling: `poisson`, `fixed` (B without replacement, drawn again in each local iteration) or `split` (passes over a
            shuffled list).
        tensors: Number of parameter tensors.
        largest: Largest counts of a finished run, None before it. `example`: clients' updates with one example; `client`: rounds of
            one client; `uses`: batches with one example. Only the realised figure uses them, never a valid epsilon.
        secure_aggregation: Whether the server sees only the sum of the updates of a round.
        shuffled: Whether the server sees the updates of a round in a random order, without the clients' names.
        dropout: Probability that a drawn client fails. The round continues without it, and so without its noise.
        client_optimizer: `sgd`, whose update is a sum of the noisy gradients, or `adam`, whose update is another function of them.
        examples_per_person: K, the largest number of examples of one person in the data of a client. With more than 1, the unit
            `example` is a person with at most K examples at each of at most `most_copies` clients; a person at more clients is
            not covered.
        by_availability: Whether clients take part by availability, which no epsilon may count as random: each client counts in
            every round, and a round may have fewer than K_t clients.
        control_variates: Whether clients keep a control variate of SCAFFOLD, with their own noise alone, for later rounds. Then no
            epsilon counts the noise of other clients, nor cohorts of a fixed size as random: what other clients send depends on
            the earlier cohorts.

    Raises:
        InputError: For a field outside its range.
    """

    clients: int
    clients_per_round: int
    rounds: int
    local_iterations: int
    batch: int
    examples_per_client: int
    copies: float
    most_copies: int
    client_sampling: Literal["poisson", "fixed", "in_turn"]
    batch_sampling: Literal["poisson", "fixed", "split"]
    tensors: int
    largest: dict[str, int] | None = None
    secure_aggregation: bool = False
    shuffled: bool = False
    dropout: float = 0.0
    client_optimizer: str = "sgd"
    examples_per_person: int = 1
    groups: int = 1
    by_availability: bool = False
    control_variates: bool = False

    def __post_init__(self) -> None:
        federation = ("clients", "clients_per_round", "local_iterations", "batch", "examples_per_client", "groups")
        for name in (*federation, "tensors", "examples_per_person"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.rounds < 0:
            raise InputError(f"rounds: got {self.rounds}, expected at least 0")
        for name, most, what in (
            ("clients_per_round", self.clients, "clients"),
            ("batch", self.examples_per_client, "examples of a client"),
            ("examples_per_person", self.examples_per_client, "examples of a client"),
        ):
            if getattr(self, name) > most:
                raise InputError(f"{name}: got {getattr(self, name)}, expected at most the {most} {what}")
        if self.groups > 1 and (
            self.client_sampling != "poisson" or self.groups * self.clients_per_round > self.clients
        ):
            raise InputError(
                f"groups: got {self.groups} groups with {self.client_sampling} cohorts of {self.clients_per_round} of "
                f"{self.clients} clients, expected poisson cohorts, and in each group enough clients for one"
            )
        if not 0 < self.copies <= self.most_copies <= self.clients:
            raise InputError(
                f"copies: got {self.copies} (most_copies {self.most_copies}), expected 0 < mean <= most <= clients"
            )
        for name, known in (
            ("client_sampling", ("poisson", "fixed", "in_turn")),
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
        """Whether every sum of a round contains the noise of exactly K_t clients, and no later sum shows it again.

        A control variate carries a client's own noise into its later updates. So the sums of later rounds show it again without
        the noise of the same other clients.
        """
        certain = self.client_sampling != "poisson" and not self.dropout and not self.by_availability
        return certain and not self.control_variates

    @property
    def client_rate(self) -> float:
        """K_t / N, the probability that a client takes part in a round."""
        return self.clients_per_round / self.clients

    @property
    def example_rate(self) -> float:
        """B / |D_i|, the probability that an example of a client is in the batch of one local iteration."""
        return self.batch / self.examples_per_client

    def counted(self, name: str) -> int | None:
        """Return the largest count of the run under `name`, None if it was not counted."""
        return (self.largest or {}).get(name)

    def expected_participations(self, unit: Unit, drawn: int | None = None) -> float:
        """Return the average number of participations: rounds of a client, updates of an example's holders.

        Args:
            drawn: Number of clients of all rounds together, if K_t varies; None for T * K_t.
        """
        drawn = self.rounds * self.clients_per_round if drawn is None else drawn
        return drawn / self.clients * (self.copies if unit == "example" else 1.0)

    @property
    def in_turn(self) -> bool:
        """Whether clients take turns, so that nothing about the draw is random to an observer."""
        return self.client_sampling == "in_turn"

    @property
    def separation(self) -> int:
        """Least difference between two rounds with one client."""
        return self.clients // self.clients_per_round if self.in_turn else self.groups

    def turns(self, rounds: int) -> int:
        """Return the largest number of consecutive rounds in which one client's group has its turn; all without groups."""
        return -(-rounds // self.groups)

    def rate(self, cohort: int) -> float:
        """Return the probability that a client takes part in a round of `cohort` clients in which its group has its turn.

        By availability it may take part in every round, so that the probability counts as 1.
        """
        return 1.0 if self.by_availability else self.groups * cohort / self.clients

    def most_participations(self, unit: Unit, cohort: int, rounds: int = 1) -> int:
        """Return the largest number of participations of a unit in rounds of `cohort` clients, over all draws of clients."""
        holders = self.most_copies if unit == "example" else 1
        most = self.turns(rounds) * (min(holders, cohort) if self.client_sampling != "poisson" else holders)
        return min(most, holders * -(-rounds * cohort // self.clients)) if self.in_turn else most

    def passes(self) -> int:
        """Return the number of uses of an example of a fixed split in one participation, one per pass."""
        whole = self.examples_per_client - self.examples_per_client % self.batch
        return -(-self.local_iterations * self.batch // whole)


@dataclass(frozen=True)
class Phase:
    """A block of the training in which every station does the same thing.

    The phases of one round follow each other, and the last one has `ends`.

    Args:
        facts: {station: facts of its transforms, oldest first}.
        rounds: Number of consecutive rounds.
        local_iterations: Number of local iterations in each of these rounds.
        ends: Whether the phase contains the last local iteration, so that it releases the rounds' updates.
        clients_per_round: K_t in these rounds.

    Raises:
        InputError: For a count below 1.
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
    """Consecutive rounds with the same phases.

    Args:
        first: Index of the first round, from 0.
        rounds: Number of rounds.
    """

    phases: tuple[Phase, ...]
    first: int
    rounds: int

    @property
    def clients_per_round(self) -> int:
        """K_t in each of these rounds."""
        return self.phases[-1].clients_per_round


def stretches(phases: Sequence[Phase], schedule: Schedule) -> tuple[Stretch, ...]:
    """Return the training as stretches, in order.

    Raises:
        InputError: If the phases do not match the schedule's rounds and local iterations.
    """
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
    """Append a stretch, or add its rounds to the last one if the phases are the same."""
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
    """Return the phases of the first `rounds` rounds of a training."""
    found, left = [], rounds
    for phase in phases:
        if left > 0:
            found.append(replace(phase, rounds=min(phase.rounds, left)))
        left -= phase.rounds if phase.ends else 0
    return tuple(found)
