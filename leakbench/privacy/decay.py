"""Schedules of the noise multiplier: how sigma falls while a federation trains (Wei et al., TPDS 2023, section 5.3).

Every formula is relative to the length of the run, which the clock knows: t of T rounds, or round * L + iteration of T * L
local iterations. The paper prints "15 to 4.85 over T", and its released code uses T = 100; at T = 100 and L = 100 the two
agree. t counts from 0, as in the paper's Algorithm 1, so the first moment has `start`. `end` is the value at t = T, just after
the last round (t = T - 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from leakbench.core.part import Count, NonNegative, Positive, Probability, part
from leakbench.core.recipe import Slot
from leakbench.core.types import Clock

__all__ = [
    "DECAY",
    "Cyclic",
    "Decay",
    "Exponential",
    "FromEpsilon",
    "Linear",
    "Multiplier",
    "QuarterCosine",
    "Scaled",
    "Staircase",
    "StaircaseReleased",
    "least_constant",
]

WITHIN = (__name__,)


def least_constant(delta: float) -> float:
    """Return c = sqrt(2 ln(1.25 / delta)), the least constant in the theorem of the classical Gaussian mechanism.

    Noise of c / epsilon times the sensitivity is (epsilon, delta)-private for epsilon < 1. Dwork and Roth, The Algorithmic
    Foundations of Differential Privacy, 2014, Theorem A.1.

    Args:
        delta: Between 0 and 1, exclusive.
    """
    return math.sqrt(2 * math.log(1.25 / delta))


Pace: TypeAlias = Annotated[
    Literal["round", "iteration"],
    Field(description="One step of the schedule: a `round` (the paper's t) or a local `iteration` (the code's `it`)."),
]
Start: TypeAlias = Annotated[Positive, Field(description="Value at t = 0.")]
End: TypeAlias = Annotated[Positive, Field(description="Value at t = T, after the last round.")]


@runtime_checkable
class Decay(Protocol):
    """The slot `decay`: a number that changes while a federation trains."""

    def __call__(self, clock: Clock) -> float:
        """Return the number at this moment, >= 0."""


def _elapsed(clock: Clock, per: Pace) -> tuple[int, int]:
    """Return (steps taken, steps of the whole training), 0 <= taken <= whole."""
    each = 1 if per == "round" else clock.local_iterations
    taken = clock.round * each + (clock.local_iteration if per == "iteration" else 0)
    # The finished model can compute gradients in one more round (t = T), at the end of the schedule.
    return min(taken, clock.rounds * each), max(1, clock.rounds * each)


@part("decay.linear")
class Linear:
    """start + (end - start) * t / T: the paper's sigma_0 (1 - gamma_1 t) with gamma_1 = (1 - end / start) / T."""

    start: Start = 15.0
    end: End = 4.85
    per: Pace = "round"

    def __call__(self, clock: Clock) -> float:
        """Return the number on the line."""
        taken, whole = _elapsed(clock, self.per)
        return self.start + (self.end - self.start) * taken / whole


