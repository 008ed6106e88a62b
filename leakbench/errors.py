"""The one error that means: what was asked for cannot be done, and here is how to cure it."""

from difflib import get_close_matches

__all__ = ["InputError", "nearest"]


class InputError(ValueError):
    """Wrong input from the user: the command line prints its one line on stderr and exits with 2.

    The message names the field, what was got, and what is accepted or how to cure it.
    """


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known name, or `"; known: a, b"` where none is near."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"
