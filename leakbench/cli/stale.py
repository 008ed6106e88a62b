"""What `leakbench reproduce --stale` prints and measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from leakbench.data.kept import KeptData
from leakbench.errors import InputError
from leakbench.frontier.stale import published_points
from leakbench.leaderboard.stale import published_cards
from leakbench.progress import Reporter
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.file import table_names
from leakbench.reproduce.published import AnyTable, published, published_rows
from leakbench.reproduce.reproduce import check_engine, remeasure, reproduce
from leakbench.study.rows import heads_of
from leakbench.study.stale import Checked, checked
from leakbench.study.study import Execution

__all__ = ["check_table", "list_stale", "measure_stale"]

CARDS = Path("leaderboard")
"""Folder of published cards in a checkout."""


def list_stale(out: Path | None, data_dir: Path | None) -> None:
    """Print every published row that is stale, why, by which command it is measured again, and how many rows there are.

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


def check_table(name: str, out: Path) -> None:
    """Raise InputError, with the command that measures it again, where a name is that of a frontier in the folder of rows."""
    again = next((point.again for point in published_points(out, None) if point.page == name), "")
    if again:
        raise InputError(f"table: got {name!r}, expected a table; it is a frontier, which `{again}` measures again")


def measure_stale(
    table: AnyTable, only: str, out: Path, execution: Execution, say: Callable[[dict[str, Any]], None]
) -> bool:
    """Measure the stale rows of a table again, each at the scale that it was measured at; return whether all could be.

    Args:
        only: Text that the names contain. A row of which today's table has no cell is named and left, and so is one without data.
    """
    check_engine(table, execution.engine)
    found = checked(published(table, out, execution.data_dir, only), KeptData(), Reporter())
    if not found:
        raise InputError(f"stale: no rows in {out / f'{table.name}.csv'}; measure first")
    _print([each for each in found if each.state != "current"])
    stale = [each.published for each in found if each.state == "stale" and each.today]
    if isinstance(table, AccountingTable):
        for row in stale:
            reproduce(table, row.scale, row.row, {}, out, execution, say)
    elif stale:
        remeasure(table, {row.row: (row.scale, dict(row.changed)) for row in stale}, out, execution, say)
    click.echo(f"measured again: {len(stale)} of {len(found)} rows")
    if stale:
        click.echo(f"rows: {out / table.name}.csv   page: {out / table.name}.md")
    absent = [each for each in found if each.absent]
    _print_absent("not measured", absent)
    return not absent


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
    for path in folder.glob("*.csv"):
        if path.stem not in pages and path.stem not in table_names() and "hash" in heads_of(path):
            yield path.name
