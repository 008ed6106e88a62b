"""Fields of a plain dataclass as a file writes them: each checked by the type that the dataclass says, strictly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from leakbench.errors import InputError, nearest

__all__ = ["check_fields"]

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def check_fields(cls: Any, fields: Mapping[str, Any], called: str, whole: bool = False) -> None:
    """Raise InputError for a field that the dataclass has not, or whose value is of another type, infinite or no number.

    Lists stand for tuples and text for paths, as YAML has them.

    Args:
        called: What the fields are of.
        whole: Whether all fields without a default must be there.
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
