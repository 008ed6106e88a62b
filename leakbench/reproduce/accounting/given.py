"""What the claims of a table of accounting are computed from: the fields of each kind of number, and their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from leakbench.errors import InputError
from leakbench.part import Count, NonNegative, Positive, Probability, Text, part
from leakbench.recipe import construct
from leakbench.reproduce.accounting.readings import readings, schedule_of

__all__ = ["COUNTED", "WrittenAccounting", "WrittenClaim", "check_claim"]


@part
class WrittenAccounting:
    """The fields of a table of accounting; what they mean says `leakbench.reproduce.accounting.table`."""

    kind: str
    counts: str
    title: Text
    text: str
    given: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cite: str = ""
    apart: str = ""
    found: str = ""
    question: str = ""
    answer: str = ""


@part
class WrittenClaim:
    """The fields of a row."""

    name: Text
    printed: Any
    given: Mapping[str, Any] = field(default_factory=dict)
    apart: str = ""


@part
class _OfEpsilons:
    """See `leakbench.reproduce.accounting.epsilons`."""

    federation: Mapping[str, Any]
    readings: Annotated[tuple[Mapping[str, Any], ...], Field(min_length=1)]
    within: NonNegative
    delta: Probability
    examples: Count = 1
    dataset: str = ""


@part
class _OfRounds:
    """See `leakbench.reproduce.accounting.rounds`."""

    federation: Mapping[str, Any]
    readings: Annotated[tuple[Mapping[str, Any], ...], Field(min_length=1)]
    budget: Positive
    delta: Probability
    losses: bool = False
    examples: Count = 1
    dataset: str = ""


@part
class _Agent:
    """The released agent."""

    sigma: Positive
    clients_per_round: Count


def _agent(fields: Any) -> _Agent:
    try:
        return construct(_Agent, fields)
    except InputError as error:
        raise PydanticCustomError("slot", "{text}", {"text": str(error)}) from None


@part
class _OfGeyer:
    """See `leakbench.reproduce.accounting.geyer`."""

    federation: Mapping[str, Any]
    epsilon: Positive
    delta: Probability
    clients: Count
    communication: Count
    releases: Annotated[tuple[Count, ...], Field(min_length=1)]
    agent: Annotated[_Agent, BeforeValidator(_agent)]
    dataset: str = ""


@part
class _OfFlower:
    """See `leakbench.reproduce.accounting.flower`."""

    federation: Mapping[str, Any]
    program: Literal["script", "without replacement", "poisson"]
    noise_multiplier: Positive
    delta: Probability
    within: NonNegative
    dataset: str = ""


COUNTED: dict[str, type[Any]] = {
    "epsilons": _OfEpsilons,
    "rounds": _OfRounds,
    "geyer_rounds": _OfGeyer,
    "flower_epsilons": _OfFlower,
}
"""{what the numbers of a table may be: what one is computed from}."""


def check_claim(claimed: float, counts: str, given: Mapping[str, Any]) -> None:
    """Raise InputError for a printed number that its kind cannot be, and for what it is computed from: fields, types, readings."""
    construct(COUNTED[counts], given)
    if counts.endswith("rounds") and claimed != int(claimed):
        raise InputError(f"printed: got {claimed:g}, expected a whole number of rounds")
    if counts == "geyer_rounds":
        _check_geyer(int(claimed), given)
        return
    schedule = schedule_of(given)
    if counts == "rounds" and claimed > schedule.rounds:
        raise InputError(f"printed: got {claimed:g}, expected rounds from 1 to the {schedule.rounds} of the federation")
    if counts != "flower_epsilons":
        pooled = [reading.schedule for reading in readings(given)]
        if not pooled:
            raise InputError(f"readings: none is of the data set {given.get('dataset')!r}; expected at least one")


def _check_geyer(printed: int, given: Mapping[str, Any]) -> None:
    mean = round(2 * given["communication"] / printed)
    if not 1 <= mean <= 2 * given["clients"]:
        raise InputError(
            f"communication: got {given['communication']} for {printed} rounds, expected up to clients ({given['clients']}) a round"
        )
    schedule_of(given, clients=2 * given["clients"], clients_per_round=mean)
    schedule_of(given, clients=2 * given["clients"], clients_per_round=2 * given["agent"]["clients_per_round"])
