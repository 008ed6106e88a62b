"""Published rows whose identity is not that of today's cell, and why; nothing is measured.

A row is stale where the hash that it was published with is not the hash of the cell that its table, frontier or card asks for
today. The reason is a behaviour version that has changed since, where one has; else the cell that is asked for is another one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.data.find import Load
from leakbench.data.kept import KeptData
from leakbench.data.recipe import DatasetRecipe
from leakbench.errors import AbsentError, InputError
from leakbench.progress import Progress
from leakbench.recipe import resolve
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.file import table_names
from leakbench.reproduce.kept import kept
from leakbench.reproduce.measure import hash_of
from leakbench.reproduce.read import AnyTable, kind_of, read_any
from leakbench.reproduce.recorded import changes, together, versions_asked, versions_in
from leakbench.reproduce.table import Line, Table
from leakbench.scripts import untagged

__all__ = [
    "Checked",
    "Published",
    "Today",
    "checked",
    "published",
    "published_rows",
    "rows_of",
    "stale_lines",
    "stale_names",
    "stale_reason",
]


BEHAVIOUR = "measured with another behaviour of"
"""Start of a reason; names and versions of the changed pieces follow."""

OTHER = "settings, a recipe or the data have changed since the measurement"


@dataclass(frozen=True)
class Today:
    """Today's cell of a published row: its hash, and {name: behaviour version} of everything that it uses."""

    hash: str
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A published row before it is checked.

    Args:
        page: The name of its table, frontier or card.
        row: The name of its cell.
        hash: What it was published with.
        dataset: By which rows are checked together.
        today: Reads data by its argument; raises AbsentError where they are not on this machine, InputError where today's catalog
            has no such cell.
        without_data: The versions that are known without them.
        recorded: Its behaviour versions above 1.
        again: The command that measures it again.
        scale: That it was measured at; empty where there are no scales.
        changed: Numbers of a trial.
    """

    page: str
    row: str
    hash: str
    dataset: str
    today: Callable[[Load], Today]
    without_data: Callable[[], Mapping[str, int]] = dict
    recorded: Mapping[str, int] = field(default_factory=dict)
    again: str = ""
    scale: str = ""
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """The name of the data set, or the path of its recipe, from the working folder where the recipe is in it."""
        path = Path(self.dataset)
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@dataclass(frozen=True)
class Checked:
    """A published row compared with today's cell: current, stale or unknown, and why.

    Args:
        today: The hash of today's cell; empty where it is unknown.
        absent: Whether the row's data are not on this machine, so that it cannot be measured here.
    """

    published: Published
    state: Literal["current", "stale", "unknown"]
    today: str = ""
    reason: str = ""
    absent: bool = False


def checked(rows: Iterable[Published], load: Load, progress: Progress) -> list[Checked]:
    """Return each row with its state, in the given order; rows of one data set are checked together, so that it is read once."""
    listed = list(rows)
    found: dict[int, Checked] = {}
    for done, place in enumerate(sorted(range(len(listed)), key=lambda i: (listed[i].dataset, i)), start=1):
        found[place] = _checked(listed[place], load)
        progress("rows checked", done, len(listed))
    return [found[place] for place in range(len(listed))]


def _checked(row: Published, load: Load) -> Checked:
    try:
        today = row.today(load)
    except AbsentError:
        changed = changes(row.recorded, row.without_data())
        if changed:
            return Checked(row, "stale", reason=f"{BEHAVIOUR} {', '.join(changed)}", absent=True)
        return Checked(row, "unknown", reason=f"data not on this machine: {row.data}", absent=True)
    except InputError as error:
        return Checked(row, "stale", reason=f"today's catalog has no such cell: {error}")
    if today.hash == row.hash:
        return Checked(row, "current", today.hash)
    changed = changes(row.recorded, today.versions)
    return Checked(row, "stale", today.hash, f"{BEHAVIOUR} {', '.join(changed)}" if changed else OTHER)


def published_rows(out: Path, data_dir: Path | None) -> Iterator[Published]:
    """Yield the rows of every table that has a CSV in `out`."""
    for name in table_names():
        if (out / f"{name}.csv").is_file():
            yield from published(read_any(name), out, data_dir)


def published(table: AnyTable, out: Path, data_dir: Path | None, only: str = "") -> Iterator[Published]:
    """Yield the rows of a table's CSV in `out`, one for each cell.

    Args:
        only: Text that their names contain.
    """
    rows = kept(out / f"{table.name}.csv", kind_of(table))
    names = set(chosen(map(str, rows["cell"].unique()), only)) if only else set(rows["cell"])
    yield from rows_of(table, rows[rows["cell"].isin(names)], data_dir)


def rows_of(table: AnyTable, rows: pd.DataFrame, data_dir: Path | None = None) -> Iterator[Published]:
    """Yield these rows of a table, one for each cell."""
    again = f"leakbench reproduce {table.called} --stale"
    cells: list[dict[Any, Any]] = rows.drop_duplicates("cell").to_dict("records")
    for row in cells:
        if isinstance(table, AccountingTable):
            yield _of_claim(table, row, again)
        else:
            yield _of_line(table, row, again, data_dir)


def stale_lines(rows: Sequence[Published], found: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Return the lines of a page on its stale rows, a reason each; nothing where none is known to be stale.

    A page is the same on every machine: the whole identity is checked where the data come with leakbench, else the behaviour
    versions that are known without data.

    Args:
        rows: Of one page, each with a hash.
        found: Their `stale_names`, where known.
    """
    found = stale_names(rows) if found is None else found
    again = next((row.again for row in rows), "")
    rule = f"Stale rows; `{again}` measures them again:"
    shown = [f"- {reason}: {untagged('; '.join(names))}." for reason, names in found.items()]
    return [rule, "", *shown, ""] if shown else []


