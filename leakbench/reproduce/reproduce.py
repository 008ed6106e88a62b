"""Measure a table of cells or compute a table of accounting: the jobs of its study, and its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from math import inf, isnan
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.cell import Cell
from leakbench.cell.budget import plan
from leakbench.core.errors import InputError
from leakbench.core.progress import cells_line
from leakbench.core.scripts import in_table, markdown_table
from leakbench.reproduce.accounting.measure import computed
from leakbench.reproduce.accounting.page import accounting_page, judged
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.columns import text_of
from leakbench.reproduce.cost import timed
from leakbench.reproduce.file import results_folder, rows_folder, table_names
from leakbench.reproduce.measure import cells_of, certain, check_line, command_of, measured
from leakbench.reproduce.page import claims_of, page_of
from leakbench.reproduce.published import AnyTable, read_any
from leakbench.reproduce.table import AUTO, Line, Table, scale_of, with_claims
from leakbench.reproduce.table_figures import draw_curves, draw_pictures
from leakbench.reproduce.verdict import NOT_MEASURED, VERDICTS
from leakbench.storage.atomic import write_text
from leakbench.study.engines import Placed
from leakbench.study.rows import Row, RowStore, in_order, on_cpu
from leakbench.study.stale import hash_of
from leakbench.study.study import Execution, Job, Page, Study, limit_of

__all__ = [
    "BEGIN",
    "END",
    "GROUPS",
    "MOST_MINUTES",
    "PAGES",
    "check_engine",
    "index_of",
    "pages_of",
    "remeasure",
    "reproduce",
    "study_of",
    "write_index",
]


MOST_MINUTES = 30.0
"""Largest number of minutes of a cell that the scale `auto` measures at full size."""

ROUNDED = 0.05
"""Minutes of a cell whose row says 0."""


def study_of(table: AnyTable, out: Path) -> Study:
    """Return the rows and the page of a table in a folder.

    Rows of cells that the table no longer has are left out; claims are those that the table states today.
    """
    kind, path = table.format, rows_folder(out, table.name) / f"{table.name}.csv"
    known_table = table.name in table_names()
    elsewhere = known_table and out.resolve() != results_folder().resolve()
    own = out if elsewhere or not known_table else None
    if isinstance(table, AccountingTable):
        names = [claim.name for claim in table.claims]

        def known(rows: pd.DataFrame) -> pd.DataFrame:
            return in_order(rows[rows["cell"].isin(names)], "cell", names)

        page = Page(path.with_suffix(".md"), partial(accounting_page, table, out=own), lambda _: write_index(out))
        return Study(RowStore(path, kind, order=known), page)

    def before(rows: pd.DataFrame) -> None:
        if table.rounds:
            draw_curves(table.rounds, rows, path.with_suffix(".png"))
        write_index(out)

    page = Page(path.with_suffix(".md"), partial(page_of, table, elsewhere=elsewhere, out=own), before)
    names = [line.name for line in table.lines]
    return Study(RowStore(path, kind, partial(with_claims, table), lambda rows: in_order(rows, "cell", names)), page)


def reproduce(
    table: AnyTable,
    scale: str,
    only: str,
    changed: dict[str, Any],
    out: Path,
    execution: Execution,
    say: Callable[[Row], None],
    again: bool = False,
) -> pd.DataFrame:
    """Measure the cells, or compute the claims, of a table that have no current row in `out`, and return all of its rows.

    The page is written after each row; the figure of a table of pictures is drawn last. A page that is missing or does not fit
    the rows is written again.

    Args:
        table: The table. A table of accounting does not use `scale`, `changed` and the folders of `execution`.
        scale: One of `SCALES`, and a row of the scale `full` counts for both; or `AUTO`: each cell at full size if that takes at
            most `MOST_MINUTES`, else at `quick`; a row of full size is never replaced by a quick one.
        only: Text that the names of the measured rows contain.
        changed: {field of a cell: number} for a trial.
        out: Folder of the CSV and the page.
        execution: Where and how cells are run.
        say: Receives each new row.
        again: Whether to measure existing rows again.

    Raises:
        InputError: A name or a field is unknown, a cell does not fit, or the table is not measured by an engine.
    """
    check_engine(table, execution.engine)
    study = study_of(table, out)
    if isinstance(table, AccountingTable):
        hashes = {claim.name: claim.hash for claim in table.claims}
        rows, named = study.store.read(), chosen(hashes, only)
        missing = [name for name in named if again or not study.store.has(rows, name, hashes[name])]
        return remeasure(table, dict.fromkeys(missing, (scale, {})), out, execution, say)
    lines = {line.name: line for line in table.at(scale)}
    names = chosen(lines, only)
    scales = ("quick", "full") if scale == AUTO else (scale,)
    for name, each in product(names, scales):  # Every cell is checked before any data are looked for.
        check_line(lines[name], each, changed, execution.data_dir)
    rows = study.store.read()

    def current(name: str, scale: str) -> bool:
        """Return whether a row is the measurement of just this cell, at this scale or at `full`, with all the seeds it needs."""
        if "hash" not in rows or name not in set(rows["cell"]):
            return False
        line, known = lines[name], with_claims(table, rows[rows["cell"] == name]).to_dict("records")
        for each in dict.fromkeys((scale, "full")):
            counts = line.counts(each)
            cells = cells_of(line, each, changed, execution.data_dir, seeds=counts[-1])
            has = [n for n in counts if study.store.has(rows, name, hash_of(cells[:n]))]
            if has and (has[0] == counts[-1] or certain(table, line, known)):
                return True
        return False

    full = set(rows.loc[rows["scale"] == "full", "cell"]) if "scale" in rows else set()
    wanted = dict.fromkeys(names, scale)
    if scale == AUTO:
        minutes = minutes_at_full(table, out, changed, execution.data_dir)
        if unknown := {name: ("quick", changed) for name in names if name not in minutes and name not in full}:
            settings = "1 setting" if len(unknown) == 1 else f"{len(unknown)} settings"
            execution.reporter.note(
                f"{table.name}: {settings} measured at scale quick first, to estimate the time at full"
            )
            rows = remeasure(table, unknown, out, execution, say)
            minutes = minutes_at_full(table, out, changed, execution.data_dir)
        short = {name for name in names if minutes.get(name, inf) <= MOST_MINUTES}
        wanted = {name: "full" if name in short else "quick" for name in names if name in short or name not in full}
    asked = {name: each for name, each in wanted.items() if again or not current(name, each)}
    if less := [name for name in asked if scale == "quick" and name in full and lines[name].quick]:
        raise InputError(
            f"scale: {study.store.path} has rows of scale full, which quick ones would replace ({'; '.join(less[:3])}"
            f"{f' and {len(less) - 3} more' if len(less) > 3 else ''}); give --scale full, or another --out"
        )
    if asked:
        known = (
            [60 * minutes[name] for name in asked if name in short] if scale == AUTO else _seconds(table, rows, scale)
        )
        cells = {repr(cell) for name, each in asked.items() for cell in lines[name].requests(each, changed)}
        execution.reporter.note(f"{table.name}: {cells_line(len(cells), known, len(asked))}")
    return remeasure(table, {name: (each, changed) for name, each in asked.items()}, out, execution, say)


def remeasure(
    table: AnyTable,
    asked: Mapping[str, tuple[str, dict[str, Any]]],
    out: Path,
    execution: Execution,
    say: Callable[[Row], None],
) -> pd.DataFrame:
    """Measure cells of a table, or compute claims, whether or not they have rows, and return all rows.

    Args:
        asked: {name of a cell: (its scale, {field: number} of a trial)}.
    """
    if isinstance(table, AccountingTable):
        claims = {claim.name: claim for claim in table.claims}
        return study_of(table, out)((Job(name, partial(computed, claims[name])) for name in asked), execution, say)
    figure, fresh = rows_folder(out, table.name) / f"{table.name}.png", set[str]()

    def jobs() -> Iterator[Job[list[Row]]]:
        for place, (name, (scale, changed)) in enumerate(asked.items(), 1):
            line = next(line for line in table.at(scale) if line.name == name)
            requests, command = tuple(line.requests(scale, changed)), command_of(table, line, scale)
            rows = partial(_rows, table, line, scale, changed, figure, execution)
            yield Job(name, rows, requests, command, f"setting {place} of {len(asked)}")

    def heard(row: Row) -> None:
        fresh.add(row["cell"])
        say(row)

    rows = study_of(table, out)(jobs(), execution, heard)
    if table.pictures and (fresh or not figure.is_file()):
        draw_pictures(table, rows, out, execution)
    return rows


def _rows(
    table: Table, line: Line, scale: str, changed: dict[str, Any], figure: Path, execution: Execution
) -> list[Row]:
    """Return the rows of a cell."""
    if table.repeats:
        return timed(table, line, scale, changed, execution)
    found = measured(table, line, scale, changed, execution)
    if (
        table.pictures
    ):  # Drawn last, so that a figure is missing, not of other rows, where an interrupted command drew none.
        figure.unlink(missing_ok=True)
    return found


def check_engine(table: AnyTable, engine: Placed | None) -> None:
    """Raise InputError for an engine where cells are not measured in parallel."""
    if engine is not None and table.alone:
        raise InputError(f"engine: {table.called} {table.alone}; leave --engine out")


def minutes_at_full(table: Table, out: Path, changed: dict[str, Any], data_dir: Path | None) -> dict[str, float]:
    """Return {cell: minutes at full size}, for cells that were measured before, here or for the published page.

    A cell that was measured at another size, or without `changed`, takes as many times longer as its training or its attack,
    whichever grows more.
    """
    lines, found = {line.name: line for line in table.lines}, dict[str, float]()
    for folder in (out, results_folder()):
        rows = on_cpu(study_of(table, folder).store.read())
        if not {"scale", "wall_minutes"} <= set(rows):
            continue
        for row in rows.drop_duplicates("cell").to_dict("records"):
            name, minutes = row["cell"], max(float(row["wall_minutes"]), ROUNDED)
            if name in found or name not in lines or isnan(minutes) or scale_of(row)[1]:
                continue
            same = row["scale"] == "full" and not changed
            found[name] = minutes if same else minutes * _times(lines[name], row["scale"], changed, data_dir)
    return found


def _times(line: Line, scale: str, changed: dict[str, Any], data_dir: Path | None) -> float:
    """Return how many times longer a cell with `changed` takes at full size than it took at `scale` without."""
    before, now = (
        [plan(request, data_dir) for request in requests]
        for requests in (line.requests(scale, {}), line.requests("full", changed))
    )
    grown = (large / small for small, large in zip(_work(before[0]), _work(now[0]), strict=True))
    return max(1.0, *grown) * len(now) / len(before)


def _work(cell: Cell) -> tuple[int, int]:
    """Return the examples of all steps of a cell's training, and the attacked examples times iterations; at least 1 each."""
    s, f = cell.settings, cell.settings.federation
    training = f.rounds * f.clients_per_round * f.local_iterations * f.batch
    return max(1, training), max(1, s.victims * s.leak_batch * s.observations * (limit_of(cell) or 1))