@part("decay.staircase")
class Staircase:
    """start + (end - start) / stairs * floor(t * stairs / T): the paper's sigma_0 (1 - gamma_2 floor(t / Gamma))."""

    start: Start = 15.0
    end: End = 4.85
    stairs: Annotated[
        Count,
        Field(
            description=(
                "Number of stairs T / Gamma; the released code has 10, from its constant 1.015 = (15 - 4.85) / 10. The last stair "
                "is one step above `end`."
            )
        ),
    ] = 10
    per: Pace = "round"

    def __call__(self, clock: Clock) -> float:
        """Return the height of the stair."""
        taken, whole = _elapsed(clock, self.per)
        return self.start + (self.end - self.start) * (taken * self.stairs // whole) / self.stairs


@part("decay.staircase_released")
class StaircaseReleased:
    """start + floor(-(start - end) * t / T): the released `-1.015*round//10+15`, in which `//` rounds the whole product.

    At the paper's 15 and 4.85 the steps are 1, from 15 to 4, instead of ten steps of 1.015. Numbers whose steps lead to zero or
    below are refused.
    """

    start: Start = 15.0
    end: End = 4.85
    per: Pace = "round"

    def __post_init__(self) -> None:
        if not 0 <= self.start - self.end <= math.ceil(self.start - self.end) < self.start:
            text = (
                f"end: got {self.end:g}, expected so much that whole steps down from {self.start:g} to it stay above 0"
            )
            raise PydanticCustomError("slot", "{text}", {"text": text})

    def __call__(self, clock: Clock) -> float:
        """Return the height of the stair."""
        taken, whole = _elapsed(clock, self.per)
        return self.start + math.floor((self.end - self.start) * taken / whole)


@part("decay.exponential")
class Exponential:
    """start * (end / start)^(t / T): the paper's sigma_0 exp(-gamma_3 t) with gamma_3 = ln(start / end) / T."""

    start: Start = 15.0
    end: End = 4.85
    per: Pace = "round"

    def __call__(self, clock: Clock) -> float:
        """Return the number on the curve."""
        taken, whole = _elapsed(clock, self.per)
        return float(self.start * (self.end / self.start) ** (taken / whole))


@part("decay.cyclic")
class Cyclic:
    """end + (start - end) / 2 * (cos(pi * (t mod P) / P) + 1) with P = ceil(T / cycles), where t counts rounds.

    `end` = 0 gives the paper's formula, whose t - 1 is t here: it falls nearly to 0 within each cycle and does not end at 4.85, the
    value in the paper. Another `end` gives the cosine annealing of Loshchilov and Hutter (ICLR 2017, eq. 5).
    """

    start: Start = 15.0
    end: Annotated[NonNegative, Field(description="Value that each cycle approaches.")] = 0.0
    cycles: Annotated[Count, Field(description="Number of cycles in a training.")] = 1

    def __call__(self, clock: Clock) -> float:
        """Return the number on the half-cosine of this cycle."""
        period = -(-max(1, clock.rounds) // self.cycles)
        phase = math.pi * (clock.round % period) / period
        return self.end + (self.start - self.end) / 2 * (math.cos(phase) + 1)


@part("decay.quarter_cosine")
class QuarterCosine:
    """start * cos(angle * t / T): the schedule that the released code calls cyclic, from 15 to 15 cos(1.24) = 4.87."""

    start: Start = 15.0
    angle: Annotated[float, Field(ge=0, lt=math.pi / 2, description="Angle at t = T, in radians, in [0, pi / 2).")] = (
        1.24
    )
    per: Pace = "round"

    def __call__(self, clock: Clock) -> float:
        """Return the number on the cosine."""
        taken, whole = _elapsed(clock, self.per)
        return self.start * math.cos(self.angle * taken / whole)


@part("decay.from_epsilon")
class FromEpsilon:
    """sqrt(2 ln(1.25 / delta)) / epsilon: the multiplier for one step's epsilon by the theorem of the Gaussian mechanism.

    Dwork and Roth 2014, Theorem A.1, valid for epsilon < 1. The released accounting script raises epsilon in this way. The round
    counts of the paper's Tables 8 and 11 follow from this script, not from the paper's formulas for sigma.
    """

    epsilon: Annotated[Decay, Slot("decay", WITHIN, without=("from_epsilon", "scaled"))]
    delta: Annotated[Probability, Field(description="Delta of one step, in (0, 1).")] = 1e-5

    def __call__(self, clock: Clock) -> float:
        """Return the multiplier for this moment's epsilon."""
        return least_constant(self.delta) / self.epsilon(clock)


@part("decay.scaled")
class Scaled:
    """Another schedule times a factor."""

    decay: Annotated[Decay, Slot("decay", WITHIN, without=("scaled",))]
    factor: Annotated[Positive, Field(description="Factor of the other schedule.")]

    def __call__(self, clock: Clock) -> float:
        """Return the product."""
        return self.factor * self.decay(clock)


DECAY = Slot("decay", WITHIN)
_plain = TypeAdapter[float](NonNegative, config=ConfigDict(strict=True))


def _number_or_part(value: Any) -> Any:
    if isinstance(value, str | Mapping) or is_dataclass(value):
        return DECAY(value)
    try:
        return _plain.validate_python(value)
    except ValidationError as error:
        [first] = error.errors()
        raise PydanticCustomError("multiplier", "{text}", {"text": first["msg"]}) from None


Multiplier: TypeAlias = Annotated[
    float | Decay,
    BeforeValidator(_number_or_part),
    WithJsonSchema({"anyOf": [_plain.json_schema(), *DECAY.forms()]}),
]
"""A plain number >= 0, or a part of the slot `decay`."""
