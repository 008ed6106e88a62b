"""Reads untrusted files: limits on their length, strict YAML and JSON, file names below a folder, and no control characters."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import re
import stat
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import yaml

__all__ = [
    "CONTROLS",
    "MOST_BYTES",
    "bounded_text",
    "is_inside",
    "parse_yaml",
    "said",
    "strict_json",
    "without_controls",
]

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


LONGEST = 255


def is_inside(name: str) -> bool:
    """Return whether a relative path with `/` stays below its folder: no `..`, no root, no drive, no control characters."""
    parts = PurePosixPath(name).parts
    plain = name.isprintable() and "\\" not in name and ":" not in name
    return plain and 0 < len(name) <= LONGEST and not name.startswith("/") and bool(parts) and ".." not in parts


def said(name: object) -> str:
    """Return the beginning of a name for a message, without control characters."""
    return ascii(str(name)[:60])


def strict_json(text: str) -> Any:
    """Return plain data, with U+FFFD for every control character in texts.

    Raises:
        ValueError: For NaN and infinities, which JSON does not have, for whole numbers beyond the range of floats, and for
            duplicate names.
    """
    data = json.loads(text, parse_int=_whole, parse_constant=_no_number, object_pairs_hook=_once)
    return without_controls(data, text)


def _whole(digits: str) -> int:
    if math.isinf(float(digits)):  # It would raise an OverflowError in a computation.
        raise ValueError(f"{digits[:20]}... has {len(digits)} digits, more than a float can hold")
    return int(digits)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} appears twice")
        found[key] = value
    return found


MOST_BYTES = 500_000
"""Largest number of bytes of a file; the longest one of the catalog has a tenth of it."""

MOST_NODES = 100_000
"""Largest number of values, keys and lists of a file with expanded aliases: nine lines of nine aliases each are 10^9."""

MERGE = "tag:yaml.org,2002:merge"
"""Tag of `<<: *other`, which inserts the fields of another mapping."""


def parse_yaml(text: str) -> Any:
    """Return the data of a YAML text; raises YAMLError, TypeError, ValueError or RecursionError for invalid or too much data."""
    return copy.deepcopy(_parsed(text))


# The check of a page reads the same recipes thousands of times, and a text of a hundred lines takes 20 ms.
@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    # A SafeLoader, which creates only plain data.
    return yaml.load(text, Loader=_Strict)  # noqa: S506


class _Strict(yaml.SafeLoader):
    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark, alias, before = self.peek_event().start_mark, self.check_event(yaml.AliasEvent), self._nodes  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if alias:
            if id(node) not in self._sizes:
                raise yaml.constructor.ConstructorError(None, None, "an alias inside its own definition", mark)
            self._nodes += self._sizes[id(node)]
        else:
            self._nodes += 1
            self._sizes[id(node)] = self._nodes - before
            if isinstance(node, yaml.ScalarNode) and CONTROLS.search(node.value):
                raise yaml.constructor.ConstructorError(None, None, "a control character in a text", mark)
        if self._nodes > MOST_NODES:
            message = f"more than {MOST_NODES:,} values, its aliases followed"
            raise yaml.constructor.ConstructorError(None, None, message, mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Checked here, since later the mapping also has the fields that `<<` inserts, which the written ones override.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        known = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == MERGE:
                continue
            key = self.construct_object(key_node)
            if key in known:
                raise yaml.constructor.ConstructorError(None, None, f"field {key!r} appears twice", key_node.start_mark)
            known.add(key)
        return node


# YAML 1.1 reads 1e9 and 1.0e9 as texts, since it requires the sign of an exponent; YAML 1.2 reads them as numbers.
_Strict.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
