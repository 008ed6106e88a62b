"""The decorator of parts (pieces of attacks, defenses and data sets), and the types of their fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar, cast, dataclass_transform, overload

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import PydanticCustomError

from leakbench.core.behaviour import NAME, check_behaviour
from leakbench.core.untrusted import is_inside

__all__ = [
    "Bound",
    "Count",
    "Fraction",
    "Inside",
    "NonNegative",
    "Positive",
    "Probability",
    "Text",
    "check_limits",
    "part",
]


def _in_single_precision(value: float) -> float:
    """Refuse numbers that become zero or infinite in float32."""
    if value and not 1e-30 <= value <= 1e30:
        raise ValueError("expected a number between 1e-30 and 1e30, as single precision holds")
    return value


def _with_squares(value: float) -> float:
    """Refuse a bound so small that gradients above it have a square of zero in single precision, and would not be clipped."""
    if value < 1e-15:
        raise ValueError("expected at least 1e-15, since single precision holds no square of a shorter gradient")
    return _in_single_precision(value)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_in_single_precision)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_in_single_precision)]
# One validator, since pydantic 2.9 uses only the last of several.
Bound = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_with_squares)]
"""Bound of a clip, an L2 norm."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


def _below(name: str) -> str:
    if not is_inside(name):
        raise ValueError("expected a name below the folder, without '..'")
    return name


Inside = Annotated[str, AfterValidator(_below)]
"""A file name that stays below the folder that it is joined to."""

T = TypeVar("T")


def check_limits(floor: float, ceiling: float) -> None:
    """Raise the error of a field for a floor above its ceiling."""
    if floor > ceiling:
        text = f"floor: got {floor:g}, expected at most the ceiling ({ceiling:g})"
        raise PydanticCustomError("slot", "{text}", {"text": text})


@overload
@dataclass_transform(frozen_default=True)
def part(of: type[T]) -> type[T]: ...
@overload
@dataclass_transform(frozen_default=True)
def part(of: str) -> Callable[[type[T]], type[T]]: ...
def part(of: type[T] | str) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class a part: a frozen dataclass whose fields are checked strictly (types and ranges) when it is built.

    Args:
        of: The class, or the name of the part, as in `@part("transform.clip_whole")`. Recipes and identities use this name, not
            that of the class. A part without a name is not available to recipes, unless it is an entry point of
            `leakbench.parts`.

    Raises:
        TypeError: For an invalid behaviour version, see `leakbench.core.behaviour`.
    """
    if isinstance(of, str):
        return lambda cls: _made(cls, of)
    return _made(of, None)


def _made(cls: type[T], name: str | None) -> type[T]:
    config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
    made = cast(type[T], pydantic_dataclass(frozen=True, config=config)(cls))
    check_behaviour(made)
    if name is not None:
        setattr(made, NAME, name)
    return made
