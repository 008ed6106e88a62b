"""A table of accounting: one YAML file in `results/tables/` whose lines are printed numbers, each with readings that may give it.

kind:    accounting.
counts:  what the numbers are, a name of `leakbench.reproduce.accounting.measure.COUNTS`.
title, cite, text, question, answer, found:  as of a table of cells.
given:   what all claims are computed from; `federation` has fields of `leakbench.privacy.ledger.Schedule`.
data:    {data set: more of `given`}, for what is printed of several; `federation` is added to the one above.
apart:   what the paper does not state of any number, so that none can be compared; a row may have its own.
rows:    [{name, printed, given, apart}]; `printed` is a number, or {data set: number}, which is a claim each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import leakbench.privacy
from leakbench.behaviour import raised
from leakbench.cell import SINCE
from leakbench.errors import InputError, nearest
from leakbench.provenance import versions
from leakbench.reproduce.accounting.given import COUNTED, WrittenAccounting, WrittenClaim, check_claim
from leakbench.reproduce.file import called, check
from leakbench.reproduce.written import as_written
from leakbench.store import content_hash

__all__ = ["COUNTED", "AccountingTable", "Claim", "accounting_of"]


@dataclass(frozen=True)
class Claim:
    """A printed number. counts: what it is.  given: all that its readings are computed from.  apart: why it cannot be compared."""

    name: str
    claimed: float
    counts: str
    given: Mapping[str, Any]
    apart: str = ""

    @property
    def hash(self) -> str:
        """What is computed, and by which versions: a row of another hash is computed again."""
        made = {"leakbench": SINCE, "dp-accounting": versions()["dp-accounting"], **raised(self.versions)}
        return content_hash([self.counts, self.claimed, self.given, made])[:12]

    @property
    def versions(self) -> dict[str, int]:
        """{name: behaviour version} of what computes it."""
        return {"accounting": leakbench.privacy.BEHAVIOUR}


@dataclass(frozen=True)
class AccountingTable:
    """What a file of such a table says; called: how a command asks for it."""

    name: str
    title: str
    text: str
    claims: tuple[Claim, ...]
    cite: str = ""
    found: str = ""
    called: str = ""
    question: str = ""
    answer: str = ""


def accounting_of(path: Path, body: Mapping[str, Any]) -> AccountingTable:
    """Return the table that a file says; raises InputError for what is none, or wrong."""
    optional = ("cite", "data", "apart", "found", "question", "answer")
    check(path, body, ("kind", "counts", "title", "text", "given", "rows"), optional)
    as_written(path, WrittenAccounting, body)
    if body["counts"] not in COUNTED:
        raise InputError(f"{path}: counts: got {body['counts']!r}{nearest(str(body['counts']), tuple(COUNTED))}")
    if not body["rows"]:
        raise InputError(f"{path}: rows: got none, expected at least one claim, as - {{name: mine, printed: 1.5}}")
    for row in body["rows"]:
        where = f"row {row.get('name')!r}: "
        check(path, row, ("name", "printed"), ("given", "apart"), where)
        as_written(path, WrittenClaim, row, where)
    claims = tuple(claim for row in body["rows"] for claim in _claims(path, body, row))
    names = [claim.name for claim in claims]
    for name in {name for name in names if names.count(name) > 1}:
        raise InputError(f"{path}: rows: two are called {name!r}")
    words = {key: body.get(key, "").strip() for key in ("title", "text", "cite", "found", "question", "answer")}
    return AccountingTable(path.stem, claims=claims, called=called(path), **words)


def _claims(path: Path, body: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Claim]:
    given, apart = {**body["given"], **row.get("given", {})}, row.get("apart", body.get("apart", ""))
    where, printed, facts = f"{path}: row {row['name']!r}: ", row["printed"], body.get("data", {})
    if not isinstance(printed, Mapping):
        yield _checked(where, Claim(row["name"], _number(where, printed), body["counts"], given, apart))
        return
    if not printed:
        raise InputError(f"{where}printed: got none, expected a number, or {{data set: number}}")
    for data, number in printed.items():
        if data not in facts:
            raise InputError(f"{where}printed: {data!r} is not in data{nearest(str(data), list(facts))}")
        own = facts[data]
        federations = [x.get("federation", {}) for x in (given, own)]
        for found in federations:
            if not isinstance(found, Mapping):
                raise InputError(f"{where}federation: got {found!r}, expected a mapping of fields")
        all_given = {**own, **given, "dataset": data, "federation": {**federations[0], **federations[1]}}
        name = f"{row['name']}, {data}"
        yield _checked(where, Claim(name, _number(where, number), body["counts"], all_given, apart))


def _number(where: str, printed: Any) -> float:
    if type(printed) not in (int, float) or not 0 < printed < math.inf:
        raise InputError(f"{where}printed: got {printed!r}, expected a finite number > 0")
    return float(printed)


def _checked(where: str, claim: Claim) -> Claim:
    try:
        check_claim(claim.claimed, claim.counts, claim.given)
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    return claim
