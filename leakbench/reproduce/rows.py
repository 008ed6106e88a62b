"""Cells that are run, and their rows in a CSV, where a row that is measured again takes the place of the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from leakbench.cell import Cell, identity
from leakbench.errors import InputError
from leakbench.execute import execute
from leakbench.progress import Reporter
from leakbench.store import Run, open_run

__all__ = ["Row", "executed", "held", "in_order", "limit_of", "measured", "minutes_of", "replaced", "there"]

Row: TypeAlias = dict[str, Any]


@contextmanager
def executed(
    cell: Cell, runs: Path, command: str, reporter: Reporter | None = None
) -> Iterator[tuple[dict[str, Any], Run]]:
    """Run a cell in a folder of its own in `runs`, or read it where it is whole; give (its summary, the run, open)."""
    told = reporter or Reporter()
    try:
        with open_run(runs / cell.name, identity(cell, command), own=True, say=told.say) as run:
            yield execute(cell, run, told), run
    finally:
        told.close()


def limit_of(cell: Cell) -> int | None:
    """Return after how many iterations a cell's attack ends at most; None of one that does not search, or in several stages."""
    limit: int | None = getattr(getattr(cell.attack.method, "stop", None), "limit", None)
    return limit


def minutes_of(tap: dict[str, Any]) -> float:
    """Return how long the attack took at a leakage point."""
    return round(float(tap["seconds"]) / 60, 1)


def there(table: Path) -> Path:
    """Return the CSV that a page is to be written from; raises InputError where there is none."""
    if not table.exists():
        raise InputError(f"--page: {table.name} does not exist; measure first")
    return table


def held(table: Path, first: Sequence[str] = ("row",)) -> pd.DataFrame:
    """Return the rows of a CSV; none, with these first columns, where there is none yet."""
    return pd.read_csv(table) if table.exists() else pd.DataFrame({column: [] for column in first})


def replaced(rows: pd.DataFrame, by: str, name: str, found: Sequence[Row]) -> pd.DataFrame:
    """Return `rows` without those whose column `by` is `name`, and those that were found at their end.

    The types of columns are what all values together have, also where every value of one part is missing.
    """
    kept: list[Row] = rows[rows[by] != name].to_dict("records") if len(rows) else []  # type: ignore[assignment]
    return pd.DataFrame(
        [*kept, *found], columns=list(dict.fromkeys([*rows.columns, *(name for row in found for name in row)]))
    )


def in_order(rows: pd.DataFrame, by: str, names: Iterable[str]) -> pd.DataFrame:
    """Return the rows in the order in which `names` lists the values of column `by`."""
    order = {name: place for place, name in enumerate(names)}
    return rows.sort_values(by, key=lambda listed: listed.map(order), kind="stable").reset_index(drop=True)


def measured(
    rows: pd.DataFrame,
    names: Sequence[str],
    cells: Sequence[str],
    measure: Callable[[str], list[Row]],
    say: Callable[[Row], str],
    table: Path | None = None,
    by: str = "row",
) -> pd.DataFrame:
    """Return `rows` with those of the named cells measured, in the order of the cells; each is said, and kept at once.

    Args:
        measure: Takes a cell's name, returns its rows.
        table: The CSV, None where rows are not whole yet.
        by: The column that has the cell's name.
    """
    for name in names:
        found = measure(name)
        rows = in_order(replaced(rows, by, name, found), by, cells)
        if table is not None:
            rows.to_csv(table, index=False)
        for row in found:
            print(f"{row['row']}: {say(row)}", flush=True)
    return rows
