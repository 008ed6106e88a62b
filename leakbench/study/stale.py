"""What a published row was measured with, and whether today's cell is another one; nothing is measured.

A row is stale where the hash that it was published with is not the hash of the cell that its table, frontier or card asks for
today. The reason is a behaviour version that has changed since, where one has; else the cell that is asked for is another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from leakbench.cell import Cell, Request
from leakbench.cell.behaviours import behaviours_of
from leakbench.cell.resolve import plan_cell
from leakbench.core.behaviour import FIRST, raised
from leakbench.core.errors import AbsentError, InputError
from leakbench.core.progress import Progress
from leakbench.core.recipe import resolve
from leakbench.core.scripts import untagged
from leakbench.data.dataset import Dataset
from leakbench.data.find import Load
from leakbench.data.kept import KeptData
from leakbench.data.recipe import DatasetRecipe
from leakbench.storage.store import content_hash

__all__ = [
    "COLUMN",
    "Checked",
    "Published",
    "Today",
    "changed_versions",
    "changes",
    "checked",
    "hash_of",
    "parsed_versions",
    "recorded_in",
    "stale_lines",
    "stale_names",
    "stale_reason",
    "today_of",
    "together",
    "versions_asked",
    "versions_in",
]

COLUMN = "behaviours"
"""Column of a CSV with the versions above 1 as JSON; a row without it was measured with versions of 1 alone."""

BEHAVIOUR = "measured with another behaviour of"
"""Start of a reason; names and versions of the changed pieces follow."""

OTHER = "settings, a recipe or the data have changed since the measurement"


def hash_of(cells: Sequence[Cell]) -> str:
    """Return the hash of a row that is measured from these cells, such as one cell with several seeds."""
    return (cells[0].hash if len(cells) == 1 else content_hash([cell.hash for cell in cells]))[:12]


def recorded_in(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the column of a row with the versions of its cells; empty where all are 1."""
    versions = raised(together(cells))
    return {COLUMN: json.dumps(versions)} if versions else {}


def together(cells: Iterable[Cell]) -> dict[str, int]:
    """Return {name: version} of everything that any of the cells uses."""
    return {name: version for cell in cells for name, version in behaviours_of(cell).items()}


def versions_in(row: Mapping[Any, Any]) -> dict[str, int]:
    """Return the versions above 1 of a row of a CSV or of the settings of a card; raises InputError for other text."""
    text = row.get(COLUMN)
    if not isinstance(text, str):
        return {}
    if (found := parsed_versions(text)) is None:
        raise InputError(f"{COLUMN}: got {text[:40]!r}, expected JSON of {{name: version}}, whole numbers >= {FIRST}")
    return found


def parsed_versions(text: str) -> dict[str, int] | None:
    """Return the {name: version} that a text is the JSON of; None for any other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(found, dict) and all(type(version) is int and version >= FIRST for version in found.values())
    return found if whole else None


def changed_versions(recorded: Mapping[str, int], today: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return {name: (version then, version today)} of the pieces whose version has changed since a row was measured.

    Args:
        recorded: The versions above 1 of the row.
        today: All versions of the cell.
    """
    both = {name: (recorded.get(name, FIRST), version) for name, version in sorted(today.items())}
    return {name: (then, now) for name, (then, now) in both.items() if then != now}


def changes(recorded: Mapping[str, int], today: Mapping[str, int]) -> list[str]:
    """Return the pieces of `changed_versions` in words, as `ClipWhole (then 1, today 2)`."""
    return [f"{name} (then {then}, today {now})" for name, (then, now) in changed_versions(recorded, today).items()]


def versions_asked(requests: Sequence[Request]) -> dict[str, int]:
    """Return today's versions of the cells of these requests; no data are read.

    Raises:
        AbsentError: The recipe of a data set has no sizes, so that its cells are not known without data.
    """
    return together(plan_cell(request, None, load=_unread) for request in requests)


def _unread(
    name_or_path: str, _data_dir: Path | None, progress: Progress | None = None, size: int | None = None
) -> tuple[str, DatasetRecipe, Dataset]:
    raise AbsentError(f"dataset {name_or_path!r}: its recipe has no sizes")


@dataclass(frozen=True)
class Today:
    """Today's cell of a published row: its hash, and {name: behaviour version} of everything that it uses."""

    hash: str
    versions: Mapping[str, int] = field(default_factory=dict)


def today_of(cells: Sequence[Cell]) -> Today:
    """Return the identity of a row that is measured from these cells."""
    return Today(hash_of(cells), together(cells))


@dataclass(frozen=True)
class Published:
    """A published row before it is checked.

    Args:
        page: Name of its table, frontier or card.
        row: Name of its cell.
        hash: Hash that it was published with.
        dataset: Its data set; rows of one data set are checked together.
        today: Reads data by its argument; raises AbsentError where they are not on this machine, InputError where today's catalog
            has no such cell.
        requests: Returns the requests of today's cell, for the versions that are known without data.
        recorded: Its behaviour versions above 1.
        again: The command that measures it again.
        scale: The scale that it was measured at; empty for a row without a scale.
        changed: Numbers of a trial.
    """

    page: str
    row: str
    hash: str
    dataset: str
    today: Callable[[Load], Today]
    requests: Callable[[], Sequence[Request]] = list
    recorded: Mapping[str, int] = field(default_factory=dict)
    again: str = ""
    scale: str = ""
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """Name of the data set, or the path of its recipe, relative to the working folder where the recipe is in it."""
        path = Path(self.dataset)
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)

    def changed_since(self, today: Mapping[str, int] | None = None) -> str:
        """Return which behaviours have changed since the measurement, in words; empty where none is known to have.

        Args:
            today: Versions of today's cell; None for those that are known without data.
        """
        try:
            found = changes(self.recorded, versions_asked(self.requests()) if today is None else today)
        except AbsentError:
            return ""
        return f"{BEHAVIOUR} {', '.join(found)}" if found else ""


@dataclass(frozen=True)
class Checked:
    """A published row compared with today's cell: current, stale or unknown, and why.

    Args:
        today: Hash of today's cell; empty where it is unknown.
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
        if reason := row.changed_since():
            return Checked(row, "stale", reason=reason, absent=True)
        return Checked(row, "unknown", reason=f"data not on this machine: {row.data}", absent=True)
    except InputError as error:
        return Checked(row, "stale", reason=f"today's catalog has no such cell: {error}")
    if today.hash == row.hash:
        return Checked(row, "current", today.hash)
    return Checked(row, "stale", today.hash, row.changed_since(today.versions) or OTHER)


def stale_lines(rows: Sequence[Published], found: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Return the lines of a page on its stale rows, a reason each; empty where none is known to be stale.

    A page is the same on every machine: the whole identity is checked where the data come with leakbench, else the behaviour
    versions that are known without data.

    Args:
        rows: Rows of one page, each with a hash.
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
        return row.changed_since()
    except InputError:  # A recipe that is not on this machine, as where a page is written elsewhere.
        return ""
