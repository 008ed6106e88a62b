"""Verdicts on printed epsilons and rounds: whether the claim's own formula gives them as the paper states it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from leakbench.reproduce.accounting.readings import Row
from leakbench.reproduce.accounting.table import AccountingTable, Claim
from leakbench.reproduce.verdict import CONTRADICTED, DIFFERENT, REPRODUCED

__all__ = ["Judged", "judged"]


NO_READING = "given by no reading that was tried"


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

    Reproduced: a stated reading gives the printed digits. Contradicted: none does; the reason names other readings that do.
    Different setting: the paper does not state what the formula needs.
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
        verdict, reason = DIFFERENT, "; ".join(filter(None, (claim.apart, said)))
    elif holding:
        verdict, reason = REPRODUCED, ""
    else:
        verdict, reason = CONTRADICTED, f"{said}; {f'given by {others}' if others else NO_READING}"
    return Judged(claim.name, claim.claimed, formula, renyi, losses, verdict, reason)
