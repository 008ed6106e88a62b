"""What is measured of a table of cells and computed of a table of accounting: the same questions to both kinds of table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from leakbench.core.errors import InputError
from leakbench.core.progress import cells_line
from leakbench.core.request import Request
from leakbench.reproduce.accounting.measure import computed
from leakbench.reproduce.accounting.page import accounting_page, judged
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.cost import timed
from leakbench.reproduce.file import results_folder, rows_folder
from leakbench.reproduce.measure import accuracies_in, cells_of, certain, check_line, command_of, measured, trainings_of
from leakbench.reproduce.minutes import minutes_at_full, minutes_left
from leakbench.reproduce.page import claims_of, page_of
from leakbench.reproduce.price import draw_price, leaks_of
from leakbench.reproduce.published import AnyTable, store_of
from leakbench.reproduce.table import AUTO, Line, Table
from leakbench.reproduce.table_figures import draw_curves, draw_pictures
from leakbench.study.rows import Row, on_cpu
from leakbench.study.stale import hash_of
from leakbench.study.study import Execution, Job

__all__ = ["MOST_MINUTES", "Asked", "CellPlan", "ClaimPlan", "Wanted", "plan_of"]

MOST_MINUTES = 30.0
"""Largest number of minutes of a cell that the scale `auto` measures at full size."""


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
        if less := [name for name in asked if name in full and lines[name].scale(scale) == "quick"]:
            raise InputError(
                f"scale: {store.path} has rows of scale full, which quick ones would replace ({'; '.join(less[:3])}"
                f"{f' and {len(less) - 3} more' if len(less) > 3 else ''}); give --scale full, or another --out"
            )
        if asked:
            known = (
                [60 * minutes[name] for name in asked if name in short] if scale == AUTO else self._seconds(rows, scale)
            )
            cells = {repr(cell) for name, each in asked.items() for cell in _least(table, lines[name], each)}
            more = any(len(lines[name].counts(each.scale)) > 1 for name, each in asked.items())
            execution.reporter.note(f"{table.name}: {cells_line(len(cells), known, len(asked), more)}")
        yield asked

    def jobs(self, asked: Asked, out: Path, execution: Execution) -> Iterator[Job[list[Row]]]:
        """Yield the job of each cell."""
        for place, (name, wanted) in enumerate(asked.items(), 1):
            line = next(line for line in self.table.at(wanted.scale) if line.name == name)
            # An engine measures all seeds that a row may need: further ones would be measured in this process.
            seeds = line.counts(wanted.scale)[-1] if execution.engine is not None else 0
            requests = line.requests(wanted.scale, wanted.changed, seeds)[trainings_of(self.table, wanted.begun) :]
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
        if self.table.rounds and not accuracies_in(self.table, known[0]):
            return False, ()
        for each in dict.fromkeys((scale, "full")):
            counts = line.counts(each)
            cells = cells_of(line, each, changed, data_dir, seeds=counts[-1])
            has = [n for n in counts if known[0]["hash"] == hash_of(cells[:n])]
            # A row of another scale may have the same cells and other numbers of trainings after which it is tested.
            if has and (has[0] == counts[-1] or certain(self.table, line, [row | {"scale": each} for row in known])):
                return True, ()
            if has and each == scale and trainings_of(self.table, known) == has[0]:
                return False, tuple(known)
        return False, ()

    def _seconds(self, rows: pd.DataFrame, scale: str) -> list[float]:
        """Return the seconds of each cell that was measured at this scale, here or for the published page."""
        scales = {line.name: line.scale(scale) for line in self.table.lines}
        for known in map(on_cpu, (rows, store_of(self.table, results_folder()).read())):
            if len(known) and {"scale", "wall_minutes"} <= set(known):
                each = known[known["scale"] == known["cell"].map(scales)].groupby("cell")["wall_minutes"].first()
                if len(each):
                    return [60 * float(minutes) for minutes in each]
        return []


def _least(table: Table, line: Line, wanted: Wanted) -> list[Request]:
    """Return the requests that a row needs at least: after begun trainings, the next one."""
    begun = trainings_of(table, wanted.begun)
    return line.requests(wanted.scale, wanted.changed, max(line.counts(wanted.scale).start, begun + 1))[begun:]


def plan_of(table: AnyTable) -> CellPlan | ClaimPlan:
    """Return the plan of a table of either kind."""
    return CellPlan(table) if isinstance(table, Table) else ClaimPlan(table)
