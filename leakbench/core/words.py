"""Reads words of the command line and of files: lists with commas, thresholds of success and times."""

from __future__ import annotations

import math
import re

from leakbench.core.errors import InputError

__all__ = ["seconds", "success", "words"]


def words(field: str, text: str) -> tuple[str, ...]:
    """Return the words between commas; raises InputError for a text without a word."""
    words = tuple(word for word in text.replace(" ", "").split(",") if word)
    if not words:
        raise InputError(f"{field}: got {text!r}, expected words with commas between them")
    return words


def success(text: str | None) -> float | None:
    """Return the threshold of `rmse<=0.1` or `edit_distance<=0.1`, None for None; raises InputError for another text."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(?:rmse|edit_distance)\s*<=\s*([0-9.eE+-]+|nan|inf)\s*", text)
    try:
        return float(found[1]) if found else _badsuccess(text)
    except ValueError:
        return _badsuccess(text)


def seconds(field: str, text: str | float | None) -> float | None:
    """Return the seconds of `60`, `60s`, `2m`, `1.5h` or a number, None for None; raises InputError for other texts and for 0."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([smh]?)\s*", str(text), re.ASCII)
    value = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < value < math.inf:
        raise InputError(f"{field}: got {text!r}, expected a number of seconds above 0, as 60, 60s, 2m or 1h")
    return value


def _badsuccess(text: str) -> float:
    raise InputError(f"success: got {text!r}, expected a threshold like 'rmse<=0.1'")
