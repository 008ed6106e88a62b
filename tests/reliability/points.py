"""The twelve reliability promises, in the order of docs/reliability.md."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.tally import Tally

__all__ = ["POINTS", "Point"]

Check = Callable[[bool, Path], Tally]
"""(whether at full length, an empty folder to work in) -> tally."""


@dataclass(frozen=True)
class Point:
    """One promise: the module that tries it, pytest's mark for its full length, and its text."""

    name: str
    mark: str
    promise: str

    @property
    def check(self) -> Check:
        """Return the `check` of the module of this name."""
        found: Check = importlib.import_module(f"tests.reliability.{self.name}").check
        return found


POINTS = (
    Point("crashes", "crash", "a command that is killed at any moment resumes to the same rows"),
    Point("damage", "crash", "a damaged file is named and measured again, never used"),
    Point(
        "bad_input",
        "fuzz",
        "wrong input gives one line and exit code 2; no reader crashes, hangs or exhausts the memory",
    ),
    Point("security", "fuzz", "files from strangers are data: no code runs, no path escapes, no script reaches a page"),
    Point("determinism", "soak", "the same seed gives the same rows, also after interruptions and on every engine"),
    Point("edges", "statistics", "a degenerate case has a defined result or is refused in one line"),
    Point(
        "intervals",
        "statistics",
        "95 % intervals cover 95 %; audits and gates raise false alarms at their stated rates",
    ),
    Point("accounting", "statistics", "epsilon obeys its laws, agrees with other accountants and bounds every audit"),
    Point("endurance", "soak", "a thousand cells leak no memory or files; large folders are read in seconds"),
    Point("mutants", "mutation", "a change of one sign or number in a measure or the accounting fails a test"),
    Point("packages", "soak", "the wheel runs alone; the lowest dependency versions work; imports are fast"),
    Point("fetching", "crash", "no corrupt file is accepted, even from a hostile server"),
)
