"""What a script may be asked for on its command line: flags of one meaning in all of them."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from leakbench.cell import Request
from leakbench.errors import InputError, nearest
from leakbench.scripts import existing

__all__ = ["FLAGS", "checked", "chosen", "numbers", "parser"]

FLAGS: dict[str, dict[str, Any]] = {
    "--data-dir": {"type": Path},
    "--runs": {"type": Path, "default": Path("runs")},
    "--only": {
        "default": "",
        "help": "rows whose name holds this text; the one that has this very name, where there is one",
    },
    "--page": {"action": "store_true"},
    "--set": {"nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"},
    "--out": {"type": Path, "help": "where what is written goes; beside this script where it is not given"},
}

POINT = re.compile(r"(type-[012]|global)(@[\d+]+)?$")
"""With what the name of a leakage point begins, which a row's name ends with where its cell leaks at several."""


def parser(said: str | None, *flags: str) -> argparse.ArgumentParser:
    """Return what reads some of `FLAGS`, to which a script adds what is its own. said: what the script does."""
    asked = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in flags:
        asked.add_argument(flag, **FLAGS[flag])
    return asked


def checked(asked: argparse.Namespace) -> argparse.Namespace:
    """Return what was asked, with what `--set` changes as `changed`; raises InputError for folders that are not there.

    And for a trial that is not given a folder of its own.
    """
    if "out" in asked and asked.out is not None:
        if asked.out.exists() and not asked.out.is_dir():
            raise InputError(f"--out: {str(asked.out)!r} is no folder")
        asked.out.mkdir(parents=True, exist_ok=True)
    existing("--data-dir", asked.data_dir)
    if "set" in asked:
        asked.changed = numbers(asked.set)
        if asked.changed and asked.out is None:
            raise InputError("--set: measures a trial, which would take the place of published rows; give --out FOLDER")
    return asked


def chosen(names: Iterable[str], only: str) -> list[str]:
    """Return the cell of just the name `only`, or those whose names hold it, or the one of a row of that name.

    A row of a cell that leaks at several points is called by the cell, a comma and the point.
    Raises InputError where there is none of these.
    """
    known = list(names)
    if only in known:
        return [only]
    found = [name for name in known if only in name] or [name for name in known if _prints(name, only)]
    if not found:
        raise InputError(f"--only: no row's name holds {only!r}{nearest(only, known)}")
    return found


def _prints(name: str, row: str) -> bool:
    return row.startswith(f"{name}, ") and POINT.match(row.removeprefix(f"{name}, ")) is not None


def numbers(words: Iterable[str]) -> dict[str, Any]:
    """Return {field of a `Request`: number} of words like `victims=20`; raises InputError for others."""
    kinds = {f.name: str(f.type).partition(" ")[0] for f in dataclasses.fields(Request)}
    known = [name for name, kind in kinds.items() if kind in ("int", "float")]
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InputError(f"--set: got {word!r}, expected NAME=VALUE, as victims=20")
        if name not in known:
            raise InputError(f"--set: {name!r} is no number of a cell{nearest(name, known)}")
        found[name] = _number(name, text, kinds[name])
    return found


def _number(name: str, text: str, kind: str) -> int | float:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if type(value) is int or (kind == "float" and type(value) is float):
        return value
    raise InputError(f"--set: {name}: got {text!r}, expected {'a whole number' if kind == 'int' else 'a number'}")
