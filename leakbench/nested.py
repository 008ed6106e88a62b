"""Fields of a recipe that hold a part of one kind, as a mapping of the part's fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from leakbench.errors import InputError
from leakbench.recipe import construct

__all__ = ["nested"]


def nested(cls: type[Any]) -> BeforeValidator:
    """Return the annotation that builds `cls` from a mapping; an error in a nested field has the field's name."""

    def build(value: Any) -> Any:
        if not isinstance(value, Mapping):
            if value is None or isinstance(value, cls):
                return value
            known = ", ".join(field.name for field in dataclasses.fields(cls))
            text = f"got {value!r}, expected a mapping of its fields ({known})"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        try:
            return construct(cls, value)
        except InputError as error:
            raise PydanticCustomError("slot", "{text}", {"text": str(error)}) from None

    return BeforeValidator(build)
