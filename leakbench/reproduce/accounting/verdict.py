"""Whether a printed number holds: whether the claim's own formula gives it under the reading that the paper states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from leakbench.reproduce.accounting.readings import Row
from leakbench.reproduce.accounting.table import AccountingTable, Claim
from leakbench.reproduce.verdict import APART, FAILS, HOLDS

__all__ = ["Judged", "judged"]


@dataclass(frozen=True)
class Judged:
    """A printed number, its formula's, and those of tight accountants, of the reading that is stated, or else of the first."""

    name: str
    claimed: float
    formula: float
    renyi: float
    losses: float
    verdict: str
    reason: str = ""


def judged(table: AccountingTable, rows: pd.DataFrame) -> list[Judged]:
    """Return every claim that was computed, once, however many readings it has.

    Holds: a stated reading gives it.  Where others alone do it does not hold, and the reason names them.
    """
    of = {name: group.to_dict("records") for name, group in rows.groupby("cell", sort=False)}
    return [_judged(claim, of[claim.name]) for claim in table.claims if claim.name in of]


def _judged(claim: Claim, rows: Sequence[Row]) -> Judged:
    stated = [row for row in rows if row["stated"]]
    holding = [row for row in stated if row["gives"]]
    shown = (holding or stated or rows)[0]
    formula, renyi, losses = (float(shown[key]) for key in ("formula", "renyi", "losses"))
    said: str = "" if pd.isna(shown["reason"]) else shown["reason"]
    others = ", ".join(f"'{row['reading']}'" for row in rows if row["gives"])
    if claim.apart:
        verdict, reason = APART, "; ".join(filter(None, (claim.apart, said)))
    elif holding:
        verdict, reason = HOLDS, ""
    else:
        verdict, reason = FAILS, f"{said}; it holds {f'as {others}' if others else 'by no reading that was tried'}"
    return Judged(claim.name, claim.claimed, formula, renyi, losses, verdict, reason)
