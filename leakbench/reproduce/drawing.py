"""Draw the figure of a table of pictures: from the folders of its cells, of which one that is gone is run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.progress import Reporter
from leakbench.reproduce.measure import cells_of
from leakbench.reproduce.pictures import Shown, draw, shown_of
from leakbench.reproduce.rows import executed
from leakbench.reproduce.table import Table

__all__ = ["draw_pictures"]


def draw_pictures(
    table: Table,
    rows: pd.DataFrame,
    changed: dict[str, Any],
    runs: Path,
    out: Path,
    data_dir: Path | None,
    reporter: Reporter,
) -> Path:
    """Draw the cells that have rows, each of the scale of its row, into `out`/NAME.png, and return its path.

    Under a method's heading stands the accuracy of the network that was trained with it, where one was.
    """
    shown, notes = list[Shown](), dict[str, str]()
    scales = dict(zip(rows["cell"], rows["scale"], strict=True))
    for line in table.lines:
        if line.name not in scales:
            continue
        cell = cells_of(line, scales[line.name], changed, data_dir, reporter)[0]
        command = f'leakbench reproduce {table.called} --scale {scales[line.name]} --only "{line.name}"'
        with executed(cell, runs, command, reporter) as (summary, run):
            tensors = run.read_tensors("reconstructions.safetensors")
            found = shown_of(line.name, run.read_rows("rows.parquet"), tensors, table.pictures)
        shown += found
        if summary["accuracy"] is not None:
            notes[found[0].method] = f"accuracy\n{summary['accuracy']:.3f}"
    path = out / f"{table.name}.png"
    draw(shown, notes, path)
    return path
