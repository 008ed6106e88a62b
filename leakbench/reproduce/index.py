"""The index of what was measured: for every table the number of each verdict, from its rows, into the page that lists them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd

from leakbench.reproduce.accounting.page import judged
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.columns import text_of
from leakbench.reproduce.file import table_names
from leakbench.reproduce.page import claims_of
from leakbench.reproduce.published import AnyTable, format_of, read_any
from leakbench.reproduce.verdict import NOT_MEASURED, VERDICTS
from leakbench.scripts import in_table, markdown_table
from leakbench.store import write_atomically
from leakbench.study.rows import RowStore

__all__ = ["BEGIN", "END", "index_of", "write_index"]

BEGIN, END = "<!-- verdicts -->", "<!-- end -->"
"""Between these lines of README.md the index stands."""

HEADS = ("table", *VERDICTS, "cells measured", "scale", "minutes")


def index_of(out: Path) -> str:
    """Return a table of the tables that have claims and rows in `out`, with the sums of their verdicts."""
    lines, sums = [], Counter[str]()
    for name in table_names():
        csv = out / f"{name}.csv"
        if not csv.is_file():
            continue
        table = read_any(name)
        rows = RowStore(csv, format_of(table)).read()
        found = Counter(_verdicts(table, rows))
        if not found.keys() - {NOT_MEASURED}:
            continue
        sums += found
        computed = isinstance(table, AccountingTable)
        cells = (
            f"{rows['cell'].nunique()} of {len(table.claims if isinstance(table, AccountingTable) else table.lines)}"
        )
        scales = ", ".join(sorted(set(rows["scale"].dropna()))) if "scale" in rows else "both" if computed else "full"
        minutes = rows.drop_duplicates("cell")["wall_minutes"].sum() if "wall_minutes" in rows else None
        lines.append((f"[{in_table(table.title)}]({name}.md)", *_counts(found), cells, scales, text_of(minutes, 0)))
    total = ("all", *_counts(sums), "", "", "")
    return markdown_table(HEADS, [*lines, total])


def _verdicts(table: AnyTable, rows: pd.DataFrame) -> list[str]:
    """Return the verdict of each claim."""
    if isinstance(table, AccountingTable):
        return [claim.verdict for claim in judged(table, rows)]
    return [claim.verdict for claim in claims_of(table, rows)]


def write_index(out: Path) -> None:
    """Put the index between the two lines of `out`/README.md, where it has them."""
    path = out / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        new = f"{before}{BEGIN}\n{index_of(out)}\n{END}{after}"
        write_atomically(path, lambda file: file.write_text(new, encoding="utf-8"))


def _counts(found: Counter[str]) -> tuple[int, ...]:
    return tuple(found[verdict] for verdict in VERDICTS)
