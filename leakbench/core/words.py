"""Reads words of the command line and of files: lists with commas, thresholds of success and times. Writes epsilons."""

from __future__ import annotations

import math
import re
from typing import Self

from leakbench.core.errors import InputError

__all__ = ["Threshold", "check_success", "epsilon_text", "seconds", "success", "words"]

LEAST = 5e-4
"""Number below which an epsilon or a noise multiplier rounds to zero, and is printed as an upper bound."""


RMSE, EDIT_DISTANCE, EXACT = "rmse", "edit_distance", "exact"

ACCEPTED = {
    RMSE: "0 < RMSE <= 1, as in --success 'rmse<=0.1'",
    EDIT_DISTANCE: "'edit_distance<=X' with X from 0 to 1, as in --success 'edit_distance<=0.1', or exact",
}
"""{measure that decides: what `--success` accepts}."""


class Threshold(float):
    """A threshold of success as a user wrote it: a number that knows its measure.

    Args:
        value: Largest distance of a reconstruction.
        measure: `rmse` or `edit_distance`; empty for a number alone, which is of the data's own measure.
    """

    measure: str

    def __new__(cls, value: float, measure: str = "") -> Self:
        """Return the number with its measure."""
        found = super().__new__(cls, value)
        found.measure = measure
        return found

    def __reduce__(self) -> tuple[type[Threshold], tuple[float, str]]:
        """Return what makes an equal threshold in another process."""
        return type(self), (float(self), self.measure)

    def __str__(self) -> str:
        return f"{self.measure or RMSE}<={float(self)}" if self else EXACT


def epsilon_text(value: float | None, form: str = ".3g") -> str:
    """Return an epsilon or a noise multiplier as text: `< 0.001` for one that rounds to 0, `none` for None, NaN and infinity.

    Args:
        value: The number, >= 0.
        form: Format of a number that does not round to 0.
    """
    if value is None or not math.isfinite(value):
        return "none"
    if 0 < value < LEAST:
        return "< 0.001"
    return format(value, form) if value else "0"


def words(field: str, text: str) -> tuple[str, ...]:
    """Return the words between commas; raises InputError for a text without a word."""
    words = tuple(word for word in text.replace(" ", "").split(",") if word)
    if not words:
        raise InputError(f"{field}: got {text!r}, expected words with commas between them")
    return words


def success(text: str | None) -> Threshold | None:
    """Return the threshold of `rmse<=0.1`, `edit_distance<=0.1` or `exact`, None for None; raises InputError for another text."""
    if text is None:
        return None
    if text.strip() == EXACT:
        return Threshold(0.0, EDIT_DISTANCE)
    found = re.fullmatch(r"\s*(rmse|edit_distance)\s*<=\s*([0-9.eE+-]+|nan|inf)\s*", text)
    try:
        return Threshold(float(found[2]), found[1]) if found else _badsuccess(text)
    except ValueError:
        return _badsuccess(text)


def check_success(given: float | None, measure: str = "", holds: str = "") -> None:
    """Check a threshold of success.

    Args:
        given: The threshold; None for the data set's own.
        measure: The measure that decides for the data, `rmse` or `edit_distance`; empty where the data are not known yet.
        holds: The data in the message, as in "'reviews' holds texts".

    Raises:
        InputError: The number is not a distance, or the user named another measure than the data's.
    """
    if given is None:
        return
    named = given.measure if isinstance(given, Threshold) else ""
    if measure and named not in ("", measure):
        lacks = "an RMSE" if named == RMSE else "an edit distance"
        raise InputError(f"success: got '{given}', but {holds}, without {lacks}; expected {ACCEPTED[measure]}")
    if not 0 <= given <= 1 or (given == 0 and named != EDIT_DISTANCE):
        raise InputError(f"success: got a threshold of {float(given)}, expected {ACCEPTED[measure or named or RMSE]}")


def seconds(field: str, text: str | float | None) -> float | None:
    """Return the seconds of `60`, `60s`, `2m`, `1.5h` or a number, None for None; raises InputError for other texts and for 0."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([smh]?)\s*", str(text), re.ASCII)
    value = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < value < math.inf:
        raise InputError(f"{field}: got {text!r}, expected a number of seconds above 0, as 60, 60s, 2m or 1h")
    return value


def _badsuccess(text: str) -> Threshold:
    raise InputError(
        f"success: got {text!r}, expected a threshold like 'rmse<=0.1', or for texts 'edit_distance<=0.1' or 'exact'"
    )
