"""What `leakbench reproduce` prints and measures: tables, their pages, and stale rows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from leakbench.box import count_of
from leakbench.core.errors import InputError, nearest
from leakbench.core.progress import Reporter
from leakbench.data.kept import KeptData
from leakbench.frontier.frontier import published_points
from leakbench.leaderboard.check import published_cards
from leakbench.reproduce.choose import chosen, numbers
from leakbench.reproduce.file import ALL, rows_path, table_names
from leakbench.reproduce.plans import Wanted
from leakbench.reproduce.published import published, published_rows, read_any
from leakbench.reproduce.reproduce import check_engine, remeasure, reproduce, study_of
from leakbench.reproduce.table import AUTO, SCALES
from leakbench.study.rows import Row, heads_of
from leakbench.study.stale import Checked, checked
from leakbench.study.study import Execution

__all__ = ["list_stale", "list_tables", "measure", "measure_stale", "write_page"]

CARDS = Path("leaderboard")
"""Folder of published cards in a checkout."""


def list_stale(out: Path | None, data_dir: Path | None) -> None:
    """Print every stale published row with its reason and the command that measures it again, then the number of rows.

    Args:
        out: The folder of rows, without cards; None for `results`, and for the cards in `leaderboard`.
    """
    folder = out or Path("results")
    rows = [*published_rows(folder, data_dir), *published_points(folder, data_dir)]
    if out is None and CARDS.is_dir():
        rows += published_cards(CARDS, data_dir)
    if not rows:
        raise InputError(f"stale: no published rows in {str(folder)!r}; run it in a checkout, or give --out FOLDER")
    found = checked(rows, KeptData(offline=True), Reporter())
    _print([each for each in found if each.state == "stale"])
    _print_absent("unknown", [each for each in found if each.state == "unknown"])
    if other := sorted(_unlisted(folder, {row.page for row in rows})):
        click.echo(f"not checked, since scripts of their own write them: {', '.join(other)}")
    count = Counter(each.state for each in found)
    click.echo(f"{len(found)} rows: {count['current']} current, {count['stale']} stale, {count['unknown']} unknown")


def list_tables(options: Sequence[str]) -> None:
    """Print the names and titles of all tables.

    Args:
        options: The given options, which need a table; with any, raises InputError.
    """
    if options:
        raise InputError(
            f"table: got none with {', '.join(options)}, expected a TABLE; `leakbench reproduce` lists the names"
        )
    for name in table_names():
        click.echo(f"{name:<32}{read_any(name).title}")


def write_page(name: str, scale: str, out: Path) -> None:
    """Write the page of a table, or of `ALL` that have rows, from the rows in a folder; the scale is checked only."""
    _check_scale(scale)
    if name == ALL:
        for each in _with_rows(out, "page"):
            write_page(each, scale, out)
        return
    study = study_of(read_any(name), out)
    rows = study.store.read()
    if study.page is None or not len(rows):
        raise InputError(f"page: rows not found in {study.store.path}; measure first")
    click.echo(f"page: {study.page.write(rows)}")


def measure(
    name: str, scale: str, only: str, changes: Sequence[str], out: Path | None, execution: Execution, again: bool
) -> None:
    """Measure the cells or compute the claims of a table, and print each new row.

    Args:
        name: Name of the table, the path of a user's file, or `ALL`.
        scale: One of `SCALES`, or `AUTO`.
        only: Text that the names of the measured rows contain.
        changes: Changed numbers, each NAME=VALUE.
        out: Folder of the rows; None for `results`.
        execution: Where and how cells are run.
        again: Whether to measure existing rows again.
    """
    _check_scale(scale)
    changed, folder = numbers(changes), out or Path("results")
    if changed and out is None:
        raise InputError("set: measures a trial, which would take the place of published rows; give --out FOLDER")
    if name == ALL:
        if only or changed:
            raise InputError("table: got all, which takes no --only and no --set; give the name of one table")
        _each(table_names(), execution, lambda each, where: measure(each, scale, "", (), out, where, again))
        return
    table, fresh = read_any(name), set[str]()
    if changed and table.computed:
        raise InputError("set: an accounting table computes printed numbers and has no cells to change")

    def say(row: Row) -> None:
        fresh.add(row["cell"])
        execution.reporter.close()
        click.echo(table.line_of(row))

    rows = reproduce(table, scale, only, changed, folder, execution, say, again)
    if not table.computed:
        named = chosen(table.names(scale), only)
        known = rows[rows["cell"].isin(named) & ~rows["cell"].isin(fresh)]
        if len(known):
            scales = ", ".join(sorted(set(known["scale"]))) if "scale" in known else "full"
            click.echo(
                f"kept: {count_of(len(known), 'existing row')} (scale {scales}); to measure again, add --again, or --out FOLDER"
                " for new rows in another folder"
            )
    _print_written(folder, table.name)


def _each(names: Sequence[str], execution: Execution, one: Callable[[str, Execution], None]) -> None:
    """Call a function with each table; one that fails does not stop the others.

    Tables that measure times are measured in this process, without the engine.

    Raises:
        InputError: At the end, with the names of the tables that failed.
    """
    failed = list[str]()
    for name in names:
        try:
            alone = bool(read_any(name).alone)
            one(name, dataclasses.replace(execution, engine=None) if alone else execution)
        except (InputError, OSError) as error:
            execution.reporter.close()
            click.echo(f"{name}: {error}", err=True)
            failed.append(name)
    if failed:
        raise InputError(f"{len(failed)} of {len(names)} tables failed: {', '.join(failed)}; the others are measured")


def _check_scale(scale: str) -> None:
    if scale not in (*SCALES, AUTO):
        raise InputError(f"scale: got {scale!r}{nearest(scale, (*SCALES, AUTO))}")


def measure_stale(name: str, only: str, out: Path, execution: Execution) -> bool:
    """Measure the stale rows of a table again, each at the scale that it was measured at; return whether all could be.

    A row without a cell in today's table, or without data on this machine, is printed and not measured.

    Args:
        name: Name of the table, the path of a user's file, or `ALL` for all tables with rows in the folder.
        only: Text that the names contain.
        out: Folder of the rows.
        execution: Where and how cells are run.

    Raises:
        InputError: The name is that of a frontier in the folder; the message has the command that measures it again.
    """
    if name == ALL:
        if only:
            raise InputError("table: got all, which takes no --only; give the name of one table")
        could = list[bool]()
        _each(
            _with_rows(out, "stale"), execution, lambda each, where: could.append(measure_stale(each, "", out, where))
        )
        return all(could)
    again = next((point.again for point in published_points(out, None) if point.page == name), "")
    if again:
        raise InputError(f"table: got {name!r}, expected a table; it is a frontier, which `{again}` measures again")
    table = read_any(name)

    def say(row: Row) -> None:
        click.echo(table.line_of(row))

    check_engine(table, execution.engine)
    found = checked(published(table, out, execution.data_dir, only), KeptData(), Reporter())
    if not found:
        raise InputError(f"stale: no rows in {rows_path(out, table.name)}; measure first")
    _print([each for each in found if each.state != "current"])
    stale = [each.published for each in found if each.state == "stale" and each.today]
    if stale:
        remeasure(table, {row.row: Wanted(row.scale, dict(row.changed)) for row in stale}, out, execution, say)
    click.echo(f"measured again: {len(stale)} of {len(found)} rows")
    if stale:
        _print_written(out, table.name)
    absent = [each for each in found if each.absent]
    _print_absent("not measured", absent)
    return not absent


def _with_rows(out: Path, option: str) -> list[str]:
    """Return the names of the tables that have rows in a folder; raises InputError that names the option if none has."""
    names = [each for each in table_names() if rows_path(out, each).is_file()]
    if not names:
        raise InputError(f"{option}: no rows of tables in {str(out)!r}; measure first, or give --out FOLDER")
    return names


def _print_written(out: Path, name: str) -> None:
    path = rows_path(out, name)
    click.echo(f"rows: {path}   page: {path.with_suffix('.md')}")


def _print_absent(state: str, found: Sequence[Checked]) -> None:
    """Print how many of these rows lack data, of each data set, and the command that brings them."""
    for data, many in sorted(Counter(each.published.data for each in found).items()):
        rows = "1 row" if many == 1 else f"{many} rows"
        click.echo(
            f"{state}: {rows}: the data of {data} are not on this machine; `leakbench data fetch {data}` brings them, "
            "`--data-dir FOLDER` names their folder"
        )


def _print(found: Sequence[Checked]) -> None:
    for (page, again), rows in groupby(found, lambda each: (each.published.page, each.published.again)):
        listed = list(rows)
        click.echo(f"{page}: {len(listed)} {listed[0].state}; measured again by: {again}")
        for each in listed:
            click.echo(f"  {each.published.row}: {each.reason}{_hashes(each)}")


def _hashes(each: Checked) -> str:
    then = each.published.hash[:12] or "none"
    return f" (hash {then}, today {each.today[:12]})" if each.state == "stale" and each.today else f" (hash {then})"


def _unlisted(folder: Path, pages: set[str]) -> Iterator[str]:
    """Yield the CSVs of a folder whose rows have a hash, but are of no table or frontier."""
    for path in (*folder.glob("*.csv"), *folder.glob("*/*.csv")):
        if path.stem not in pages and path.stem not in table_names() and "hash" in heads_of(path):
            yield path.name
