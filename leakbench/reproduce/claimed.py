"""What a table claims and aims at today, beside rows that were measured before."""

from __future__ import annotations

import pandas as pd

from leakbench.reproduce.table import Table

__all__ = ["with_claims"]

CLAIMED = "claimed_"


def with_claims(table: Table, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of cells that the table has, their claims and aims as it says them.

    A number that was misread in a paper is corrected in the table's file alone, and a cell that it no longer has leaves no row.
    """
    lines = {line.name: line for line in table.lines}
    rows = rows[rows["cell"].isin(lines)].reset_index(drop=True)
    of = [
        (lines[cell].claimed(str(point)), lines[cell].aim)
        for cell, point in zip(rows["cell"], rows["point"], strict=True)
    ]
    kept = [name for name in map(str, rows) if name.startswith(CLAIMED)]
    named = dict.fromkeys([*kept, *(f"{CLAIMED}{what}" for claim, _ in of for what in claim)])
    found = {name: [claim.get(name.removeprefix(CLAIMED)) for claim, _ in of] for name in named}
    if any(aim is not None for _, aim in of):
        found["aim"] = [aim for _, aim in of]
    return rows.assign(**{name: pd.Series(values, dtype=float) for name, values in found.items()})
