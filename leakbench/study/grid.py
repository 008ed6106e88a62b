"""The grid of a sweep: a YAML file whose settings and rows are spelled out into requests, one for each cell.

given:  fields of `leakbench.cell.Request` for all cells; the path of a recipe begins where the file lies.
each:   {setting: its values}, whose combinations are the cells; as in `combinations`.
rows:   [{name, given, each}] instead of `each`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench import __version__
from leakbench.attack import Attack
from leakbench.cell.device import AUTO
from leakbench.core.errors import InputError, check_file, nearest
from leakbench.core.recipe import content_of, describe, own_recipes, read_yaml, resolve
from leakbench.core.request import FIELDS, Request, check_request, refuse_code, request_of
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense
from leakbench.storage.store import SCHEMA, content_hash

__all__ = ["Asked", "Grid", "combinations", "grid_of", "labelled", "read_grid"]


def combinations(each: Mapping[str, Any], where: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Return ({setting: its label}, fields of a cell) of each combination of settings; the last setting changes fastest.

    Args:
        each: {setting: values}. Values are a list; or {label: value}; or {label: {field: value}} for a label of several fields.
        where: Start of errors.

    Returns:
        Without settings, one combination without fields.

    Raises:
        InputError: A value is listed twice.
    """
    every = itertools.product(*(_values(setting, values, where) for setting, values in each.items()))
    return [
        (
            {setting: label for setting, (label, _) in zip(each, taken, strict=True)},
            {field: value for _, fields in taken for field, value in fields.items()},
        )
        for taken in every
    ]


def labelled(name: str, labels: Mapping[str, str], where: str) -> str:
    """Return the name of a row with the label of each {setting}; raises InputError for other settings in braces.

    Braces in the name of a row without settings are kept.
    """
    try:
        return name.format(**labels) if labels else name
    except (KeyError, IndexError, ValueError, AttributeError):
        raise InputError(
            f"{where}row {name!r}: name: its braces hold no setting of each; known: {', '.join(labels)}"
        ) from None


