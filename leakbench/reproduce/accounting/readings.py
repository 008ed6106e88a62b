"""Readings of a claim: under which federation, by which formula and with which sigma a printed number is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from leakbench.errors import InputError, nearest
from leakbench.privacy.claim import CLAIMS, CompositionClaim, MomentsClaim
from leakbench.privacy.ledger import Schedule
from leakbench.recipe import construct

__all__ = ["Composed", "Reading", "Row", "readings", "row_of", "schedule_of"]

Row: TypeAlias = dict[Any, Any]
Composed: TypeAlias = MomentsClaim | CompositionClaim

FIELDS = ("name", "claim", "stated", "pooled", "flat", "only", "because")


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
        for name in said:
            if name not in FIELDS:
                raise InputError(f"reading {said.get('name')!r}: unknown field {name!r}{nearest(str(name), FIELDS)}")
        if given["dataset"] not in said.get("only", [given["dataset"]]):
            continue
        [(part, fields)] = said["claim"].items()
        schedule = schedule_of(given)
        if said.get("pooled"):
            batch = schedule.batch * schedule.clients_per_round
            schedule = dataclasses.replace(schedule, batch=batch, examples_per_client=given["examples"])
        if said.get("flat"):
            steps = schedule.rounds * schedule.local_iterations
            schedule = dataclasses.replace(schedule, rounds=steps, local_iterations=1)
        because = said.get("because", "")
        yield Reading(said["name"], bool(said.get("stated")), construct(CLAIMS[part], fields), schedule, because)


def schedule_of(given: Mapping[str, Any], **changes: Any) -> Schedule:
    """Return the federation of a claim, with some fields changed."""
    return Schedule(**{**given["federation"], **changes})


def row_of(name: str, stated: bool, formula: float | None, valid: tuple[float, float], gives: bool, why: str) -> Row:
    """Return the row of a reading. valid: by Rényi divergences, by losses; why: kept where the formula does not give the number."""
    renyi, losses = valid
    same: Row = {"reading": name, "stated": int(stated), "formula": formula, "renyi": renyi, "losses": losses}
    return {**same, "gives": int(gives), "reason": "" if gives else why}
