"""Which cells of a table are meant, and which numbers of them are changed for a trial."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import yaml

from leakbench.core.errors import InputError, nearest
from leakbench.core.request import FIELDS, number_of
from leakbench.core.untrusted import parse_yaml

__all__ = ["chosen", "numbers"]

POINT = re.compile(r"(type-[012]|global)(@[\d+]+)?$")
"""With what the name of a leakage point begins, which a row's name ends with where its cell leaks at several."""


def chosen(names: Iterable[str], only: str) -> list[str]:
    """Return the cell of just the name `only`, or those whose names contain it, or the one of a row of that name.

    A row of a cell that leaks at several points is called by the cell, a comma and the point.
    Raises InputError without such a name.
    """
    known = list(names)
    if only in known:
        return [only]
    found = [name for name in known if only in name] or [name for name in known if _prints(name, only)]
    if not found:
        raise InputError(f"only: no row's name contains {only!r}{nearest(only, known)}")
    return found


def _prints(name: str, row: str) -> bool:
    return row.startswith(f"{name}, ") and POINT.match(row.removeprefix(f"{name}, ")) is not None


def numbers(words: Iterable[str]) -> dict[str, Any]:
    """Return {field of a `Request`: number} of words like `victims=20`; raises InputError for others."""
    kinds = {name: kind for name in FIELDS if (kind := number_of(name)) is not None}
    known = list(kinds)
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InputError(f"set: got {word!r}, expected NAME=VALUE, as victims=20")
        if name not in known:
            raise InputError(f"set: {name!r} is not a number of a cell{nearest(name, known)}")
        if name in found:
            raise InputError(f"set: {name} appears twice; expected each name once")
        found[name] = _number(name, text, kinds[name])
    return found


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        value = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        value = None
    if type(value) is int or (kind is float and type(value) is float and math.isfinite(value)):
        return value
    raise InputError(f"set: {name}: got {text!r}, expected {'a whole number' if kind is int else 'a finite number'}")
