"""What a part of leakbench is, one link of an attack, of a defense or of a data set, and the types of the fields it may have."""

from __future__ import annotations

from typing import Annotated, TypeVar, cast, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

__all__ = ["Count", "Fraction", "NonNegative", "Positive", "Probability", "Text", "part"]


def _in_single_precision(value: float) -> float:
    """Refuse what would silently become zero or infinite, since computations run in float32."""
    if value and not 1e-30 <= value <= 1e30:
        raise ValueError("expected a number between 1e-30 and 1e30, as single precision holds")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_in_single_precision)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_in_single_precision)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def part(cls: type[T]) -> type[T]:
    """Make a class a part: a frozen dataclass whose fields are checked strictly (types and ranges) when it is built."""
    config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
    return cast(type[T], pydantic_dataclass(frozen=True, config=config)(cls))
