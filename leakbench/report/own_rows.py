"""Finished runs as one table of pandas."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from leakbench.core.errors import InputError
from leakbench.core.typed import typed_arguments
from leakbench.storage.packed import check_table
from leakbench.storage.rows_file import check_schema
from leakbench.storage.runs import elsewhere, folders
from leakbench.storage.store import read_manifest, written
from leakbench.storage.summary import Summary

__all__ = ["read", "read_run"]

FIRST = ("run", "hash", "dataset", "defense", "attack")


@typed_arguments
def read(folder: str | Path) -> pd.DataFrame:
    """Return the rows of a finished run, or of all finished runs below a folder: one row for each example under attack.

    The first columns name the run of a row: run (its folder), hash, dataset, defense, attack. All rows of a leakage point have the
    same `verdict`, None where the run has no verdict. Folders of `leakbench attack` count where a truth was given; a sweep's runs
    are in its folder `--runs`. Runs that are not finished are left out.

    Raises:
        InputError: For a folder that does not exist or has no finished run, or for a file that was changed or damaged.
    """
    place = Path(folder)
    if not place.is_dir():
        raise InputError(f"read: no folder {str(folder)!r}")
    # Files are read and checked without the interpreter's lock, thousands of small ones on all cores.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [pair for pair in pool.map(_rows, folders(place)) if pair is not None]
    if not found:
        raise InputError(f"read: no finished run in {str(folder)!r}{elsewhere(place)}")
    return _joined(found)


def read_run(folder: Path) -> pd.DataFrame:
    """Return the rows of the finished run in a folder, with the columns of `read`; raises InputError without one."""
    found = _rows(folder)
    if found is None:
        raise InputError(f"read: the run in {str(folder)!r} is not finished or has no rows; run it again to finish it")
    return _joined([found])


def _joined(found: list[tuple[tuple[str, ...], pa.Table]]) -> pd.DataFrame:
    """Return the rows of several runs with the columns of FIRST before them."""
    rows: pd.DataFrame = pa.concat_tables([table for _, table in found], promote_options="permissive").to_pandas()
    lengths = [len(table) for _, table in found]
    for at, name in enumerate(FIRST):
        rows.insert(at, name, np.repeat(np.array([first[at] for first, _ in found], dtype=object), lengths))
    return rows


def _rows(folder: Path) -> tuple[tuple[str, ...], pa.Table] | None:
    """Return the values of FIRST and the rows of a finished run."""
    manifest = read_manifest(folder)
    if not manifest.get("complete") or "rows.parquet" not in manifest.get("files", {}):
        return None
    path = written(folder, manifest, "rows.parquet")
    try:
        file = pq.ParquetFile(path)
        check_table(file)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    check_schema(path, file.schema_arrow)
    rows = _with_verdicts(file.read(use_threads=False), Summary.of(manifest["summary"]))
    first = (folder.name, manifest["hash"], *(manifest["cell"][name] for name in FIRST[2:]))
    # What pandas notes of each file's columns would be said again of all of them.
    return first, rows.replace_schema_metadata(None)


def _with_verdicts(rows: pa.Table, summary: Summary) -> pa.Table:
    """Return the rows with the column `verdict` last, as in the summary."""
    verdicts = summary.verdicts
    points = zip(rows["tap"].to_pylist(), rows["round"].to_pylist(), strict=True)
    words = pa.array([verdicts.get(point) for point in points], pa.string())
    others = [name for name in rows.column_names if name != "verdict"]
    return rows.select(others).append_column("verdict", words)