def _values(setting: str, values: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Return [(what it is called, fields)] of one setting; raises InputError for a value that is listed twice."""
    for place, value in enumerate(values):
        if value in list(values)[:place]:
            raise InputError(f"{where}each: {setting}: got {value!r} twice")
    named = values if isinstance(values, dict) else {value: value for value in values}
    return [(str(name), value if isinstance(value, dict) else {setting: value}) for name, value in named.items()]


RECIPES: dict[str, tuple[str, type[Any]]] = {
    "defense": ("defenses", Defense),
    "attack": ("attacks", Attack),
    "dataset": ("datasets", DatasetRecipe),
}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A cell that is asked for.

    Args:
        name: Of its row.
        key: Hash of the request, of the content of its recipes and of leakbench's version. It identifies the cell before its
            data are read.
    """

    name: str
    request: Request
    key: str


@dataclass(frozen=True)
class Grid:
    """What a file of a grid says.

    Args:
        cells: Each once, in the order of the rows.
        same: How many were left out as another's twin.
    """

    path: Path
    cells: tuple[Asked, ...]
    same: int = 0


def read_grid(path: Path, device: str = "cpu") -> Grid:
    """Return the grid of a YAML file; raises InputError, with the file in it, for a missing or wrong one.

    Args:
        device: Of cells that name none, or `auto`: what decides is where they will be measured, not the machine that reads the
            grid.
    """
    check_file("grid", path)
    return grid_of(read_yaml(path), path, device)


def grid_of(body: Any, path: Path, device: str = "cpu") -> Grid:
    """Return the grid of the fields of such a file; raises InputError as `read_grid` does.

    Args:
        path: The file that errors name; paths of recipes are relative to its folder.
    """
    known: dict[tuple[str, str], Any] = {}
    try:
        lines = [(name, _placed(given, device)) for name, given in _lines(body)]
        cells = {name: _asked(name, given, path.parent.resolve(), known) for name, given in lines}
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    once = {cell.key: cell for cell in reversed(cells.values())}
    kept = tuple(cell for cell in cells.values() if once[cell.key] is cell)
    return Grid(path, kept, len(cells) - len(kept))


def _lines(body: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, fields) of each cell; raises InputError for two of one name."""
    if not isinstance(body, dict):
        raise InputError(f"expected the fields of a grid, got {type(body).__name__}")
    _check(body, ("given", "each", "rows"), "")
    if "each" in body and "rows" in body:
        raise InputError("each: got rows too; expected one of them, rows may have their own `each`")
    rows = body.get("rows", [{"each": body.get("each", {})}])
    if not isinstance(rows, list) or not rows:
        raise InputError(f"rows: got {rows!r}, expected a list of rows")
    found = set[str]()
    for number, row in enumerate(rows, 1):
        where = f"row {number}: "
        if not isinstance(row, dict):
            raise InputError(f"{where}got {row!r}, expected some of name, given and each")
        _check(row, ("name", "given", "each"), where)
        if not isinstance(row.get("name", ""), str | int | float):
            raise InputError(f"{where}name: got {row['name']!r}, expected words")
        for name, given in _cells(row, {**_mapping(body, ""), **_mapping(row, where)}, where):
            if name in found:
                raise InputError(f"{where}two cells are called {name!r}")
            found.add(name)
            yield name, given


def _cells(row: dict[str, Any], given: dict[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, fields) of the cells of a row, whose name is of its settings where it has none."""
    each = row.get("each", {})
    if not isinstance(each, dict):
        raise InputError(f"{where}each: got {each!r}, expected {{setting: its values}}")
    for setting, values in each.items():
        if not isinstance(values, list | dict) or not values:
            raise InputError(f"{where}each: {setting}: got {values!r}, expected a list of values")
        if not (isinstance(setting, str) and setting.isidentifier()):
            raise InputError(f"{where}each: got the setting {setting!r}, expected a field of a cell, or a word")
        if isinstance(values, list) and not all(isinstance(value, str | int | float) for value in values):
            raise InputError(f"{where}each: {setting}: expected words and numbers in its list, lists as 'a,b'")
    own = ", ".join([*(f"{setting}={{{setting}}}" for setting in each)] or [f"{k}={v}" for k, v in given.items()])
    name = str(row.get("name", own))
    for labels, fields in combinations(each, where):
        yield labelled(name, labels, where), {**given, **fields}


def _mapping(part: Row, where: str) -> dict[str, Any]:
    given = part.get("given", {})
    if not isinstance(given, dict):
        raise InputError(f"{where}given: got {given!r}, expected fields of a cell: {', '.join(FIELDS[:4])}, ...")
    return given


def _check(part: Row, may: tuple[str, ...], where: str) -> None:
    for name in part:
        if name not in may:
            raise InputError(f"{where}unknown field {name!r}{nearest(str(name), may)}")


def _placed(given: dict[str, Any], device: str) -> dict[str, Any]:
    return {**given, "device": device} if given.get("device", AUTO) == AUTO else given


def _asked(name: str, given: dict[str, Any], folder: Path, known: dict[tuple[str, str], Any]) -> Asked:
    """Return a cell of these fields; `known` keeps what recipes say, since few are many cells' own."""
    own = own_recipes(given, lambda path: str(folder / path))
    try:
        refuse_code(given)
        request = request_of(given | own)
        check_request(request)
        recipes = [_content(kind, cls, getattr(request, slot), known) for slot, (kind, cls) in RECIPES.items()]
    except InputError as error:
        raise InputError(f"cell {name!r}: {error}") from None
    fields = {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}
    fields["lpips_weights"] = request.lpips_weights and str(request.lpips_weights)
    content = {"schema": SCHEMA, "version": __version__, "request": describe(fields), "recipes": recipes}
    return Asked(name, request, content_hash(content))


def _content(kind: str, cls: type[Any], name: str, known: dict[tuple[str, str], Any]) -> str:
    if (kind, name) not in known:
        content = describe(resolve(kind, cls, name)[1])
        content.pop("sizes", None)  # Recorded sizes follow from the data and change no result.
        known[kind, name] = content_of(content)
    return str(known[kind, name])
