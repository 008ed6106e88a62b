"""Rows as Parquet files, whose metadata have the version of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint
from leakbench.storage.packed import check_parquet

__all__ = ["ROWS_VERSION", "check_schema", "points_in", "read_rows", "rows_at", "versioned", "write_rows"]

ROWS_VERSION = 1
"""Version of the columns and their meaning."""

KEY = b"leakbench.rows"

TEXTS = ("tap", "failure_reason", "doubts", "verdict")
WHOLE = ("round", "victim", "batch", "network", "member", "example", "label", "candidates", "iterations")
FULL = (
    *("tap", "round", "victim", "batch", "member", "example", "label", "failure", "success", "null_success"),
    *("eta", "candidates"),
)
"""The columns of examples without missing values: finite numbers, booleans and the name of the leakage point."""

NEEDED = (*FULL, "label_guess", "failure_reason", "rmse", "null_rmse", "identified")
"""Required columns of examples; all columns other than `TEXTS` contain numbers."""

OF_ROUNDS = ("round", "accuracy", "loss")
"""Required columns of the rounds of a training."""


def versioned(table: pa.Table) -> pa.Table:
    """Return the table with the version of its rows in the metadata."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: str(ROWS_VERSION).encode()})


def write_rows(path: Path, rows: pd.DataFrame) -> None:
    """Write rows, without their index."""
    pq.write_table(versioned(pa.Table.from_pandas(rows, preserve_index=False)), path)


def read_rows(path: Path) -> pd.DataFrame:
    """Read the rows of examples, or of rounds.

    Raises:
        InputError: For an unknown version, or a column that is missing or of another type.
    """
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    check_schema(path, schema)
    try:
        check_parquet(path)
    except ValueError as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    rows = pd.read_parquet(path)
    # A column with only missing numbers is read as objects.
    rows = rows.astype({name: float for name in rows if name not in TEXTS and rows[name].dtype == object})
    for name in FULL if path.name != "rounds.parquet" else ():
        column = rows[name]
        if column.isna().any() or (column.dtype.kind == "f" and not np.isfinite(column).all()):
            raise InputError(f"{path}: column {name!r}: got a number that is missing or not finite; run the cell again")
    return rows


def points_in(rows: pd.DataFrame) -> list[LeakagePoint]:
    """Return the leakage points of the rows of a run, in their order, each with its round."""
    pairs = rows[["tap", "round"]].drop_duplicates().itertuples(index=False)
    return [LeakagePoint(tap, (number,)) for tap, number in pairs]


def rows_at(rows: pd.DataFrame, point: LeakagePoint) -> pd.DataFrame:
    """Return the rows of a run at one leakage point; those of all rounds if the point has none."""
    mine = rows.loc[rows["tap"] == point.tap]
    return mine.loc[mine["round"].isin(point.rounds)] if point.rounds else mine


def check_schema(path: Path, schema: pa.Schema) -> None:
    """Raise InputError for rows of an unknown version, or with a column that is missing, duplicate or of another type."""
    check_version(path, schema.metadata)
    kinds = dict(zip(schema.names, schema.types, strict=True))
    twice = [name for name in kinds if schema.names.count(name) > 1]
    needed = OF_ROUNDS if path.name == "rounds.parquet" else NEEDED
    missing = [name for name in needed if name not in kinds]
    if twice or missing:
        what = f"column {twice[0]!r} appears twice" if twice else f"column {missing[0]!r} is missing"
        raise InputError(f"{path}: {what}; run the cell again")
    for name, kind in kinds.items():
        expected = "texts" if name in TEXTS else "whole numbers" if name in WHOLE else "numbers"
        if not _fits(kind, expected):
            raise InputError(f"{path}: column {name!r}: got {kind}, expected {expected}; run the cell again")


def _fits(kind: pa.DataType, expected: str) -> bool:
    types = pa.types
    if types.is_null(kind):  # A column without values has no type.
        return True
    if expected == "texts":
        return bool(types.is_string(kind) or types.is_large_string(kind))
    if expected == "whole numbers":
        return bool(types.is_integer(kind))
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def check_version(path: Path, metadata: Mapping[bytes, bytes] | None) -> None:
    """Raise InputError for rows of an unknown version.

    Args:
        metadata: Metadata of the file's schema.
    """
    version = (metadata or {}).get(KEY, b"").decode(errors="replace")
    if version != str(ROWS_VERSION):
        raise InputError(
            f"{path}: rows of version {version[:20]!r}, this leakbench reads {ROWS_VERSION}; read them with the one that wrote"
            " them, or run the cell again"
        )
