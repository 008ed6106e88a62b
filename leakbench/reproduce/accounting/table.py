"""A table of accounting: one YAML file in `studies/` whose lines are printed numbers, each with readings that may give it.

kind:    accounting.
counts:  what the numbers are, a name of `leakbench.reproduce.accounting.measure.COUNTS`.
title, cite, text, question, answer, found:  as of a table of cells.
given:   what all claims are computed from; `federation` has fields of `leakbench.privacy.ledger.Schedule`.
data:    {data set: more of `given`}, for what is printed of several; `federation` is added to the one above.
apart:   what the paper does not state of any number, so that none can be compared; a row may have its own.
rows:    [{name, printed, given, apart}]; `printed` is a number, or {data set: number}, which is a claim each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import pandas as pd
from pydantic import Field

from leakbench.cell import SINCE
from leakbench.core.behaviour import SHARED, raised
from leakbench.core.errors import InputError, nearest
from leakbench.core.part import Count, NonNegative, Positive, Probability, Text, part
from leakbench.core.provenance import versions
from leakbench.core.recipe import construct, nested
from leakbench.core.typed import check_fields
from leakbench.core.words import epsilon_text
from leakbench.data.find import Load
from leakbench.privacy.claim import CLAIM, CompositionClaim, MomentsClaim
from leakbench.privacy.ledger import Schedule
from leakbench.reproduce.columns import text_of
from leakbench.reproduce.file import as_written, called
from leakbench.storage.store import content_hash
from leakbench.study.rows import ACCOUNTING, Row, RowFormat
from leakbench.study.stale import Published, Today

__all__ = [
    "COUNTED",
    "AccountingClaim",
    "AccountingTable",
    "Composed",
    "OfEpsilons",
    "OfFlower",
    "OfGeyer",
    "OfRounds",
    "accounting_of",
    "readings",
    "row_of",
    "schedule_of",
]

Composed: TypeAlias = MomentsClaim | CompositionClaim

FORMULAS = ("moments", "composition")
"""Claims of `leakbench.privacy.claim.CLAIM` that compose steps."""


@part
class _WrittenReading:
    """The fields of a reading."""

    name: Text
    claim: Mapping[str, Mapping[str, Any]]
    stated: bool = False
    pooled: bool = False
    flat: bool = False
    only: tuple[str, ...] | None = None
    because: str = ""


@part
class OfEpsilons:
    """What printed epsilons are computed from.

    Args:
        within: How near a formula's epsilon must be to the printed one.
        delta: Delta at which the tight epsilon is computed.
        examples: Number of all examples; 0 where the file has none.
    """

    federation: Mapping[str, Any]
    readings: Annotated[tuple[Mapping[str, Any], ...], Field(min_length=1)]
    within: NonNegative
    delta: Probability
    examples: Count = 0
    dataset: str = ""


@part
class OfRounds:
    """What printed rounds are computed from.

    Args:
        budget: The epsilon that ends the rounds.
        delta: Delta at which the tight epsilon after the printed round is computed.
        losses: Whether privacy losses are computed after the printed round.
        examples: Number of all examples; 0 where the file has none.
    """

    federation: Mapping[str, Any]
    readings: Annotated[tuple[Mapping[str, Any], ...], Field(min_length=1)]
    budget: Positive
    delta: Probability
    losses: bool = False
    examples: Count = 0
    dataset: str = ""


@part
class Agent:
    """The released agent."""

    sigma: Positive
    clients_per_round: Count


@part
class OfGeyer:
    """What the rounds of Geyer et al. are computed from.

    Args:
        communication: Number of uploads in all.
    """

    federation: Mapping[str, Any]
    epsilon: Positive
    delta: Probability
    clients: Count
    communication: Count
    releases: Annotated[tuple[Count, ...], Field(min_length=1)]
    agent: Annotated[Agent, nested(Agent)]
    dataset: str = ""


@part
class OfFlower:
    """What Flower's epsilons are computed from.

    Args:
        program: The documentation's script, or the accountant by how it is told that clients are sampled.
        adjacency: The reading that the source states; `unnamed` where it names no adjacency, and the number is compared under each.
        within: How near the formula must be to the program's number.
    """

    federation: Mapping[str, Any]
    program: Literal["script", "without replacement", "poisson"]
    adjacency: Text
    noise_multiplier: Positive
    delta: Probability
    within: NonNegative
    dataset: str = ""


COUNTED: dict[str, type[Any]] = {
    "epsilons": OfEpsilons,
    "rounds": OfRounds,
    "geyer_rounds": OfGeyer,
    "flower_epsilons": OfFlower,
}
"""{what the numbers of a table may be: what one is computed from}."""


@dataclass(frozen=True)
class Reading:
    """One way to compute a printed number.

    Args:
        stated: Whether it is what the paper's text says; others are what was found to give the number, or tried.
        part: The formula.
        schedule: The federation, its sampling and its rounds.
        because: Why it does not give the number; may be empty.
    """

    name: str
    stated: bool
    part: Composed
    schedule: Schedule
    because: str = ""


def readings(given: OfEpsilons | OfRounds) -> Iterator[Reading]:
    """Yield the readings of a claim, with the sampling and the steps that each takes.

    pooled: q = B K_t / |D| (`examples`) instead of B / |D_i|.  flat: every local iteration counts as a round.  only: data
    sets, where the reading is not for all.  Raises InputError for an unknown field.
    """
    for said in given.readings:
        where = f"reading {said.get('name')!r}: "
        try:
            reading = _reading(construct(_WrittenReading, said), given)
        except InputError as error:
            raise InputError(f"{where}{error}") from None
        if reading is not None:
            yield reading


def _reading(said: _WrittenReading, given: OfEpsilons | OfRounds) -> Reading | None:
    """Return a reading as it is written; None where it is not of the claim's data set."""
    if said.only is not None and given.dataset not in said.only:
        return None
    if len(said.claim) != 1 or next(iter(said.claim)) not in FORMULAS:
        raise InputError(f"claim: got {', '.join(said.claim) or 'none'}, expected one of {', '.join(FORMULAS)}")
    [(formula, fields)] = said.claim.items()
    schedule = schedule_of(given.federation)
    if said.pooled:
        if not given.examples:
            raise InputError("pooled: takes the number of all examples; field 'examples' is missing")
        batch = schedule.batch * schedule.clients_per_round
        schedule = dataclasses.replace(schedule, batch=batch, examples_per_client=given.examples)
    if said.flat:
        steps = schedule.rounds * schedule.local_iterations
        schedule = dataclasses.replace(schedule, rounds=steps, local_iterations=1)
    try:
        said.because.format(alone=0.0)
    except (KeyError, IndexError, ValueError, AttributeError):
        raise InputError(f"because: got {said.because!r}, expected no braces but {{alone}}") from None
    try:
        part_ = construct(CLAIM.parts[formula], fields)
    except InputError as error:
        raise InputError(f"claim: {formula}: {error}") from None
    return Reading(said.name, said.stated, part_, schedule, said.because)


