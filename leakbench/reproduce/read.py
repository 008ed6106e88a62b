"""Read a table of either kind: of cells, which are measured, or of accounting, which is computed."""

from __future__ import annotations

from typing import TypeAlias

from leakbench.errors import InputError, nearest
from leakbench.reproduce.accounting.table import AccountingTable, accounting_of
from leakbench.reproduce.file import body_of
from leakbench.reproduce.kept import OF_ACCOUNTING, Kept, of_table
from leakbench.reproduce.table import Table, table_of

__all__ = ["AnyTable", "kind_of", "read_any"]

AnyTable: TypeAlias = Table | AccountingTable

KINDS = ("cells", "accounting")


def read_any(name: str) -> AnyTable:
    """Return a table by its name, or by the path of a file of one's own; raises InputError for what is none, or wrong."""
    path, body = body_of(name)
    kind = body.get("kind", "cells")
    if kind not in KINDS:
        raise InputError(f"{path}: kind: got {kind!r}{nearest(str(kind), KINDS)}")
    return accounting_of(path, body) if kind == "accounting" else table_of(path, body)


def kind_of(table: AnyTable) -> Kept:
    """Return what the CSV of a table must hold."""
    return OF_ACCOUNTING if isinstance(table, AccountingTable) else of_table(table.columns, bool(table.rounds))
