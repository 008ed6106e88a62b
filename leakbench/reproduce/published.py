"""Tables of either kind: of cells, which are measured, or of accounting, which is computed; and their published rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from leakbench.core.errors import InputError, nearest
from leakbench.reproduce.accounting.table import AccountingTable, accounting_of
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.file import body_of, rows_path, table_names
from leakbench.reproduce.table import Table, table_of
from leakbench.study.rows import RowStore, in_order
from leakbench.study.stale import Published, versions_in

__all__ = ["AnyTable", "published", "published_rows", "read_any", "rows_of", "store_of"]

AnyTable: TypeAlias = Table | AccountingTable

KINDS = ("cells", "accounting")


def read_any(name: str) -> AnyTable:
    """Return a table by its name, or by the path of a user's file; raises InputError for an unknown or wrong one."""
    path, body = body_of(name)
    kind = body.get("kind", "cells")
    if kind not in KINDS:
        raise InputError(f"{path}: kind: got {kind!r}{nearest(str(kind), KINDS)}")
    return accounting_of(path, body) if kind == "accounting" else table_of(path, body)


def published_rows(out: Path, data_dir: Path | None) -> Iterator[Published]:
    """Yield the rows of every table that has a CSV in `out`."""
    for name in table_names():
        if (rows_path(out, name)).is_file():
            yield from published(read_any(name), out, data_dir)


def published(table: AnyTable, out: Path, data_dir: Path | None, only: str = "") -> Iterator[Published]:
    """Yield the rows of a table's CSV in `out`, one for each cell.

    Args:
        only: Text that their names contain.
    """
    rows = RowStore(rows_path(out, table.name), table.format).read()
    names = set(chosen(map(str, rows["cell"].unique()), only)) if only else set(rows["cell"])
    yield from rows_of(table, rows[rows["cell"].isin(names)], data_dir)


def rows_of(table: AnyTable, rows: pd.DataFrame, data_dir: Path | None = None) -> Iterator[Published]:
    """Yield these rows of a table, one for each cell."""
    again = f"leakbench reproduce {table.called} --stale"
    for row in rows.drop_duplicates("cell").to_dict("records"):
        hash_ = str(row["hash"]) if "hash" in row and not pd.isna(row["hash"]) else ""
        yield dataclasses.replace(table.published(row, data_dir), hash=hash_, recorded=versions_in(row), again=again)


def store_of(table: AnyTable, out: Path) -> RowStore:
    """Return the CSV of a table in a folder, whose rows are read as the table states them today."""
    names = table.names("full")
    return RowStore(rows_path(out, table.name), table.format, table.current, lambda rows: in_order(rows, "cell", names))
