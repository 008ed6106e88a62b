"""Reads untrusted JSON strictly by the standard."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from leakbench.bounded import without_controls

__all__ = ["strict_json"]


def strict_json(text: str) -> Any:
    """Return plain data, with U+FFFD for every control character in texts.

    Raises:
        ValueError: For NaN and infinities, which JSON does not have, and for duplicate names.
    """
    return without_controls(json.loads(text, parse_constant=_no_number, object_pairs_hook=_once), text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} appears twice")
        found[key] = value
    return found
