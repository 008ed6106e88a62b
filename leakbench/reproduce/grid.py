"""Grids of cells: a row of a YAML page that stands for a product of settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from leakbench.errors import InputError

__all__ = ["spelled_out"]


def spelled_out(rows: Iterable[dict[str, Any]], path: str = "table") -> Iterator[dict[str, Any]]:
    """Yield every row of a page singly; one with `each` is a row for each combination, the last setting the fastest.

    each: {setting: its values}, which are a list; or {what a row calls it: value}; or {what a row calls it: {field: value}}
    where it is no field or several.  Such a row's `name` has {setting} where what that is called goes, and its `printed` is
    {what is claimed: a number for each combination, in their order; null where nothing is printed}.
    path: the file, which errors name.  Raises InputError where there are not as many numbers as combinations, and for a name that
    has what is no setting in braces.
    """
    for row in rows:
        each = row.get("each", {})
        combinations = list(itertools.product(*(_values(setting, values) for setting, values in each.items())))
        for what, numbers in row.get("printed", {}).items():
            if len(numbers) != len(combinations):
                said = f"got {len(numbers)} numbers for {len(combinations)} combinations"
                raise InputError(f"{path}: row {row['name']!r}: printed: {what}: {said}")
        for place, taken in enumerate(combinations):
            called = {setting: name for setting, (name, _) in zip(each, taken, strict=True)}
            given = {field: value for _, fields in taken for field, value in fields.items()}
            printed = {what: numbers[place] for what, numbers in row.get("printed", {}).items()}
            claim = {what: number for what, number in printed.items() if number is not None}
            same = {key: value for key, value in row.items() if key not in ("each", "printed")}
            yield {
                **same,
                "name": _named(row["name"], called, path) if each else row["name"],
                "given": {**row.get("given", {}), **given},
                **({"claim": {**row.get("claim", {}), **claim}} if claim else {}),
            }


def _named(name: str, called: dict[str, str], path: str) -> str:
    try:
        return name.format(**called)
    except (KeyError, IndexError, ValueError, AttributeError):
        raise InputError(
            f"{path}: row {name!r}: name: its braces hold no setting of each; known: {', '.join(called)}"
        ) from None


def _values(setting: str, values: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return [(what it is called, fields)] of one setting."""
    named = values if isinstance(values, dict) else {value: value for value in values}
    return [(str(name), value if isinstance(value, dict) else {setting: value}) for name, value in named.items()]
