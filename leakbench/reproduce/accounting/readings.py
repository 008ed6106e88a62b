"""Readings of a claim: under which federation, by which formula and with which sigma a printed number is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from leakbench.errors import InputError
from leakbench.part import Text, part
from leakbench.privacy.claim import CLAIM, CompositionClaim, MomentsClaim
from leakbench.privacy.ledger import Schedule
from leakbench.recipe import construct
from leakbench.typed import check_fields

__all__ = ["Composed", "Reading", "Row", "readings", "row_of", "schedule_of"]

Row: TypeAlias = dict[Any, Any]
Composed: TypeAlias = MomentsClaim | CompositionClaim

FORMULAS = ("moments", "composition")
"""Claims of the slot `leakbench.privacy.claim.CLAIM` that compose steps."""


@part
class _Written:
    """The fields of a reading."""

    name: Text
    claim: Mapping[str, Mapping[str, Any]]
    stated: bool = False
    pooled: bool = False
    flat: bool = False
    only: tuple[str, ...] | None = None
    because: str = ""


@dataclass(frozen=True)
class Reading:
    """One way to compute a printed number.

    stated: whether it is what the paper's text says; others are what was found to give the number, or tried.  part: the
    formula.  schedule: the federation, its sampling and its rounds.  because: why it does not give the number; may be empty.
    """

    name: str
    stated: bool
    part: Composed
    schedule: Schedule
    because: str = ""


def readings(given: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield the readings of a claim, with the sampling and the steps that each takes.

    pooled: q = B K_t / |D| (`examples`) in the stead of B / |D_i|.  flat: every local iteration is a round of its own.  only:
    data sets, where the reading is not for all.  Raises InputError for a field that there is not.
    """
    for said in given["readings"]:
        where = f"reading {said.get('name')!r}: "
        try:
            reading = _reading(construct(_Written, said), given)
        except InputError as error:
            raise InputError(f"{where}{error}") from None
        if reading is not None:
            yield reading


def _reading(said: _Written, given: Mapping[str, Any]) -> Reading | None:
    """Return a reading as it is written; None where it is not of the claim's data set."""
    if said.only is not None and given.get("dataset") not in said.only:
        return None
    if len(said.claim) != 1 or next(iter(said.claim)) not in FORMULAS:
        raise InputError(f"claim: got {', '.join(said.claim) or 'none'}, expected one of {', '.join(FORMULAS)}")
    [(formula, fields)] = said.claim.items()
    schedule = schedule_of(given)
    if said.pooled:
        if "examples" not in given:
            raise InputError("pooled: takes the number of all examples; field 'examples' is missing")
        batch = schedule.batch * schedule.clients_per_round
        schedule = dataclasses.replace(schedule, batch=batch, examples_per_client=given["examples"])
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


def schedule_of(given: Mapping[str, Any], **changes: Any) -> Schedule:
    """Return the federation of a claim, with some fields changed; raises InputError for a field that is wrong or missing."""
    fields = {**given["federation"], **changes}
    try:
        check_fields(Schedule, fields, "a federation", whole=True)
        return Schedule(**fields)
    except InputError as error:
        raise InputError(f"federation: {error}") from None


def row_of(name: str, stated: bool, formula: float | None, tight: tuple[float, float], gives: bool, why: str) -> Row:
    """Return the row of a reading. tight: by Rényi divergences, by losses; why: kept where the formula does not give the number."""
    renyi, losses = tight
    same: Row = {"reading": name, "stated": int(stated), "formula": formula, "renyi": renyi, "losses": losses}
    return {**same, "gives": int(gives), "reason": "" if gives else why}