def schedule_of(federation: Mapping[str, Any], **changes: Any) -> Schedule:
    """Return the federation of a claim, with some fields changed; raises InputError for a field that is wrong or missing."""
    fields = {**federation, **changes}
    try:
        check_fields(Schedule, fields, "a federation", whole=True)
        return Schedule(**fields)
    except InputError as error:
        raise InputError(f"federation: {error}") from None


def row_of(name: str, stated: bool, formula: float | None, tight: tuple[float, float], gives: bool, why: str) -> Row:
    """Return the row of a reading.

    Args:
        tight: By Rényi divergences, by losses.
        why: Kept where the formula does not give the number.
    """
    renyi, losses = tight
    same: Row = {"reading": name, "stated": int(stated), "formula": formula, "renyi": renyi, "losses": losses}
    return {**same, "gives": int(gives), "reason": "" if gives else why}


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


def _check_claim(claim: AccountingClaim) -> None:
    """Raise InputError for a printed number that its kind cannot be, and for what it is computed from: fields, types, readings."""
    given, claimed = claim.facts, claim.claimed
    if claim.counts.endswith("rounds") and claimed != int(claimed):
        raise InputError(f"printed: got {claimed:g}, expected a whole number of rounds")
    if isinstance(given, OfGeyer):
        _check_geyer(int(claimed), given)
        return
    schedule = schedule_of(given.federation)
    if isinstance(given, OfRounds) and claimed > schedule.rounds:
        raise InputError(f"printed: got {claimed:g}, expected rounds from 1 to the {schedule.rounds} of the federation")
    if not isinstance(given, OfFlower) and not list(readings(given)):
        raise InputError(f"readings: none is of the data set {given.dataset!r}; expected at least one")


def _check_geyer(printed: int, given: OfGeyer) -> None:
    mean = round(2 * given.communication / printed)
    if not 1 <= mean <= 2 * given.clients:
        raise InputError(
            f"communication: got {given.communication} for {printed} rounds, expected up to clients ({given.clients}) a round"
        )
    schedule_of(given.federation, clients=2 * given.clients, clients_per_round=mean)
    schedule_of(given.federation, clients=2 * given.clients, clients_per_round=2 * given.agent.clients_per_round)


