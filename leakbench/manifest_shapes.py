"""What lies within the fields of a manifest that are no single value: shapes, as far as anything reads them.

A shape is a tuple of types that a value may be of; a list with the shape of each item; a dict with the shape of each field that
must be there, others may; or `Each`, of a mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias

__all__ = ["KNOWLEDGE", "OF_EPSILON", "OF_MANIFEST", "OF_SUMMARY", "OF_TAP", "misfit"]

Shape: TypeAlias = Any

LARGEST = 1e300
"""No number of a run is as large; of one that no float holds, as 10^400, mathematics would raise an error."""

TEXT, WHOLE, NUMBER = (str,), (int,), (int, float, NoneType)
PLAIN = (str, int, float, bool, NoneType)


@dataclass(frozen=True)
class Each:
    """The shape of every value of a mapping, whatever its keys."""

    of: Shape


@dataclass(frozen=True)
class Absent:
    """A shape, or nothing."""

    of: Shape


OF_MANIFEST: Mapping[str, Shape] = {
    "phases": Each((int, float)),
    "computed": [Each(PLAIN)],
    "observations": Each(TEXT),
    "versions": Each(TEXT),
}

OF_SUMMARY: Mapping[str, Shape] = {
    "claims": [{"what": TEXT, "claimed": NUMBER, "measured": NUMBER, "source": TEXT, "comment": (str, NoneType)}],
    "over_rounds": Each({"rounds": [WHOLE], "asr": [NUMBER], "identified": [NUMBER], "worst": WHOLE}),
    "violations": [{"tap": TEXT, "measure": TEXT, "value": NUMBER, "low": NUMBER, "bound": NUMBER}],
    "knowledge": Each(PLAIN),
}

OF_EPSILON: Mapping[str, Shape] = {
    "by_tap": Absent(Each({"valid": NUMBER, "reason": (str, NoneType)})),
    "caveats": Absent([TEXT]),
    "reason": (str, NoneType),
}

KNOWLEDGE = ("batch_size", "learning_rate", "defense", "labels", "public")
"""What every attacker's knowledge says where anything is said."""

MECHANISM = {"noise_multiplier": NUMBER, "sampling_rate": NUMBER, "steps": WHOLE, "sampling": TEXT}

OF_TAP: Mapping[str, Shape] = {
    "seen": Absent({"sigma": (int, float), "releases": (int, float), "before": [MECHANISM]}),
    "doubts": Absent(Each(PLAIN)),
    "unanswered": Absent(Each((dict, *PLAIN))),
    "attributes": Absent(Each((dict, *PLAIN))),
    "anytime": Absent(Each({"at": [NUMBER], "asr": [NUMBER]})),
}


def misfit(value: Any, shape: Shape, place: str) -> str:
    """Return what of a value is not of a shape, and where; nothing where all is."""
    if isinstance(shape, Absent):
        return "" if value is None else misfit(value, shape.of, place)
    if isinstance(shape, tuple):
        too_large = isinstance(value, int | float) and not -LARGEST <= value <= LARGEST
        if type(value) in shape and not too_large:
            return ""
        expected = " or ".join("nothing" if kind is NoneType else kind.__name__ for kind in shape)
        return f"{place}: got {str(value)[:40]!r}, expected {expected}"
    kind = list if isinstance(shape, list) else dict
    if not isinstance(value, kind):
        return f"{place}: got {str(value)[:40]!r}, expected {kind.__name__}"
    return next(filter(None, _within(value, shape, place)), "")


def _within(value: Any, shape: Shape, place: str) -> Any:
    if isinstance(shape, list):
        yield from (misfit(item, shape[0], f"{place}.{number}") for number, item in enumerate(value))
    elif isinstance(shape, Each):
        yield from (misfit(item, shape.of, f"{place}.{name}") for name, item in value.items())
    else:
        for name, inner in shape.items():
            yield misfit(value[name], inner, f"{place}.{name}") if name in value else f"{place}.{name}: is missing"
