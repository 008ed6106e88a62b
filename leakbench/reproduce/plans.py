"""What is measured of a table of cells and computed of a table of accounting: the same questions to both kinds of table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import inf, isnan
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import pandas as pd

from leakbench.cell import Cell
from leakbench.cell.budget import plan
from leakbench.core.errors import InputError
from leakbench.core.progress import cells_line
from leakbench.core.request import Request
from leakbench.reproduce.accounting.measure import computed
from leakbench.reproduce.accounting.page import accounting_page, judged
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.cost import timed
from leakbench.reproduce.file import results_folder, rows_folder, rows_path
from leakbench.reproduce.measure import cells_of, certain, check_line, command_of, measured, trainings_of
from leakbench.reproduce.page import claims_of, page_of
from leakbench.reproduce.price import draw_price, leaks_of
from leakbench.reproduce.published import AnyTable
from leakbench.reproduce.table import AUTO, Line, Table, scale_of
from leakbench.reproduce.table_figures import draw_curves, draw_pictures
from leakbench.study.rows import Row, RowStore, in_order, on_cpu
from leakbench.study.stale import hash_of
from leakbench.study.study import Execution, Job, limit_of

__all__ = [
    "MOST_MINUTES",
    "Asked",
    "CellPlan",
    "ClaimPlan",
    "Wanted",
    "minutes_at_full",
    "minutes_left",
    "plan_of",
    "store_of",
]

MOST_MINUTES = 30.0
"""Largest number of minutes of a cell that the scale `auto` measures at full size."""

ROUNDED = 0.05
"""Minutes of a cell whose row says 0."""


@dataclass(frozen=True)
class Wanted:
    """How a cell or claim is measured.

    Args:
        scale: `quick` or `full`.
        changed: {field of a cell: number} of a trial.
        begun: The rows of its first trainings, which the CSV has; none measures all of them.
    """

    scale: str
    changed: Mapping[str, Any]
    begun: tuple[Row, ...] = ()


Asked: TypeAlias = Mapping[str, Wanted]
"""{name of a cell or claim: how it is measured}."""


def store_of(table: AnyTable, out: Path) -> RowStore:
    """Return the CSV of a table in a folder, whose rows are read as the table states them today."""
    names = table.names("full")
    return RowStore(rows_path(out, table.name), table.format, table.current, lambda rows: in_order(rows, "cell", names))


@dataclass(frozen=True)
class ClaimPlan:
    """A table of accounting, whose claims are computed; scales and trials change nothing."""

    table: AccountingTable

    def page(self, rows: pd.DataFrame, elsewhere: bool, out: Path | None) -> str:
        """Return the page, see `accounting_page`."""
        return accounting_page(self.table, rows, out)

    def verdicts(self, rows: pd.DataFrame) -> list[str]:
        """Return the verdict of each claim that was computed."""
        return [claim.verdict for claim in judged(self.table, rows)]

    def batches(
        self, scale: str, only: str, changed: dict[str, Any], again: bool, out: Path, execution: Execution
    ) -> Iterator[Asked]:
        """Yield the claims that have no current row."""
        hashes = {claim.name: claim.hash for claim in self.table.claims}
        store, named = store_of(self.table, out), chosen(hashes, only)
        rows = store.read()
        missing = [name for name in named if again or not store.has(rows, name, hashes[name])]
        yield dict.fromkeys(missing, Wanted(scale, {}))

    def jobs(self, asked: Asked, out: Path, execution: Execution) -> Iterator[Job[list[Row]]]:
        """Yield the job of each claim."""
        claims = {claim.name: claim for claim in self.table.claims}
        for name in asked:
            yield Job(name, partial(computed, claims[name]))

    def draw_before(self, rows: pd.DataFrame, out: Path) -> None:
        """Draw nothing."""

    def draw_last(self, rows: pd.DataFrame, fresh: bool, out: Path, execution: Execution) -> None:
        """Draw nothing."""


@dataclass(frozen=True)
class CellPlan:
    """A table of cells, which are measured."""

    table: Table

    def page(self, rows: pd.DataFrame, elsewhere: bool, out: Path | None) -> str:
        """Return the page, see `page_of`."""
        return page_of(self.table, rows, elsewhere, out, minutes_left(self.table, rows))

    def verdicts(self, rows: pd.DataFrame) -> list[str]:
        """Return the verdict of each claim, measured or not."""
        return [claim.verdict for claim in claims_of(self.table, rows)]

    def batches(
        self, scale: str, only: str, changed: dict[str, Any], again: bool, out: Path, execution: Execution
    ) -> Iterator[Asked]:
        """Yield the cells that have no current row; at the scale `auto`, first those whose time at full size is unknown.

        Args:
            scale: One of `SCALES`, or `AUTO`.
            only: Text that the names of the cells contain.
            changed: {field of a cell: number} of a trial.
            again: Whether to measure existing rows again.
            out: Folder of the rows. Those of one batch are read when the next one is taken.
            execution: Where and how cells are run.

        Raises:
            InputError: A name is unknown, a cell does not fit, or a quick row would replace one of full size.
        """
        table, store, data_dir = self.table, store_of(self.table, out), execution.data_dir
        lines = {line.name: line for line in table.at(scale)}
        names = chosen(lines, only)
        for name, each in product(names, ("quick", "full") if scale == AUTO else (scale,)):
            check_line(lines[name], each, changed, data_dir)  # Before any data are looked for.
        rows = store.read()
        full = set(rows.loc[rows["scale"] == "full", "cell"]) if "scale" in rows else set()
        wanted = dict.fromkeys(names, scale)
        if scale == AUTO:
            minutes = minutes_at_full(table, out, changed, data_dir)
            if unknown := [name for name in names if name not in minutes and name not in full]:
                settings = "1 setting" if len(unknown) == 1 else f"{len(unknown)} settings"
                execution.reporter.note(
                    f"{table.name}: {settings} measured at scale quick first, to estimate the time at full"
                )
                yield dict.fromkeys(unknown, Wanted("quick", changed))
                rows, minutes = store.read(), minutes_at_full(table, out, changed, data_dir)
            short = {name for name in names if minutes.get(name, inf) <= MOST_MINUTES}
            wanted = {name: "full" if name in short else "quick" for name in names if name in short or name not in full}
        asked = {
            name: Wanted(each, changed, begun)
            for name, each in wanted.items()
            for ended, begun in [self._known(rows, lines[name], each, changed, data_dir, again)]
            if not ended
        }
        if less := [name for name in asked if scale == "quick" and name in full and lines[name].quick]:
            raise InputError(
                f"scale: {store.path} has rows of scale full, which quick ones would replace ({'; '.join(less[:3])}"
                f"{f' and {len(less) - 3} more' if len(less) > 3 else ''}); give --scale full, or another --out"
            )
        if asked:
            known = (
                [60 * minutes[name] for name in asked if name in short] if scale == AUTO else self._seconds(rows, scale)
            )
            cells = {
                repr(cell)
                for name, each in wanted.items()
                if name in asked
                for cell in lines[name].requests(each, changed)
            }
            execution.reporter.note(f"{table.name}: {cells_line(len(cells), known, len(asked))}")
        yield asked

    def jobs(self, asked: Asked, out: Path, execution: Execution) -> Iterator[Job[list[Row]]]:
        """Yield the job of each cell."""
        for place, (name, wanted) in enumerate(asked.items(), 1):
            line = next(line for line in self.table.at(wanted.scale) if line.name == name)
            # An engine measures all seeds that a row may need: further ones would be measured in this process.
            seeds = line.counts(wanted.scale)[-1] if execution.engine is not None else 0
            requests = line.requests(wanted.scale, wanted.changed, seeds)[trainings_of(wanted.begun) :]
            rows = partial(self._rows, line, wanted, out, execution)
            command = command_of(self.table, line, wanted.scale)
            yield Job(name, rows, tuple(requests), command, f"setting {place} of {len(asked)}")

    def draw_before(self, rows: pd.DataFrame, out: Path) -> None:
        """Draw the curves of a table that has them, or the price of the accuracy at which a sweep aims."""
        if self.table.rounds:
            draw_curves(self.table.rounds, rows, self._figure(out))
        if self.table.leaks:
            draw_price(self.table, rows, leaks_of(self.table, out), self._figure(out))

    def draw_last(self, rows: pd.DataFrame, fresh: bool, out: Path, execution: Execution) -> None:
        """Draw the pictures of a table that has them.

        Args:
            rows: All rows.
            fresh: Whether any row is new.
            out: Folder of the figure.
            execution: Where the cells of the rows are.
        """
        if self.table.pictures and (fresh or not self._figure(out).is_file()):
            draw_pictures(self.table, rows, out, execution)

    def _figure(self, out: Path) -> Path:
        return rows_folder(out, self.table.name) / f"{self.table.name}.png"

    def _rows(self, line: Line, wanted: Wanted, out: Path, execution: Execution) -> list[Row]:
        """Return the rows of a cell."""
        if self.table.repeats:
            return timed(self.table, line, wanted.scale, wanted.changed, execution)
        found = measured(self.table, line, wanted.scale, wanted.changed, execution, wanted.begun)
        if self.table.pictures:
            # Drawn last, so that a figure is missing, not of other rows, where an interrupted command drew none.
            self._figure(out).unlink(missing_ok=True)
        return found

    def _known(
        self,
        rows: pd.DataFrame,
        line: Line,
        scale: str,
        changed: Mapping[str, Any],
        data_dir: Path | None,
        again: bool,
    ) -> tuple[bool, tuple[Row, ...]]:
        """Return whether a cell's rows are its measurement, at this scale or at `full`, and else those of its first trainings."""
        if again or "hash" not in rows or line.name not in set(rows["cell"]):
            return False, ()
        known = rows[rows["cell"] == line.name].to_dict("records")
        for each in dict.fromkeys((scale, "full")):
            counts = line.counts(each)
            cells = cells_of(line, each, changed, data_dir, seeds=counts[-1])
            has = [n for n in counts if known[0]["hash"] == hash_of(cells[:n])]
            if has and (has[0] == counts[-1] or certain(self.table, line, known)):
                return True, ()
            if has and each == scale and trainings_of(known) == has[0]:
                return False, tuple(known)
        return False, ()

    def _seconds(self, rows: pd.DataFrame, scale: str) -> list[float]:
        """Return the seconds of each cell that was measured at this scale, here or for the published page."""
        for known in map(on_cpu, (rows, store_of(self.table, results_folder()).read())):
            if len(known) and {"scale", "wall_minutes"} <= set(known):
                each = known[known["scale"] == scale].groupby("cell")["wall_minutes"].first()
                if len(each):
                    return [60 * float(minutes) for minutes in each]
        return []


def plan_of(table: AnyTable) -> CellPlan | ClaimPlan:
    """Return the plan of a table of either kind."""
    return CellPlan(table) if isinstance(table, Table) else ClaimPlan(table)


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
        return replace(lines[name].requests("full", {}, 1)[0], defense="none", noise_factor=None, clip_factor=None)

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


def _times(line: Line, took: tuple[str, dict[str, Any]], changed: Mapping[str, Any], data_dir: Path | None) -> float:
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
