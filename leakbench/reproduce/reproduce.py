"""Measure a table of cells or compute a table of accounting: the jobs of its study, and its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.core.errors import InputError
from leakbench.core.scripts import in_table, markdown_table
from leakbench.reproduce.columns import text_of
from leakbench.reproduce.file import natural, results_folder, rows_path, table_names
from leakbench.reproduce.plans import Asked, plan_of
from leakbench.reproduce.published import AnyTable, read_any, store_of
from leakbench.reproduce.verdict import NOT_MEASURED, VERDICTS
from leakbench.storage.atomic import write_text
from leakbench.study.engines import Placed
from leakbench.study.rows import Row, RowStore, on_cpu
from leakbench.study.study import Execution, Page, Study

__all__ = [
    "BEGIN",
    "END",
    "GROUPS",
    "PAGES",
    "check_engine",
    "index_of",
    "pages_of",
    "remeasure",
    "reproduce",
    "study_of",
    "write_index",
]


def study_of(table: AnyTable, out: Path) -> Study:
    """Return the rows and the page of a table in a folder."""
    plan, known = plan_of(table), table.name in table_names()
    elsewhere = known and out.resolve() != results_folder().resolve()
    store = store_of(table, out)

    def before(rows: pd.DataFrame) -> None:
        plan.draw_before(rows, out)
        write_index(out)

    def page(rows: pd.DataFrame) -> str:
        return plan.page(rows, elsewhere, out if elsewhere or not known else None)

    return Study(store, Page(store.path.with_suffix(".md"), page, before))


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
    rows = pd.DataFrame()
    for asked in plan_of(table).batches(scale, only, changed, again, out, execution):
        rows = remeasure(table, asked, out, execution, say)
    return rows


def remeasure(
    table: AnyTable, asked: Asked, out: Path, execution: Execution, say: Callable[[Row], None]
) -> pd.DataFrame:
    """Measure cells of a table, or compute claims, whether or not they have rows, and return all rows."""
    plan, fresh = plan_of(table), list[str]()

    def heard(row: Row) -> None:
        fresh.append(row["cell"])
        say(row)

    rows = study_of(table, out)(plan.jobs(asked, out, execution), execution, heard)
    plan.draw_last(rows, bool(fresh), out, execution)
    return rows


def check_engine(table: AnyTable, engine: Placed | None) -> None:
    """Raise InputError for an engine where cells are not measured in parallel."""
    if engine is not None and table.alone:
        raise InputError(f"engine: {table.called} {table.alone}; leave --engine out")


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
        csv = rows_path(out, name)
        if not csv.is_file():
            continue
        table = read_any(name)
        rows = RowStore(csv, table.format).read()
        found = Counter(plan_of(table).verdicts(rows))
        if not found.keys() - {NOT_MEASURED}:
            continue
        sums += found
        cells = f"{rows['cell'].nunique()} of {len(table.names('full'))}"
        scales = (
            ", ".join(sorted(set(rows["scale"].dropna()))) if "scale" in rows else "both" if table.computed else "full"
        )
        minutes = on_cpu(rows).drop_duplicates("cell")["wall_minutes"].sum() if "wall_minutes" in rows else None
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
        found = sorted((out / group).glob("*.md"), key=lambda page: natural(page.name))
        pages = [page for page in found if page.name != "README.md"]
        if pages:
            lines += ["", f"### {title}", ""]
        for page in pages:
            heading = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            lines.append(f"- [{heading}]({page.relative_to(out).as_posix()})")
    return "\n".join(lines[1:])


def _counts(found: Counter[str]) -> tuple[int, ...]:
    return tuple(found[verdict] for verdict in VERDICTS)
