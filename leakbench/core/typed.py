"""Strict checks of a file's fields against the types of a plain dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from leakbench.core.errors import InputError, nearest

__all__ = ["check_fields"]

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def check_fields(cls: Any, fields: Mapping[str, Any], called: str, whole: bool = False) -> None:
    """Raise InputError for an unknown field, or a value of another type, infinite or NaN.

    Lists are accepted for tuples and texts for paths, as in YAML.

    Args:
        cls: The dataclass.
        fields: {field: value}.
        called: Name of the object in messages.
        whole: Whether all fields without a default are required.
    """
    types = _types(cls)
    for name, value in fields.items():
        if name not in types:
            raise InputError(f"unknown field {name!r} of {called}{nearest(str(name), list(types))}")
        try:
            types[name].validate_python(_plain(value))
        except ValidationError as error:
            first = error.errors()[0]
            raise InputError(f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}, got {value!r}") from None
    for each in dataclasses.fields(cls) if whole else ():
        if each.name not in fields and each.default is dataclasses.MISSING:
            raise InputError(f"field {each.name!r} of {called} is missing")


@lru_cache
def _types(cls: Any) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(cls)
    kinds = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    return {
        name: TypeAdapter(str | None if kind == (Path | None) else kind, config=STRICT) for name, kind in kinds.items()
    }


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