def _seconds(table: Table, rows: pd.DataFrame, scale: str) -> list[float]:
    """Return the seconds of each cell that was measured at this scale, here or for the published page."""
    for known in map(on_cpu, (rows, study_of(table, results_folder()).store.read())):
        if len(known) and {"scale", "wall_minutes"} <= set(known):
            each = known[known["scale"] == scale].groupby("cell")["wall_minutes"].first()
            if len(each):
                return [60 * float(minutes) for minutes in each]
    return []


BEGIN, END = "<!-- verdicts -->", "<!-- end -->"
"""The lines of README.md around the sums of the verdicts."""

PAGES = "<!-- pages -->"
"""The line of README.md before the list of pages, which `END` follows."""

GROUPS = {
    "papers": "Papers",
    "attacks": "Attacks",
    "servers": "Malicious servers",
    "defenses": "Defenses",
    "frontier": "Which defense, at what setting",
    "speed": "Speed",
    "checks": "Checks of leakbench and of other tools",
}
"""{folder of results: its title}."""

HEADS = ("table", *VERDICTS, "cells measured", "scale", "minutes")


def index_of(out: Path) -> str:
    """Return a table of the tables that have claims and rows in `out`, with the sums of their verdicts."""
    lines, sums = [], Counter[str]()
    for name in table_names():
        csv = rows_folder(out, name) / f"{name}.csv"
        if not csv.is_file():
            continue
        table = read_any(name)
        rows = RowStore(csv, table.format).read()
        found = Counter(_verdicts(table, rows))
        if not found.keys() - {NOT_MEASURED}:
            continue
        sums += found
        cells = f"{rows['cell'].nunique()} of {len(table.names('full'))}"
        scales = (
            ", ".join(sorted(set(rows["scale"].dropna()))) if "scale" in rows else "both" if table.computed else "full"
        )
        minutes = rows.drop_duplicates("cell")["wall_minutes"].sum() if "wall_minutes" in rows else None
        page = csv.with_suffix(".md").relative_to(out).as_posix()
        lines.append(
            (
                f"[{in_table(table.title)}]({page})",
                *_counts(found),
                cells,
                scales,
                text_of(minutes, 0),
            )
        )
    total = ("all", *_counts(sums), "", "", "")
    return markdown_table(HEADS, [*lines, total])


