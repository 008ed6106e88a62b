"""Rows of a CSV with a checksum each, in a last column: a figure that was changed is found, and named, when it is read again."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from leakbench.errors import InputError
from leakbench.store import write_atomically

__all__ = ["CHECKED", "unchecked", "write_csv"]

CHECKED = "checksum"
"""The column; a CSV without it is of before there were checksums, and taken as it is."""


def write_csv(path: Path, rows: pd.DataFrame) -> None:
    """Write rows, each with its checksum, whole or not at all."""
    text = io.StringIO(newline="")
    rows.to_csv(text, index=False, lineterminator="\n")
    text.seek(0)
    heads, *lines = [line for line in csv.reader(text, strict=True) if line]
    told = rows.assign(**{CHECKED: [_of(heads, line) for line in lines]})
    write_atomically(path, lambda file: told.to_csv(file, index=False))


def unchecked(path: Path, lines: Sequence[list[str]], cure: str) -> list[list[str]]:
    """Return the fields of a head and its rows without the checksums; raises InputError for a row that is not as it was written.

    cure: what to do about it.
    """
    heads, *rows = lines
    if heads[-1] != CHECKED:
        return [heads, *rows]
    for place, row in enumerate(rows, start=1):
        if row[-1] != _of(heads[:-1], row[:-1]):
            raise InputError(
                f"{path}: row {place}: {CHECKED}: does not fit the rest, so that something was changed; {cure}"
            )
    return [line[:-1] for line in (heads, *rows)]


def _of(heads: Sequence[str], row: Sequence[str]) -> str:
    """Return the checksum of a row, which is no number, so that its column is never taken for one of figures."""
    return "sha256:" + hashlib.sha256(json.dumps([list(heads), list(row)]).encode()).hexdigest()[:16]
