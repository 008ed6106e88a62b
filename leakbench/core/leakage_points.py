"""Leakage points, and how files, messages and texts for readers spell them."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["OWN", "POINT_NAMES", "TAPS", "LeakagePoint", "after_rounds", "listed", "point_name"]

POINT_NAMES = {
    "type-2": "example gradient (type-2)",
    "type-1": "client update (type-1)",
    "type-0": "server-side update (type-0)",
    "global": "global update",
}
"""{key of a leakage point: its name}."""

TAPS = tuple(POINT_NAMES)
"""The keys of all leakage points."""

OWN = ("type-2", "type-1", "type-0")
"""The keys of the leakage points of an update of one client."""

SPELLED = re.compile(r"([^@]*?)(?:@|\.round)([0-9]{1,9}(?:\+[0-9]{1,9})*)(?:\..*)?")
"""A leakage point with rounds, as a key or as the start of the name of a file or tensor: (tap, rounds joined by +)."""


@dataclass(frozen=True)
class LeakagePoint:
    """A leakage point, and the rounds before it.

    Args:
        tap: Key of `POINT_NAMES`.
        rounds: Number of rounds before the leak; several if one attack joins them; () if the round is not part of the key, as
            in the paper protocol.
    """

    tap: str
    rounds: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> LeakagePoint:
        """Read a key, as `type-1`, `type-1@40` or `type-1@0+1`, or a name that starts as `file` does.

        Another text is the tap of the result, without rounds.
        """
        found = SPELLED.fullmatch(text)
        return cls(found[1], tuple(map(int, found[2].split("+")))) if found else cls(text)

    @property
    def key(self) -> str:
        """The point in summaries, tables and messages: `type-1`, `type-1@40` or `type-1@0+1`."""
        return f"{self.tap}@{'+'.join(map(str, self.rounds))}" if self.rounds else self.tap

    @property
    def file(self) -> str:
        """The start of the names of files and tensors, with the last round: `type-1.round40`."""
        return f"{self.tap}.round{self.rounds[-1] if self.rounds else 0}"

    @property
    def tag(self) -> str:
        """The point in the figures of a tracker: `type-1/round40`."""
        return self.key.replace("@", "/round")

    @property
    def phase(self) -> str:
        """The attack in the wall times and the progress: `attack type-1` or `attack type-1 at round 40`."""
        return f"attack {self.tap}" + (f" at round {self.rounds[-1]}" if self.rounds else "")


def point_name(tap: str) -> str:
    """Return the name of a leakage point.

    Args:
        tap: Key of a leakage point, as `type-1`; with several rounds, as `type-1@40`; with one attack on several rounds, as
            `type-1@0+1`.

    Returns:
        Its name, as "client update (type-1)" or "client update (type-1) after 40 rounds"; another text as it is.
    """
    point = LeakagePoint.of(tap)
    if point.tap not in POINT_NAMES or point.key != tap:
        return tap
    return POINT_NAMES[point.tap] + after_rounds(*point.rounds)


def after_rounds(*rounds: int) -> str:
    """Return " after 40 rounds" or " after 0 and 1 rounds"; an empty text without rounds."""
    return f" after {listed([*map(str, rounds)])} round{'' if rounds == (1,) else 's'}" if rounds else ""


def listed(names: list[str]) -> str:
    """Return names as a sentence lists them.

    Args:
        names: At least one name.

    Returns:
        "a", "a and b" or "a, b and c".
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
