"""The shapes of manifest fields with several values, for all fields that are read.

A shape is a tuple of the accepted types of a value; a list with the shape of each item; a dict with the shape of each required
field, which accepts more fields; or one of the classes below.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias

__all__ = ["KNOWLEDGE", "OF_EPSILON", "OF_MANIFEST", "OF_SUMMARY", "OF_TAP", "misfit", "numbers_in"]

Shape: TypeAlias = Any

LARGEST = 1e300
"""Largest number of a run: an integer beyond the range of floats, such as 10^400, would raise errors in computations."""

TEXT, WHOLE, NUMBER, SAID = (str,), (int,), (int, float, NoneType), (str, NoneType)
PLAIN = (str, int, float, bool, NoneType)


@dataclass(frozen=True)
class Each:
    """The shape of every value of a mapping with any keys."""

    of: Shape


@dataclass(frozen=True)
class Absent:
    """A shape, or nothing."""

    of: Shape


@dataclass(frozen=True)
class Known:
    """A mapping with the shapes of its fields, all of them optional."""

    of: Mapping[str, Shape]


@dataclass(frozen=True)
class Curves:
    """A mapping with the shapes of its fields, whose lists have equal lengths."""

    of: Mapping[str, Shape]


@dataclass(frozen=True)
class Either:
    """One shape or the other."""

    one: Shape
    other: Shape


OF_MANIFEST: Mapping[str, Shape] = {
    "phases": Each((int, float)),
    "computed": [Each(PLAIN)],
    "observations": Each(TEXT),
    "versions": Each(TEXT),
}

SEEN = {"value": (int, float, bool, NoneType), "percentile": NUMBER, "honest_median": NUMBER}

OF_SUMMARY: Mapping[str, Shape] = {
    "conspicuous": Absent(dict.fromkeys(("architecture", "rows_alike", "d_snr", "lit_alone", "loss"), SEEN)),
    "claims": [{"what": TEXT, "claimed": NUMBER, "measured": NUMBER, "source": TEXT, "comment": SAID}],
    "over_rounds": Each(Curves({"rounds": [WHOLE], "asr": [NUMBER], "identified": [NUMBER], "worst": WHOLE})),
    "violations": [{"tap": TEXT, "measure": TEXT, "value": NUMBER, "low": NUMBER, "bound": NUMBER}],
    "knowledge": Each(PLAIN),
    **dict.fromkeys(
        ("protocol", "model", "leak_model", "init", "reads", "client_optimizer", "threat", "threat_letter"), SAID
    ),
    "chance": NUMBER,
    "undertrained": SAID,
}

OBSERVED: Mapping[str, Shape] = {
    **dict.fromkeys(("valid", "q", "steps", "sigma_effective"), NUMBER),
    **dict.fromkeys(("without_draw", "realised"), NUMBER),
    "reason": SAID,
    "participations": Either((str, *NUMBER), Each(NUMBER)),
}
"""Shape of the epsilon against one observer."""

OF_EPSILON: Mapping[str, Shape] = {
    **OBSERVED,
    "by_tap": Absent(Each(Known(OBSERVED))),
    "by_round": Absent([NUMBER]),
    "caveats": Absent([TEXT]),
    "delta": NUMBER,
    **dict.fromkeys(("claimed_formula", "accountant", "unit", "observer"), SAID),
}

KNOWLEDGE = ("batch_size", "learning_rate", "defense", "labels", "public")
"""Fields of an attacker's knowledge, all required if it has any."""

MECHANISM = {"noise_multiplier": NUMBER, "sampling_rate": NUMBER, "steps": WHOLE, "sampling": TEXT}

MIXTURE = {
    "mechanisms": [MECHANISM],
    **dict.fromkeys(("clients", "holders", "per_round", "steps"), WHOLE),
    "draw": TEXT,
}

OF_TAP: Mapping[str, Shape] = {
    "seen": Absent({"sigma": (int, float), "releases": (int, float), "before": [Either(MECHANISM, MIXTURE)]}),
    "doubts": Absent(Each(PLAIN)),
    "unanswered": Absent(Each({"examples": WHOLE, "victims": WHOLE})),
    "attributes": Absent(Each(dict.fromkeys(("right", "low", "high", "null", "bound"), NUMBER))),
    "anytime": dict.fromkeys(("iterations", "evaluations"), Curves({"at": [NUMBER], "asr": [NUMBER]})),
}


def misfit(value: Any, shape: Shape, place: str) -> str:
    """Return the first difference between a value and a shape, with its place; an empty text without a difference."""
    if isinstance(shape, Absent):
        return "" if value is None else misfit(value, shape.of, place)
    if isinstance(shape, Either):
        return misfit(value, shape.one, place) and misfit(value, shape.other, place)
    if isinstance(shape, tuple):
        if type(value) in shape:
            return ""
        expected = " or ".join("nothing" if kind is NoneType else kind.__name__ for kind in shape)
        return f"{place}: got {str(value)[:40]!r}, expected {expected}"
    kind = list if isinstance(shape, list) else dict
    if not isinstance(value, kind):
        return f"{place}: got {str(value)[:40]!r}, expected {kind.__name__}"
    return "" if _plain(value, shape) else next(filter(None, _within(value, shape, place)), "")


def _plain(value: Any, shape: Shape) -> bool:
    """Return whether a list or mapping has only single values of accepted types, a fast check that most values pass."""
    if isinstance(shape, list):
        return isinstance(shape[0], tuple) and all(type(item) in shape[0] for item in value)
    return isinstance(shape, Each) and isinstance(shape.of, tuple) and all(type(v) in shape.of for v in value.values())


def _within(value: Any, shape: Shape, place: str) -> Iterator[str]:
    if isinstance(shape, list):
        yield from (misfit(item, shape[0], f"{place}.{number}") for number, item in enumerate(value))
    elif isinstance(shape, Each):
        yield from (misfit(item, shape.of, f"{place}.{name}") for name, item in value.items())
    elif isinstance(shape, Curves):
        yield misfit(value, shape.of, place)
        if len({len(item) for item in value.values() if isinstance(item, list)}) > 1:
            yield f"{place}: got lists of several lengths, expected one"
    else:
        for name, inner in (shape.of if isinstance(shape, Known) else shape).items():
            if name in value:
                yield misfit(value[name], inner, f"{place}.{name}")
            elif not isinstance(shape, Known):
                yield f"{place}.{name}: is missing"


def numbers_in(text: str) -> tuple[Any, str]:
    """Return (the data of a JSON text, a message about a number that is NaN, infinite or too large, else an empty text)."""
    odd = False

    def number(found: float) -> float:
        nonlocal odd
        odd = odd or not -LARGEST <= found <= LARGEST
        return found

    value = json.loads(
        text,
        parse_float=lambda digits: number(float(digits)),
        parse_int=lambda digits: number(int(digits)),
        parse_constant=lambda name: number(float(name)),
    )
    # The place is searched only if there is such a number.
    return value, _no_number(value, "") if odd else ""


def _no_number(value: Any, place: str) -> str:
    if isinstance(value, float | int) and not -LARGEST <= value <= LARGEST:
        return f"{place}: got {str(value)[:40]}, expected a number that a run can give"
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next(filter(None, (_no_number(item, f"{place}.{name}" if place else f"{name}") for name, item in inner)), "")
