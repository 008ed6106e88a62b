"""Files from strangers, read no further than they may be long; and texts of them, without what a terminal would obey."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

__all__ = ["CONTROLS", "bounded_text", "without_controls"]

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, changes its title or colours, or turns the direction of what follows; not tab and line end."""

MAY_BE = re.compile(r"\\u00[01789]|\\u20|\\[bfr]|" + CONTROLS.pattern)
"""What the JSON of a text with one of them has."""

ESCAPED = re.compile(r"\\(.)")


def bounded_text(path: Path, most: int) -> str:
    """Return the text of a file of at most so many bytes.

    Raises OSError for what is no file, such as a device or a pipe without an end, ValueError for more bytes and for no UTF-8.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        # What a shell hands over as /dev/fd/63 is a pipe that somebody fills.
        if not (stat.S_ISREG(os.fstat(handle).st_mode) or str(path).startswith("/dev/fd/")):
            kind = errno.EISDIR if stat.S_ISDIR(os.fstat(handle).st_mode) else errno.EINVAL
            raise OSError(kind, os.strerror(kind), str(path))
        os.set_blocking(handle, True)
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"got more than {most:,} bytes")
    return data.decode("utf-8")


def without_controls(value: Any, text: str) -> Any:
    """Return plain data, read from the JSON `text`, with U+FFFD for every control character in its texts."""
    # Nearly all are ASCII without such an escape, which is soon seen; JSON takes no control character as it is.
    if text.isascii() and "\x7f" not in text and not {"b", "f", "r", "u"}.intersection(ESCAPED.findall(text)):
        return value
    return _replaced(value) if MAY_BE.search(text) else value


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return CONTROLS.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_replaced(key): _replaced(each) for key, each in value.items()}
    return [_replaced(each) for each in value] if isinstance(value, list) else value
