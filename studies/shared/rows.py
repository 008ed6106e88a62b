"""The CSV of a script: one name for each cell, whose rows are replaced when the cell is measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from leakbench.core.progress import Reporter
from leakbench.study.rows import Row, RowFormat, RowStore, in_order
from leakbench.study.study import Execution, Job, Study

__all__ = ["measured", "store_of"]


def store_of(path: Path, cells: Sequence[str] = (), first: tuple[str, ...] = ("row",)) -> RowStore:
    """Return the rows of a script.

    Args:
        path: The CSV.
        cells: Names of all cells, in the order of their rows.
        first: Columns of a CSV without rows; the last one has the names of cells.
    """
    by = first[-1]
    return RowStore(path, RowFormat(first), order=lambda rows: in_order(rows, by, cells), by=by, typed=False)


def measured(
    store: RowStore, names: Sequence[str], measure: Callable[[str], list[Row]], text: Callable[[Row], str]
) -> pd.DataFrame:
    """Return all rows after the named cells were measured; the rows of each are printed and stored at once.

    Args:
        store: The rows of the script.
        names: Names of the cells to measure.
        measure: Returns the rows of a cell.
        text: Returns what is printed of a row, after its name.
    """

    def say(row: Row) -> None:
        print(f"{row[store.by]}: {text(row)}", flush=True)

    here = Execution(Path("runs"), None, Reporter())
    return Study(store)((Job(name, partial(measure, name)) for name in names), here, say)
