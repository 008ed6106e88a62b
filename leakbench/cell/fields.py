"""A request from the fields of a file, each of its type: what the command line reads from options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from leakbench.cell.request import Request
from leakbench.errors import InputError, nearest
from leakbench.words import seconds, success, words

__all__ = ["FIELDS", "request_of"]

FIELDS = tuple(field.name for field in dataclasses.fields(Request))

LISTS = ("taps", "leak_rounds")


def request_of(given: Mapping[str, Any]) -> Request:
    """Return the request of some fields, the others as they are by default.

    Lists are YAML's, or words with commas between them; `success` is a number, or `rmse<=0.1`; `budget` a number of
    seconds, or `2m`; nothing is converted else.
    Raises InputError, which names the field, for one that there is not or of another type.
    """
    fields = {}
    for name, value in given.items():
        if name not in FIELDS:
            raise InputError(f"unknown field {name!r}{nearest(str(name), FIELDS)}")
        try:
            fields[name] = _types()[name].validate_python(_read(name, value), strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise InputError(f"{name}: {message[0].lower()}{message[1:]}, got {value!r}") from None
    return Request(**fields)


@cache
def _types() -> dict[str, TypeAdapter[Any]]:
    """Return what checks each field. A word is checked later, by `check_words`, which names the nearest accepted one."""
    kinds = get_type_hints(Request)
    words = {name for name, kind in kinds.items() if any(get_origin(each) is Literal for each in get_args(kind))}
    return {name: TypeAdapter(str | None if name in words else kind) for name, kind in kinds.items()}


def _read(name: str, value: Any) -> Any:
    if name in LISTS:
        # YAML reads 0 in `leak_rounds: [0, last]` as a number.
        return words(name, value) if isinstance(value, str) else _texts(value)
    if name == "success" and isinstance(value, str):
        return success(value)
    if name == "budget" and isinstance(value, str):
        return seconds(name, value)
    return Path(value) if name == "lpips_weights" and isinstance(value, str) else value


def _texts(value: Any) -> Any:
    several = value if isinstance(value, list | tuple) else [value]
    return tuple(str(each) if type(each) is int else each for each in several)
