"""The behaviour versions that a row was measured with, and which of them are others today."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leakbench.behaviour import FIRST, raised
from leakbench.cell import Cell, Request
from leakbench.cell.behaviours import behaviours_of
from leakbench.cell.budget import plan
from leakbench.errors import InputError

__all__ = [
    "COLUMN",
    "changed_versions",
    "changes",
    "parsed_versions",
    "recorded_in",
    "together",
    "versions_asked",
    "versions_in",
]

COLUMN = "behaviours"
"""Column of a CSV with the versions above 1 as JSON; a row without it was measured with versions of 1 alone."""


def recorded_in(cells: Iterable[Cell]) -> dict[str, str]:
    """Return what a row of these cells keeps of their versions: nothing where all are 1."""
    versions = raised(together(cells))
    return {COLUMN: json.dumps(versions)} if versions else {}


def together(cells: Iterable[Cell]) -> dict[str, int]:
    """Return {name: version} of everything that any of the cells uses."""
    return {name: version for cell in cells for name, version in behaviours_of(cell).items()}


def versions_in(row: Mapping[Any, Any]) -> dict[str, int]:
    """Return the versions above 1 that a row of a CSV, or the settings of a card, has; raises InputError for other text."""
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
    """Return today's versions of the cells of these requests, for which no data are looked for."""
    return together(plan(request) for request in requests)