@dataclass(frozen=True)
class AccountingClaim:
    """A printed number.

    Args:
        counts: What it is.
        given: All that its readings are computed from, as the file has it; `facts` are the checked fields.
        apart: Why it cannot be compared.
    """

    name: str
    claimed: float
    counts: str
    given: Mapping[str, Any]
    apart: str = ""

    @property
    def facts(self) -> OfEpsilons | OfRounds | OfGeyer | OfFlower:
        """What it is computed from; raises InputError for a wrong or missing field."""
        found: OfEpsilons | OfRounds | OfGeyer | OfFlower = construct(COUNTED[self.counts], self.given)
        return found

    @property
    def hash(self) -> str:
        """Hash of what is computed and of the versions that compute it: a row with another hash is computed again."""
        made = {"leakbench": SINCE, "dp-accounting": versions()["dp-accounting"], **raised(self.versions)}
        return content_hash([self.counts, self.claimed, self.given, made])[:12]

    @property
    def versions(self) -> dict[str, int]:
        """{name: behaviour version} of what computes it."""
        return {"accounting": SHARED["accounting"]}


@dataclass(frozen=True)
class AccountingTable:
    """What a file of such a table says.

    Args:
        called: How a command asks for it.
    """

    name: str
    title: str
    text: str
    claims: tuple[AccountingClaim, ...]
    cite: str = ""
    found: str = ""
    called: str = ""
    question: str = ""
    answer: str = ""

    computed: ClassVar[bool] = True
    alone: ClassVar[str] = "is computed, not measured"
    format: ClassVar[RowFormat] = ACCOUNTING

    def names(self, scale: str) -> list[str]:
        """Return the names of its claims, which are the same at every scale."""
        return [claim.name for claim in self.claims]

    def current(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of claims that the table has."""
        return rows[rows["cell"].isin(self.names("full"))].reset_index(drop=True)

    def published(self, row: Mapping[Any, Any], data_dir: Path | None) -> Published:
        """Return what a row of its CSV says, for `leakbench.study.stale`; no data are read."""

        def today(_: Load) -> Today:
            claims = {claim.name: claim for claim in self.claims}
            if row["cell"] not in claims:
                raise InputError(f"{self.called} has no row {row['cell']!r}")
            claim = claims[row["cell"]]
            return Today(claim.hash, claim.versions)

        return Published(self.name, row["cell"], "", "", today)

    def line_of(self, row: Row) -> str:
        """Return the line that reports a new row: a printed number by one reading."""
        given = "given by this reading" if row["gives"] else "not given by it"
        valid: float = row["renyi"] if pd.isna(row["losses"]) else row["losses"]
        return (
            f"{row['cell']}, {row['reading']}: claimed {row['claimed']:g}, formula {text_of(row['formula'], 4)} ({given}), "
            f"valid epsilon {epsilon_text(valid, '.4f')}"
        )


def accounting_of(path: Path, body: Mapping[str, Any]) -> AccountingTable:
    """Return the table in a file; raises InputError for a wrong or missing field."""
    written = as_written(path, WrittenAccounting, body)
    if written.counts not in COUNTED:
        raise InputError(f"{path}: counts: got {written.counts!r}{nearest(written.counts, tuple(COUNTED))}")
    if not written.rows:
        raise InputError(f"{path}: rows: got none, expected at least one claim, as - {{name: mine, printed: 1.5}}")
    rows = [as_written(path, WrittenClaim, row, f"row {row.get('name')!r}: ") for row in written.rows]
    claims = tuple(claim for row in rows for claim in _claims(path, written, row))
    names = [claim.name for claim in claims]
    for name in {name for name in names if names.count(name) > 1}:
        raise InputError(f"{path}: rows: two are called {name!r}")
    words = {key: getattr(written, key).strip() for key in ("title", "text", "cite", "found", "question", "answer")}
    return AccountingTable(path.stem, claims=claims, called=called(path), **words)


def _claims(path: Path, table: WrittenAccounting, row: WrittenClaim) -> Iterator[AccountingClaim]:
    where, given, apart = f"{path}: row {row.name!r}: ", {**table.given, **row.given}, row.apart or table.apart
    if not isinstance(row.printed, Mapping):
        yield _checked(where, AccountingClaim(row.name, _number(where, row.printed), table.counts, given, apart))
        return
    if not row.printed:
        raise InputError(f"{where}printed: got none, expected a number, or {{data set: number}}")
    for data, number in row.printed.items():
        if data not in table.data:
            raise InputError(f"{where}printed: {data!r} is not in data{nearest(str(data), list(table.data))}")
        own = table.data[data]
        federations = [x.get("federation", {}) for x in (given, own)]
        for found in federations:
            if not isinstance(found, Mapping):
                raise InputError(f"{where}federation: got {found!r}, expected a mapping of fields")
        all_given = {**own, **given, "dataset": data, "federation": {**federations[0], **federations[1]}}
        yield _checked(
            where, AccountingClaim(f"{row.name}, {data}", _number(where, number), table.counts, all_given, apart)
        )


def _number(where: str, printed: Any) -> float:
    if type(printed) not in (int, float) or not 0 < printed < math.inf:
        raise InputError(f"{where}printed: got {printed!r}, expected a finite number > 0")
    return float(printed)


def _checked(where: str, claim: AccountingClaim) -> AccountingClaim:
    try:
        _check_claim(claim)
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    return claim