def _verdicts(table: AnyTable, rows: pd.DataFrame) -> list[str]:
    """Return the verdict of each claim."""
    if isinstance(table, AccountingTable):
        return [claim.verdict for claim in judged(table, rows)]
    return [claim.verdict for claim in claims_of(table, rows)]


def write_index(out: Path) -> None:
    """Put the sums of the verdicts and the list of pages into `out`/README.md, where it has the lines around them."""
    path = out / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    new = _between(_between(text, BEGIN, index_of(out)), PAGES, pages_of(out))
    if new != text:
        write_text(path, new)


def _between(text: str, begin: str, block: str) -> str:
    """Return a text with a block between a line and the next `END`; the same text where these lines are missing."""
    before, found, rest = text.partition(f"{begin}\n")
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{block}\n{END}{after}" if found and end else text


def pages_of(out: Path) -> str:
    """Return the list of all pages of a folder of results, with their titles: those of all rows, then each group's."""
    lines = []
    for group, title in {".": "Overview", **GROUPS}.items():
        pages = [page for page in sorted((out / group).glob("*.md")) if page.name != "README.md"]
        if pages:
            lines += ["", f"### {title}", ""]
        for page in pages:
            heading = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            lines.append(f"- [{heading}]({page.relative_to(out).as_posix()})")
    return "\n".join(lines[1:])


def _counts(found: Counter[str]) -> tuple[int, ...]:
    return tuple(found[verdict] for verdict in VERDICTS)
