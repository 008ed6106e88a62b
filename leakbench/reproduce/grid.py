"""Grids of cells: a row of a YAML page that stands for a product of settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["spelled_out"]


def spelled_out(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield every row of a page singly; one with `each` is a row for each combination, the last setting the fastest.

    each: {setting: its values}, which are a list; or {what a row calls it: value}; or {what a row calls it: {field: value}}
    where it is no field or several.  Such a row's `name` has {setting} where what that is called goes.
    """
    for row in rows:
        each = row.get("each", {})
        for taken in itertools.product(*(_values(setting, values) for setting, values in each.items())):
            called = {setting: name for setting, (name, _) in zip(each, taken, strict=True)}
            given = {field: value for _, fields in taken for field, value in fields.items()}
            same = {key: value for key, value in row.items() if key != "each"}
            yield {
                **same,
                "name": row["name"].format(**called) if each else row["name"],
                "given": {**row.get("given", {}), **given},
            }


def _values(setting: str, values: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return [(what it is called, fields)] of one setting."""
    named = values if isinstance(values, dict) else {value: value for value in values}
    return [(str(name), value if isinstance(value, dict) else {setting: value}) for name, value in named.items()]
