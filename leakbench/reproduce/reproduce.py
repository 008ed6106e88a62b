"""Measure a table: each cell once, kept as soon as it is whole; what a row of the CSV already holds is not measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.errors import InputError
from leakbench.progress import Reporter, cells_line
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.cost import timed
from leakbench.reproduce.file import table_names, tables_folder
from leakbench.reproduce.index import write_index
from leakbench.reproduce.kept import kept, of_table, write_csv
from leakbench.reproduce.measure import cells_of, check_line, command_of, hash_of, measured
from leakbench.reproduce.page import page_of
from leakbench.reproduce.read import AnyTable
from leakbench.reproduce.rows import Row, in_order, replaced
from leakbench.reproduce.table import SCALES, Line, Table, with_claims
from leakbench.reproduce.table_figures import draw_curves, draw_pictures
from leakbench.store import alone, write_atomically
from leakbench.study.engines import Placed
from leakbench.study.measure import Wanted, measured_first

__all__ = ["check_engine", "is_page", "reproduce", "write_page"]


def reproduce(
    table: Table,
    scale: str,
    only: str,
    changed: dict[str, Any],
    runs: Path,
    out: Path,
    data_dir: Path | None,
    say: Callable[[Row], None],
    reporter: Reporter,
    again: bool = False,
    engine: Placed | None = None,
) -> pd.DataFrame:
    """Measure the cells of a table that have no row in `out`, and return all of its rows.

    The page is written after each row; the figure of a table of pictures is drawn last. The rows are read again before each
    write, so that of two commands with one folder none loses a row of the other. A page that is missing or does not fit the
    rows is written again.

    Args:
        table: The table.
        scale: One of `SCALES`; a row of the scale `full` counts for both.
        only: Text that the names of the measured rows contain.
        changed: {field of a cell: number} for a trial.
        runs: Folder of the measured cells, one folder per hash.
        out: Folder of the CSV and the page.
        data_dir: Folder of the data sets; None for the default.
        say: Receives each new row.
        reporter: Reports progress.
        again: Whether to measure existing rows again.
        engine: Measures cells in parallel; None for this process.

    Raises:
        InputError: A name or a field is unknown, a cell does not fit, or the table is not measured by an engine.
    """
    check_engine(table, engine)
    lines = {line.name: line for line in table.at(scale)}
    names = chosen(lines, only)
    for name in names:  # Every cell is checked before any data are looked for.
        check_line(lines[name], scale, changed, data_dir)
    csv = out / f"{table.name}.csv"
    rows, fresh = _read(table, csv), False
    asked = [name for name in names if again or not _stands(rows, lines[name], scale, changed, data_dir)]
    if less := _full(rows, [name for name in asked if lines[name].quick]) if scale == "quick" else []:
        raise InputError(
            f"scale: {csv} has rows of scale full, which quick ones would replace ({'; '.join(less[:3])}"
            f"{f' and {len(less) - 3} more' if len(less) > 3 else ''}); give --scale full, or another --out"
        )
    if asked:
        reporter.note(f"{table.name}: {cells_line(len(asked), _seconds(table, rows, scale))}")
    wanted = [Wanted(n, tuple(lines[n].requests(scale, changed)), command_of(table, lines[n], scale)) for n in asked]
    with closing(measured_first(wanted, engine, runs, data_dir, reporter)) as ready:
        for place, name in enumerate(ready, 1):
            reporter.heading = f"cell {place} of {len(asked)}" if engine is None else ""
            if table.repeats:
                found = timed(table, lines[name], scale, changed, data_dir, reporter)
            else:
                found = measured(table, lines[name], scale, changed, runs, data_dir, reporter)
            with alone(out):
                rows = _read(table, csv)
                rows = in_order(replaced(rows, "cell", name, found), "cell", (line.name for line in table.lines))
                if table.pictures:  # Drawn last, and so missing where that was cut off, not of other rows.
                    (out / f"{table.name}.png").unlink(missing_ok=True)
                write_csv(csv, rows)
                write_page(table, rows, out)
            for row in found:
                say(row)
            fresh = True
    if len(rows) and not fresh:
        with alone(out):
            rows = _read(table, csv)
            if not is_page(out / f"{table.name}.md", _page(table, rows, out)):
                write_page(table, rows, out)
    if table.pictures and (fresh or not (out / f"{table.name}.png").is_file()):
        draw_pictures(table, rows, changed, runs, out, data_dir, reporter)
    return rows


def check_engine(table: AnyTable, engine: Placed | None) -> None:
    """Raise InputError for an engine where cells are not measured in parallel."""
    if engine is None:
        return
    if isinstance(table, AccountingTable):
        raise InputError(f"engine: {table.called} is computed, not measured; leave --engine out")
    if table.repeats:
        raise InputError(f"engine: {table.called} measures the time of one cell after the other; leave --engine out")


def write_page(table: Table, rows: pd.DataFrame, out: Path) -> Path:
    """Write the page of the rows into `out`, and return its path, after its figure and the index of `out`/README.md.

    The page comes last: where it is that of the rows, so are the others, whenever who wrote them was killed.
    """
    path = out / f"{table.name}.md"
    if table.rounds:
        draw_curves(table.rounds, rows, out / f"{table.name}.png")
    write_index(out)
    write_atomically(path, lambda file: file.write_text(_page(table, rows, out), encoding="utf-8"))
    return path


def _page(table: Table, rows: pd.DataFrame, out: Path) -> str:
    elsewhere = table.name in table_names() and out.resolve() != tables_folder().parent.resolve()
    return page_of(table, rows, elsewhere)


def _seconds(table: Table, rows: pd.DataFrame, scale: str) -> list[float]:
    """Return the seconds of each cell that was measured at this scale, here or for the published page."""
    published = _read(table, tables_folder().parent / f"{table.name}.csv")
    for known in (rows, published):
        if len(known) and {"scale", "wall_minutes"} <= set(known):
            each = known[known["scale"] == scale].groupby("cell")["wall_minutes"].sum()
            if len(each):
                return [60 * float(minutes) for minutes in each]
    return []


def _full(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return which of these cells have rows of scale full."""
    full = set(rows.loc[rows["scale"] == "full", "cell"]) if "scale" in rows else set()
    return [name for name in names if name in full]


def is_page(path: Path, text: str) -> bool:
    """Say whether a page is there and is this text."""
    return path.is_file() and path.read_bytes() == text.encode()


def _read(table: Table, csv: Path) -> pd.DataFrame:
    return with_claims(table, kept(csv, of_table(table.columns, bool(table.rounds))))


def _stands(rows: pd.DataFrame, line: Line, scale: str, changed: dict[str, Any], data_dir: Path | None) -> bool:
    """Return whether a row is the measurement of just this cell, at this scale or at `full`."""
    hashes = set(rows.loc[rows["cell"] == line.name, "hash"]) if "hash" in rows else set()
    scales = [scale, *(s for s in SCALES if s == "full" and s != scale)]
    return bool(hashes) and any(hash_of(cells_of(line, s, changed, data_dir)) in hashes for s in scales)
