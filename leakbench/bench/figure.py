"""What was measured of one key: a value a repeat, and of what parts; or why there is none."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Figure", "absent", "figure_of"]


@dataclass(frozen=True)
class Figure:
    """A key's values.

    Args:
        said: What was held against what, in one sentence.
        values: One a repeat, in `unit`; empty where nothing was measured, and then `reason` says why.
        parts: What the values were made of, medians over the repeats, the unit in each name.
        command: That measured it.
    """

    unit: str
    said: str
    values: tuple[float, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    command: str = ""

    @property
    def minimum(self) -> float:
        """The least of the values."""
        return min(self.values)

    @property
    def median(self) -> float:
        """Their median."""
        return statistics.median(self.values)

    @property
    def maximum(self) -> float:
        """The largest."""
        return max(self.values)

    def as_dict(self) -> dict[str, Any] | None:
        """Return it for JSON; None where nothing was measured."""
        if not self.values:
            return None
        return {
            "minimum": self.minimum,
            "median": self.median,
            "maximum": self.maximum,
            "unit": self.unit,
            "values": list(self.values),
            "parts": dict(self.parts),
            "said": self.said,
            "command": self.command,
        }


def figure_of(read: Mapping[str, Any]) -> Figure:
    """Return the figure that `Figure.as_dict` wrote."""
    return Figure(read["unit"], read["said"], tuple(read["values"]), read["parts"], command=read.get("command", ""))


def absent(reason: str) -> Figure:
    """Return the figure of what could not be measured."""
    return Figure("", "", reason=reason)
