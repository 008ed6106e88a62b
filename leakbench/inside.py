"""Names in files from strangers that are joined to a folder: such a name may only lead to what lies below it."""

from __future__ import annotations

from pathlib import PurePosixPath

__all__ = ["is_inside", "said"]

LONGEST = 255


def is_inside(name: str) -> bool:
    """Say whether a relative path with `/` leads below the folder that it is joined to: no `..`, no root, no drive, no controls."""
    parts = PurePosixPath(name).parts
    plain = name.isprintable() and "\\" not in name and ":" not in name
    return plain and 0 < len(name) <= LONGEST and not name.startswith("/") and bool(parts) and ".." not in parts


def said(name: object) -> str:
    """Return the beginning of a name as an error says it, with nothing in it that a terminal obeys."""
    return ascii(str(name)[:60])
