"""Compute a table of accounting: each claim once, and store its rows at once; claims with rows are not computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from leakbench.reproduce.accounting.measure import computed
from leakbench.reproduce.accounting.page import accounting_page
from leakbench.reproduce.accounting.table import AccountingTable, Row
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.index import write_index
from leakbench.reproduce.kept import OF_ACCOUNTING, kept, write_csv
from leakbench.reproduce.reproduce import is_page
from leakbench.reproduce.rows import in_order, replaced
from leakbench.store import alone, write_atomically

__all__ = ["account", "write_accounting_page"]


def account(
    table: AccountingTable, only: str, out: Path, say: Callable[[Row], None], again: bool = False
) -> pd.DataFrame:
    """Compute the claims of a table that `out` has no rows of, and return all of its rows; the page is written after each.

    Args:
        only: Text that the names hold.
        again: Compute also what is there. Raises InputError for a name that there is not.
    """
    claims = {claim.name: claim for claim in table.claims}

    csv = out / f"{table.name}.csv"
    rows, fresh = kept(csv, OF_ACCOUNTING), False
    for name in chosen(claims, only):
        if not again and set(rows.loc[rows["cell"] == name, "hash"]) == {claims[name].hash}:
            continue
        found = computed(claims[name])
        with alone(out):
            rows = kept(csv, OF_ACCOUNTING)  # As it is now: another command may have written to it meanwhile.
            rows = replaced(rows, "cell", name, found)
            rows = in_order(rows[rows["cell"].isin(claims)], "cell", claims)
            write_csv(csv, rows)
            write_accounting_page(table, rows, out)
        for row in found:
            say(row)
        fresh = True
    if len(rows) and not fresh:
        with alone(out):
            rows = kept(csv, OF_ACCOUNTING)
            if not is_page(out / f"{table.name}.md", accounting_page(table, rows)):
                write_accounting_page(table, rows, out)
    return rows


def write_accounting_page(table: AccountingTable, rows: pd.DataFrame, out: Path) -> Path:
    """Write the page of the rows into `out`, and return its path, after the index of `out`/README.md: see `write_page`."""
    path = out / f"{table.name}.md"
    write_index(out)
    write_atomically(path, lambda file: file.write_text(accounting_page(table, rows), encoding="utf-8"))
    return path
