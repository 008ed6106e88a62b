"""Tables of either kind: of cells, which are measured, or of accounting, which is computed; and their published rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.core.errors import InputError, nearest
from leakbench.data.find import Load
from leakbench.reproduce.accounting.table import AccountingTable, accounting_of
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.file import body_of, rows_folder, table_names
from leakbench.reproduce.table import Table, scale_of, table_of
from leakbench.study.rows import ACCOUNTING, RowFormat, RowStore, of_table
from leakbench.study.stale import Published, Today, hash_of, together, versions_in

__all__ = ["AnyTable", "format_of", "published", "published_rows", "read_any", "rows_of"]

AnyTable: TypeAlias = Table | AccountingTable

KINDS = ("cells", "accounting")


def read_any(name: str) -> AnyTable:
    """Return a table by its name, or by the path of a user's file; raises InputError for an unknown or wrong one."""
    path, body = body_of(name)
    kind = body.get("kind", "cells")
    if kind not in KINDS:
        raise InputError(f"{path}: kind: got {kind!r}{nearest(str(kind), KINDS)}")
    return accounting_of(path, body) if kind == "accounting" else table_of(path, body)


def format_of(table: AnyTable) -> RowFormat:
    """Return what the CSV of a table must hold."""
    return ACCOUNTING if isinstance(table, AccountingTable) else of_table(table.columns, bool(table.rounds))


def published_rows(out: Path, data_dir: Path | None) -> Iterator[Published]:
    """Yield the rows of every table that has a CSV in `out`."""
    for name in table_names():
        if (rows_folder(out, name) / f"{name}.csv").is_file():
            yield from published(read_any(name), out, data_dir)


def published(table: AnyTable, out: Path, data_dir: Path | None, only: str = "") -> Iterator[Published]:
    """Yield the rows of a table's CSV in `out`, one for each cell.

    Args:
        only: Text that their names contain.
    """
    rows = RowStore(rows_folder(out, table.name) / f"{table.name}.csv", format_of(table)).read()
    names = set(chosen(map(str, rows["cell"].unique()), only)) if only else set(rows["cell"])
    yield from rows_of(table, rows[rows["cell"].isin(names)], data_dir)


def rows_of(table: AnyTable, rows: pd.DataFrame, data_dir: Path | None = None) -> Iterator[Published]:
    """Yield these rows of a table, one for each cell."""
    again = f"leakbench reproduce {table.called} --stale"
    for row in rows.drop_duplicates("cell").to_dict("records"):
        hash_ = str(row["hash"]) if "hash" in row and not pd.isna(row["hash"]) else ""
        found = _of_claim(table, row) if isinstance(table, AccountingTable) else _of_line(table, row, data_dir)
        yield dataclasses.replace(found, hash=hash_, recorded=versions_in(row), again=again)


def _of_claim(table: AccountingTable, row: Mapping[Any, Any]) -> Published:
    claims = {claim.name: claim for claim in table.claims}

    def today(_: Load) -> Today:
        if row["cell"] not in claims:
            raise InputError(f"{table.called} has no row {row['cell']!r}")
        claim = claims[row["cell"]]
        return Today(claim.hash, claim.versions)

    return Published(table.name, row["cell"], "", "", today)


def _of_line(table: Table, row: Mapping[Any, Any], data_dir: Path | None) -> Published:
    scale, changed = scale_of(row)
    lines = {line.name: line for line in table.at(scale)}

    def requests() -> list[Request]:
        """Return the requests of the row's cells; a table of costs has an undefended one next to the first."""
        if row["cell"] not in lines:
            raise InputError(f"{table.called} has no row {row['cell']!r} at scale {scale}")
        found = lines[row["cell"]].requests(scale, changed)
        return [found[0], dataclasses.replace(found[0], defense="none")] if table.repeats else found

    def today(load: Load) -> Today:
        cells = [prepare(request, data_dir, load=load) for request in requests()]
        return Today(hash_of(cells[:1] if table.repeats else cells), together(cells))

    dataset = str(lines[row["cell"]].given.get("dataset", Request.dataset)) if row["cell"] in lines else ""
    return Published(table.name, row["cell"], "", dataset, today, requests, scale=scale, changed=changed)
