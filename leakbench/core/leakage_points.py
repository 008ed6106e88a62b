"""The names of leakage points in texts for readers; files and options use the keys (`type-1`)."""

from __future__ import annotations

__all__ = ["POINT_NAMES", "TAPS", "listed", "point_name"]

POINT_NAMES = {
    "type-2": "example gradient (type-2)",
    "type-1": "client update (type-1)",
    "type-0": "server-side update (type-0)",
    "global": "global update",
}
"""{key of a leakage point: its name}."""

TAPS = tuple(POINT_NAMES)
"""The keys of all leakage points."""


def point_name(tap: str) -> str:
    """Return the name of a leakage point.

    Args:
        tap: Key of a leakage point, as `type-1`; with several rounds, as `type-1@40`; with one attack on several rounds, as
            `type-1@0+1`.

    Returns:
        Its name, as "client update (type-1)" or "client update (type-1) after 40 rounds"; another text as it is.
    """
    key, at, rounds = tap.partition("@")
    numbers = rounds.split("+")
    if key not in POINT_NAMES or (at and not all(number.isdecimal() for number in numbers)):
        return tap
    return POINT_NAMES[key] + (f" after {listed(numbers)} round{'' if rounds == '1' else 's'}" if at else "")


def listed(names: list[str]) -> str:
    """Return names as a sentence lists them.

    Args:
        names: At least one name.

    Returns:
        "a", "a and b" or "a, b and c".
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
