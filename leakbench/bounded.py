"""Reads untrusted files with a limit on their length, and removes the control characters of a terminal from their texts."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

__all__ = ["CONTROLS", "bounded_text", "without_controls"]

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that move a terminal's cursor, change its title, colours or text direction, other than tab and line end."""

MAY_BE = re.compile(r"\\u00[01789]|\\u20|\\[bfr]|" + CONTROLS.pattern)
"""Escapes and characters in the JSON of a text with such characters."""

ESCAPED = re.compile(r"\\(.)")


def bounded_text(path: Path, most: int) -> str:
    """Return the text of a file of at most `most` bytes.

    Raises:
        OSError: For a device, a pipe, or a file that cannot be read.
        ValueError: For more bytes, or a text that is not UTF-8.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        # A shell passes the output of a command as a pipe such as /dev/fd/63.
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
    # Nearly all texts are ASCII without such an escape, which is fast to check; JSON allows no raw control characters.
    if text.isascii() and "\x7f" not in text and not {"b", "f", "r", "u"}.intersection(ESCAPED.findall(text)):
        return value
    return _replaced(value) if MAY_BE.search(text) else value


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return CONTROLS.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_replaced(key): _replaced(each) for key, each in value.items()}
    return [_replaced(each) for each in value] if isinstance(value, list) else value
