"""How long the cells of a table take at full size, from the times of measured cells."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from leakbench.cell import Cell
from leakbench.cell.budget import plan
from leakbench.core.request import Request
from leakbench.reproduce.file import results_folder
from leakbench.reproduce.published import store_of
from leakbench.reproduce.table import Line, Table, scale_of
from leakbench.study.rows import on_cpu
from leakbench.study.study import limit_of

__all__ = ["minutes_at_full", "minutes_left"]

ROUNDED = 0.05
"""Minutes of a cell whose row says 0."""


def minutes_at_full(table: Table, out: Path, changed: dict[str, Any], data_dir: Path | None) -> dict[str, float]:
    """Return {cell: minutes at full size}, for cells that were measured before, here or for the published page.

    A cell that was measured at another size, or without `changed`, takes as many times longer as its training or its attack,
    whichever grows more. Trials of other numbers are left out.
    """
    lines, found = {line.name: line for line in table.lines}, dict[str, float]()
    for folder in (out, results_folder()):
        rows = on_cpu(store_of(table, folder).read())
        if not {"scale", "wall_minutes"} <= set(rows):
            continue
        for row in rows.drop_duplicates("cell").to_dict("records"):
            name, minutes = row["cell"], max(float(row["wall_minutes"]), ROUNDED)
            if name in found or name not in lines or isnan(minutes) or scale_of(row)[1] not in ({}, changed):
                continue
            same = scale_of(row) == ("full", changed)
            found[name] = minutes if same else minutes * _times(lines[name], scale_of(row), changed, data_dir)
    return found


def minutes_left(table: Table, rows: pd.DataFrame) -> dict[str, float]:
    """Return {cell without a row: minutes at full size}, by its work and the times of cells of the same data set on a CPU.

    It is the median over the table's cells of full size, each taken as many times longer as the training or the attack grows,
    whichever grows more. Other data sets have other networks and are not used.
    """
    lines, known = {line.name: line for line in table.lines}, on_cpu(rows)
    if not {"scale", "wall_minutes"} <= set(known) or table.repeats:
        return {}
    full = known[(known["scale"] == "full") & (known["wall_minutes"] > 0)].drop_duplicates("cell")
    took = {row["cell"]: row["wall_minutes"] / row["seeds"] for row in full.to_dict("records") if row["cell"] in lines}
    lacking = [name for name in lines if name not in set(rows["cell"])]
    if not took or not lacking:
        return {}

    @cache
    def work(request: Request) -> tuple[int, int]:
        return _work(plan(request))

    def undefended(name: str) -> Request:  # The work hardly depends on the defense, and so fewer cells are planned.
        asked = lines[name].requests("full", {}, 1)[0]
        return replace(asked, defense="none", noise_factor=None, clip_factor=None, epsilon=None)

    def longer(name: str, than: str) -> float:
        ratios = zip(work(undefended(than)), work(undefended(name)), strict=True)
        return max(large / small for small, large in ratios)

    found = dict[str, float]()
    for name in lacking:
        alike = [other for other in took if undefended(other).dataset == undefended(name).dataset]
        if alike:
            found[name] = lines[name].counts("full").start * median(
                took[other] * longer(name, other) for other in alike
            )
    return found


def _times(line: Line, took: tuple[str, dict[str, Any]], changed: dict[str, Any], data_dir: Path | None) -> float:
    """Return how many times longer a cell with `changed` takes at full size than at a scale with a trial's numbers."""
    before, now = (
        [plan(request, data_dir) for request in requests]
        for requests in (line.requests(*took), line.requests("full", changed))
    )
    grown = (large / small for small, large in zip(_work(before[0]), _work(now[0]), strict=True))
    return max(1.0, *grown) * len(now) / len(before)


def _work(cell: Cell) -> tuple[int, int]:
    """Return the examples of all steps of a cell's training, and the attacked examples times iterations; at least 1 each."""
    s, f = cell.settings, cell.settings.federation
    training = f.rounds * f.clients_per_round * f.local_iterations * f.batch
    return max(1, training), max(1, s.victims * s.leak_batch * s.observations * (limit_of(cell) or 1))
