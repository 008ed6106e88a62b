"""A field of a recipe that is itself a part of one kind is written as a mapping of that part's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from leakbench.errors import InputError
from leakbench.recipe import construct

__all__ = ["nested"]


def nested(cls: type[Any]) -> BeforeValidator:
    """Return the annotation that builds `cls` from a mapping; a mistyped field in it is refused by its name too."""

    def build(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        try:
            return construct(cls, value)
        except InputError as error:
            raise PydanticCustomError("slot", "{text}", {"text": str(error)}) from None

    return BeforeValidator(build)
