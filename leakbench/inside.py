"""Checks file names from untrusted files: a name that is joined to a folder must stay below this folder."""

from __future__ import annotations

from pathlib import PurePosixPath

__all__ = ["is_inside", "said"]

LONGEST = 255


def is_inside(name: str) -> bool:
    """Return whether a relative path with `/` stays below its folder: no `..`, no root, no drive, no control characters."""
    parts = PurePosixPath(name).parts
    plain = name.isprintable() and "\\" not in name and ":" not in name
    return plain and 0 < len(name) <= LONGEST and not name.startswith("/") and bool(parts) and ".." not in parts


def said(name: object) -> str:
    """Return the beginning of a name for a message, without control characters."""
    return ascii(str(name)[:60])
