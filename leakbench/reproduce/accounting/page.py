"""The page of a table of accounting in Markdown: every claim with its verdict, then every reading of it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from leakbench.box import box_of, caveats_of
from leakbench.core.scripts import in_table, markdown_table, untagged
from leakbench.core.words import epsilon_text
from leakbench.reproduce.accounting.table import AccountingClaim, AccountingTable
from leakbench.reproduce.page import counted, unlinked
from leakbench.reproduce.published import rows_of
from leakbench.reproduce.verdict import CONTRADICTED, DIFFERENT, REPRODUCED, UNDECIDED
from leakbench.study.rows import Row
from leakbench.study.stale import stale_names

__all__ = ["accounting_page", "judged"]

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
    Different setting: the paper does not state what the formula needs. If the source states no reading, the number is compared
    under each: reproduced if it holds under all, contradicted if it holds under none, else undecided, with the value of each.
    """
    of = {name: group.to_dict("records") for name, group in rows.groupby("cell", sort=False)}
    return [_judged(claim, of[claim.name]) for claim in table.claims if claim.name in of]


def _judged(claim: AccountingClaim, rows: Sequence[Row]) -> Judged:
    stated = [row for row in rows if row["stated"]]
    holding = [row for row in stated if row["gives"]]
    shown = (holding or stated or [row for row in rows if row["gives"]] or rows)[0]
    formula, renyi, losses = (float(shown[key]) for key in ("formula", "renyi", "losses"))
    said: str = "" if pd.isna(shown["reason"]) else shown["reason"]
    others = ", ".join(f"'{row['reading']}'" for row in rows if row["gives"])
    if claim.apart:
        verdict, reason = DIFFERENT, "; ".join(filter(None, (claim.apart, said)))
    elif not stated:
        gives = [bool(row["gives"]) for row in rows]
        verdict = REPRODUCED if all(gives) else UNDECIDED if any(gives) else CONTRADICTED
        each = f"the source names none of these: {'; '.join(map(_under, rows))}"
        reason = "" if all(gives) else each if any(gives) else f"{each}; {NO_READING}"
    elif holding:
        verdict, reason = REPRODUCED, ""
    else:
        verdict, reason = CONTRADICTED, f"{said}; {f'given by {others}' if others else NO_READING}"
    return Judged(claim.name, claim.claimed, formula, renyi, losses, verdict, reason)


def _under(row: Row) -> str:
    """Return a reading, its epsilon by privacy losses or else its formula's number, and whether the printed number holds."""
    value: float = row["formula"] if pd.isna(row["losses"]) else row["losses"]
    return f"{row['reading']}: {value:.4g} ({'holds' if row['gives'] else 'does not hold'})"


RULE = (
    "A printed number is reproduced if the claim's own formula, as the paper states it, gives the same digits, and contradicted"
    " if it does not. Numbers are exact, so no test is needed. The columns use the paper's formula. Same formula, tight accountant:"
    " the epsilon of the noise, sampling and steps that the formula counts, by Rényi divergences with their tight conversion and by"
    " privacy loss distributions. The valid epsilon differs: it counts the mechanism as executed, with its clip, its sampling of"
    " clients and the copies of an example; see [defenses.md](../defenses/defenses.md)."
    " [What the verdicts mean](../../docs/papers.md#verdicts)."
)

COVERS = (
    "A number is reproduced if it is at least the epsilon of the same noise, sampling and steps by a tight accountant (privacy"
    " losses), under the adjacency that the source names, and contradicted if it is less. If the source names none, the number is"
    " compared under each: contradicted only if it is too small under all, undecided if under some. The columns are then those of"
    " the first reading that holds, else of the first. Numbers are exact, so no test is needed. By"
    " Rényi divergences, this epsilon is a little larger. The valid epsilon of a defense as executed differs; see"
    " [defenses.md](../defenses/defenses.md). [What the verdicts mean](../../docs/papers.md#verdicts)."
)

AGAIN = (
    '`leakbench reproduce {name} --again --only "CLAIM"` computes a claim again. Nothing is trained or sampled, so that `--scale`'
    " quick and full are the same."
)

TIGHT = "same formula, tight accountant"
"""Name of the epsilon of what a formula counts, by accountants of today; `valid` is of a mechanism as executed."""

CLAIM_HEADS = (
    *("claim", "claimed", "by the claim's own formula", f"{TIGHT}: Rényi", f"{TIGHT}: losses", "verdict", "reason"),
)
READING_HEADS = ("claim", "reading", "stated", "formula", "Rényi", "losses", "gives it", "reason")


def accounting_page(table: AccountingTable, rows: pd.DataFrame, out: Path | None = None) -> str:
    """Return the page.

    Args:
        table: The table.
        rows: Its rows.
        out: The folder of the page; None for a published page, which lies next to the documentation.
    """
    verdicts = judged(table, rows)
    claims = [
        (
            in_table(c.name),
            f"{c.claimed:.9g}",
            *map(_number, (c.formula, c.renyi, c.losses)),
            f"**{c.verdict}**",
            in_table(c.reason),
        )
        for c in verdicts
    ]
    readings = [
        (
            in_table(row["cell"]),
            in_table(row["reading"]),
            "yes" if row["stated"] else "no",
            *(_number(row[key]) for key in ("formula", "renyi", "losses")),
            "yes" if row["gives"] else "no",
            "" if pd.isna(row["reason"]) else in_table(row["reason"]),
        )
        for row in rows.to_dict("records")
    ]
    known = set(rows["cell"])
    lacking = [claim.name for claim in table.claims if claim.name not in known]
    missing = [f"Not computed yet: {untagged('; '.join(lacking))}.", ""] if lacking else []
    rule = COVERS if any(claim.counts == "flower_epsilons" for claim in table.claims) else RULE
    lines = [
        *(
            f"# {untagged(table.title)}",
            "",
            *([untagged(table.cite), ""] if table.cite else []),
            *box_of(
                untagged(table.question or table.title),
                " ".join(filter(None, (untagged(table.answer), counted(c.verdict for c in verdicts)))),
                f"{len(verdicts)} printed numbers, {len(rows)} readings; computed exactly, nothing is trained or sampled.",
                " ".join(caveats_of(stale_names(list(rows_of(table, rows))), rows)),
                f"leakbench reproduce {table.called}{'' if out is None else f' --out {shlex.quote(str(out))}'} --again",
            ),
            untagged(table.text),
            "",
        ),
        *("## Claims", "", counted(c.verdict for c in verdicts), "", rule, ""),
        *(markdown_table(CLAIM_HEADS, claims), "", *missing),
        *("## Readings", "", markdown_table(READING_HEADS, readings), ""),
        *(AGAIN.format(name=table.called), "", untagged(table.found)),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    return text if out is None else unlinked(text)


def _number(value: float) -> str:
    """Return a number of the page; a dash for a missing one."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if value == int(value) else epsilon_text(value, ".4f" if value < 1000 else ".2g")
