"""The two tables of a sweep, made of its runs' folders: the same bytes in whatever order, and by whatever engine, they ended.

rows.parquet    every run's rows, one for each example under attack, with the cell, its hash, recipes and seed before them
cells.parquet   a row for each cell and leakage point: state, error, the settings in which cells differ, and the run's figures
times.parquet   what took how long: wall times differ from run to run, so they stand in none of the others
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leakbench.errors import DamagedError, InputError
from leakbench.packed import check_parquet
from leakbench.rows_file import check_schema, versioned
from leakbench.store import read_manifest, write_atomically, written
from leakbench.study.grid import Asked, Grid
from leakbench.study.task import Outcome
from leakbench.summary.verdict_words import current_summary

__all__ = ["merge", "whole"]

Row = dict[str, Any]

CLOCK = ("seconds", "fit_seconds", "minutes")
"""Columns that no second run repeats."""

FIRST = ("defense", "attack", "dataset", "seed")


def whole(outcome: Outcome, runs: Path, say: Callable[[str], None]) -> bool:
    """Say whether the run of a cell that was done is there as it was written, as far as it is merged.

    Args:
        say: Told of one that was damaged.
    """
    folder = runs / outcome.run
    try:
        manifest = read_manifest(folder)
        written(folder, manifest, "rows.parquet")
    except DamagedError as error:
        say(f"{error.what}; its cell is measured again")
        return False
    except InputError:
        return False
    return manifest.get("hash") == outcome.hash and manifest.get("complete") is True


def merge(grid: Grid, known: Mapping[str, Outcome], runs: Path, out: Path) -> list[Path]:
    """Write the tables of what is known of a grid's cells into `out` and return their paths."""
    tables, cells, times = list[pa.Table](), list[Row](), list[Row]()
    differ = _differ(grid.cells)
    for asked in grid.cells:
        outcome = known.get(asked.key)
        state = {"state": outcome.kind if outcome else "missing", "error": outcome.error if outcome else None}
        first: Row = {"cell": asked.name, "hash": outcome.hash if outcome else None}
        first |= {name: getattr(asked.request, name) for name in FIRST}
        given = {f"given_{name}": _plain(getattr(asked.request, name)) for name in differ}
        if outcome is None or outcome.kind != "done":
            cells.append({**first, **state, **given})
            continue
        manifest = read_manifest(runs / outcome.run)
        named = {**first, **{name: manifest["cell"][name] for name in FIRST}}
        cells += [{**named, **state, **given, "run": outcome.run, **figures} for figures in _figures(manifest)]
        tables.append(_rows(written(runs / outcome.run, manifest, "rows.parquet"), named))
        phases = {phase: float(seconds) for phase, seconds in manifest["phases"].items()}
        times.append({"cell": asked.name, "hash": outcome.hash, "seconds": sum(phases.values()), **phases})
    whole = (
        pa.concat_tables(tables, promote_options="permissive")
        if tables
        else pa.table({"cell": pa.array([], pa.string())})
    )
    found = {"rows": whole.combine_chunks(), "cells": _table(cells), "times": _table(times)}
    for name, table in found.items():
        write_atomically(out / f"{name}.parquet", partial(pq.write_table, versioned(table)))
    return [out / f"{name}.parquet" for name in found]


def _differ(cells: Sequence[Asked]) -> list[str]:
    """Return the fields in which cells of a grid differ, beside those that stand first."""
    names = [f.name for f in dataclasses.fields(cells[0].request) if f.name not in FIRST]
    return [n for n in names if any(getattr(c.request, n) != getattr(cells[0].request, n) for c in cells)]


def _figures(manifest: Mapping[str, Any]) -> Iterable[Row]:
    """Yield what a run's summary says of each leakage point, in one row each."""
    summary = current_summary(manifest["summary"])
    whole = {
        "accuracy": summary["accuracy"],
        "epsilon_claimed": summary["epsilon"]["claimed"],
        "epsilon_valid": summary["epsilon"]["valid"],
    }
    for point, tap in summary["taps"].items():
        single = {n: v for n, v in tap.items() if n not in CLOCK and not isinstance(v, dict | list)}
        yield {"point": point, **whole, **single}


def _rows(path: Path, first: Row) -> pa.Table:
    """Return the rows of a run, with the same columns before each."""
    check_schema(path, pq.read_schema(path))
    check_parquet(path)
    table = pq.read_table(path).replace_schema_metadata(None)
    table = table.drop_columns([name for name in (*CLOCK, *first) if name in table.column_names])
    before = [(name, pa.array([value] * len(table))) for name, value in first.items()]
    return pa.table(dict(before) | {name: table[name] for name in table.column_names})


def _table(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table; of a column in which both words and numbers stand, all are words."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if not (len(kinds) < 2 or kinds == {int, float}):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array([float(v) if float in kinds and v is not None else v for v in values])


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value) if isinstance(value, Path) else value
