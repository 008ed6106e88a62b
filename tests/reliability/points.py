"""The twelve points, in the order of docs/reliability.md."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.tally import Tally

__all__ = ["POINTS", "Point"]

Check = Callable[[bool, Path], Tally]
"""(whether at full length, an empty folder to work in) -> what came of it."""


@dataclass(frozen=True)
class Point:
    """One promise: the module that tries it, the mark of pytest for its full length, and the promise in words."""

    name: str
    mark: str
    promise: str

    @property
    def check(self) -> Check:
        """The `check` of the module of this name."""
        found: Check = importlib.import_module(f"tests.reliability.{self.name}").check
        return found


POINTS = (
    Point("crashes", "crash", "killed at any moment, a command goes on to the same rows"),
    Point("damage", "crash", "a damaged file is named and measured again, never used"),
    Point("bad_input", "fuzz", "wrong input is one line and exit code 2; no reader crashes, hangs or fills the memory"),
    Point("security", "fuzz", "what a stranger wrote is data: no code runs, no path escapes, no script reaches a page"),
    Point("determinism", "soak", "the same seed gives the same rows, however they are come by"),
    Point("edges", "statistics", "a degenerate case has a defined answer or is refused in one line"),
    Point("intervals", "statistics", "95 % intervals cover 95 %; audits and gates are false as seldom as they say"),
    Point(
        "accounting", "statistics", "epsilon obeys its laws, agrees with other accountants and bounds what is audited"
    ),
    Point("endurance", "soak", "a thousand cells neither grow nor leak; large folders are read in seconds"),
    Point("mutants", "mutation", "a change of one sign or number in what is measured or accounted fails a test"),
    Point("packages", "soak", "the wheel alone runs; floors are real; imports are quick"),
    Point("fetching", "crash", "no corrupt file is accepted, whatever a server does"),
)
