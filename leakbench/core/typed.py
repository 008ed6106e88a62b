"""Strict checks of a file's fields against the types of a plain dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from leakbench.core.errors import InputError, nearest

__all__ = ["STRICT", "check_fields", "typed_fields", "types_of"]

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def check_fields(cls: Any, fields: Mapping[str, Any], called: str, whole: bool = False) -> None:
    """Raise InputError for an unknown field, or a value of another type, infinite or NaN.

    Args:
        cls: The dataclass.
        fields: {field: value}, as in `typed_fields`.
        called: Name of the object in messages.
        whole: Whether all fields without a default are required.
    """
    typed_fields(types_of(cls), fields, f" of {called}")
    for each in dataclasses.fields(cls) if whole else ():
        if each.name not in fields and each.default is dataclasses.MISSING:
            raise InputError(f"field {each.name!r} of {called} is missing")


def typed_fields(types: Mapping[str, TypeAdapter[Any]], fields: Mapping[str, Any], of: str = "") -> dict[str, Any]:
    """Return fields as their types have them: a whole number of a field of real numbers becomes a float.

    Args:
        types: {field: what checks its type}, as `types_of` returns them.
        fields: {field: value}. Lists are accepted for tuples and texts for paths, as in YAML.
        of: The object in messages, as in ` of a federation`.

    Raises:
        InputError: A field is unknown, or its value has another type, is infinite or NaN.
    """
    found = {}
    for name, value in fields.items():
        if name not in types:
            raise InputError(f"unknown field {name!r}{of}{nearest(str(name), list(types))}")
        try:
            found[name] = types[name].validate_python(tuple(value) if isinstance(value, list) else value)
        except ValidationError as error:
            message, got = error.errors()[0]["msg"], list(value) if isinstance(value, tuple) else value
            raise InputError(f"{name}: {message[0].lower()}{message[1:]}, got {got!r}") from None
    return found


@lru_cache
def types_of(cls: Any) -> Mapping[str, TypeAdapter[Any]]:
    """Return {field: what checks its type} of a dataclass."""
    hints = get_type_hints(cls)
    kinds = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    return {
        name: TypeAdapter(str | Path | None if kind == (Path | None) else kind, config=STRICT)
        for name, kind in kinds.items()
    }
