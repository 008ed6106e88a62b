"""The YAML files of tables: where they lie, what they are called, which fields they must and may have."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.errors import InputError, nearest
from leakbench.recipe import read_yaml

__all__ = ["body_of", "called", "check", "table_names", "tables_folder"]


def tables_folder() -> Path:
    """Return where the tables lie: inside the wheel, or in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "catalog" / "tables"
    return inside if inside.is_dir() else package.parent / "results" / "tables"


def table_names() -> list[str]:
    """Return the names of all tables, sorted: a file's name is its table's."""
    return sorted(path.stem for path in tables_folder().glob("*.yaml"))


def body_of(name: str) -> tuple[Path, dict[str, Any]]:
    """Return (path, what the file says) of a table's name, or of the path of a file of one's own.

    Raises InputError for a name or a file that there is not, and for what is no YAML.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"table: no file {name!r}")
    else:
        known = table_names()
        if name not in known:
            raise InputError(f"table: unknown name {name!r}{nearest(name, known)} (or a path that ends in .yaml)")
        path = tables_folder() / f"{name}.yaml"
    body = read_yaml(path)
    if not isinstance(body, dict):
        raise InputError(f"{path}: expected the fields of a table, got {type(body).__name__}")
    return path, body


def called(path: Path) -> str:
    """Return by which word a command asks for the table of a file: its name, or the path of one's own; quoted for a shell."""
    return shlex.quote(path.stem if path.parent == tables_folder() else str(path))


def check(path: Path, body: Mapping[str, Any], must: tuple[str, ...], may: tuple[str, ...], where: str = "") -> None:
    """Raise InputError, with the file and `where` in it, for a field that is missing or that there is not."""
    for name in must:
        if name not in body:
            raise InputError(f"{path}: {where}field {name!r} is missing")
    for name in body:
        if name not in (*must, *may):
            raise InputError(f"{path}: {where}unknown field {name!r}{nearest(str(name), (*must, *may))}")