def stale_names(rows: Sequence[Published]) -> dict[str, list[str]]:
    """Return {reason: names of the rows that are stale for it}, as far as every machine knows it; see `stale_lines`."""
    found: dict[str, list[str]] = {}
    load = KeptData(offline=True)
    for row in rows:
        if reason := stale_reason(row, load):
            found.setdefault(reason, []).append(row.row)
    return found


def stale_reason(row: Published, load: Load) -> str:
    """Return why a row is stale, as far as every machine knows it; empty where it is not known to be.

    Args:
        load: Reads a data set that comes with leakbench.
    """
    if not row.hash:
        return ""
    try:
        if resolve("datasets", DatasetRecipe, row.dataset)[1].origin is None:
            found = _checked(row, load)
            return found.reason if found.state == "stale" else ""
        changed = changes(row.recorded, row.without_data())
    except InputError:  # A recipe that is not on this machine, as where a page is written elsewhere.
        return ""
    return f"{BEHAVIOUR} {', '.join(changed)}" if changed else ""


def _of_claim(table: AccountingTable, row: Mapping[Any, Any], again: str) -> Published:
    claims = {claim.name: claim for claim in table.claims}

    def today(_: Load) -> Today:
        if row["cell"] not in claims:
            raise InputError(f"{table.called} has no row {row['cell']!r}")
        claim = claims[row["cell"]]
        return Today(claim.hash, claim.versions)

    return Published(table.name, row["cell"], _hash(row), "", today, recorded=versions_in(row), again=again)


def _of_line(table: Table, row: Mapping[Any, Any], again: str, data_dir: Path | None) -> Published:
    scale = row["scale"] if isinstance(row.get("scale"), str) else "full"
    changed = json.loads(row["changed"]) if isinstance(row.get("changed"), str) else {}
    lines = {line.name: line for line in table.at(scale)}

    def requests() -> list[Request]:
        if row["cell"] not in lines:
            raise InputError(f"{table.called} has no row {row['cell']!r} at scale {scale}")
        return _requests(table, lines[row["cell"]], scale, changed)

    def today(load: Load) -> Today:
        cells = [prepare(request, data_dir, load=load) for request in requests()]
        return _today(cells if not table.repeats else cells[:1], cells)

    return Published(
        page=table.name,
        row=row["cell"],
        hash=_hash(row),
        dataset=str(lines[row["cell"]].given.get("dataset", Request.dataset)) if row["cell"] in lines else "",
        today=today,
        without_data=lambda: versions_asked(requests()),
        recorded=versions_in(row),
        again=again,
        scale=scale,
        changed=changed,
    )


def _requests(table: Table, line: Line, scale: str, changed: Mapping[str, Any]) -> list[Request]:
    """Return the requests of the cells that a row is measured from; a table of costs has an undefended one beside the first."""
    found = line.requests(scale, changed)
    return [found[0], dataclasses.replace(found[0], defense="none")] if table.repeats else found


def _today(named: Sequence[Cell], used: Sequence[Cell]) -> Today:
    """Return today's cell: the hash of the cells that name a row, the versions of all that it is measured from."""
    return Today(hash_of(list(named)), together(used))


def _hash(row: Mapping[Any, Any]) -> str:
    return str(row["hash"]) if "hash" in row and not pd.isna(row["hash"]) else ""
