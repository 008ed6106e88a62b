"""The figure of one key: a value per repeat and its parts, or the reason for no value."""

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
        said: The comparison in one sentence.
        values: One value per repeat, in `unit`; empty for the reason in `reason`.
        parts: Parts of the values, as medians over the repeats, with the unit in each name; they may exist without a value.
        command: Command that measured it.
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
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def maximum(self) -> float:
        """The largest of the values."""
        return max(self.values)

    def as_dict(self) -> dict[str, Any] | None:
        """Return the data for JSON; None without values."""
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
    """Return a figure without values."""
    return Figure("", "", reason=reason)
