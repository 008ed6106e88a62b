"""What a run says of epsilon: what is claimed, what is valid against whom, and why, as the terminal and the page print it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from leakbench.report.words import Summary, Tap

__all__ = ["Observed", "caveats", "epsilons"]


@dataclass(frozen=True)
class Observed:
    """One line of epsilon: valid against whom, and why; numbers as text."""

    observer: str
    valid: str
    reason: str
    q: str
    steps: str
    participations: str

    @property
    def text(self) -> str:
        """The number and its reason; a reason that says there is none stands alone."""
        if self.reason.startswith(f"{self.valid}:") or not self.reason:
            return self.reason or self.valid
        return f"{self.valid}: {self.reason}"


def epsilons(summary: Summary) -> tuple[str, list[Observed]]:
    """Return (what is claimed, [the valid epsilon of the released models, then of each leakage point])."""
    epsilon = summary.get("epsilon")
    if not epsilon:
        return "n/a", []
    released = _observed(f"{epsilon.get('observer') or 'global'} (released models)", epsilon)
    taps = [_observed(name, tap) for name, tap in (epsilon.get("by_tap") or {}).items()]
    claimed = _epsilon(epsilon.get("claimed"))
    return summary["notes"].get("epsilon.claimed", claimed) if claimed == "none" else claimed, [released, *taps]


def caveats(summary: Summary) -> list[str]:
    """Return in what the training is not the one that the claim accounts for, a sentence each; nothing where none claims."""
    epsilon = summary.get("epsilon") or {}
    return list(epsilon.get("caveats") or [])


def _observed(observer: str, found: Tap) -> Observed:
    q, steps, times = found.get("q"), found.get("steps"), found.get("participations")
    if isinstance(times, Mapping):
        times = ", ".join(f"{_count(value)} {name}" for name, value in times.items() if value is not None)
    participations = times if isinstance(times, str) else _count(times)
    share = "n/a" if q is None else f"{q:.3g}"
    return Observed(
        observer, _epsilon(found.get("valid")), found.get("reason") or "", share, _count(steps), participations
    )


def _epsilon(value: float | None) -> str:
    return "none" if value is None or not math.isfinite(value) else f"{value:.3g}"


def _count(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.6g}"
