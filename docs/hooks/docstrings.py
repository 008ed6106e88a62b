"""Docstrings are plain text with a little Markdown: stars of shapes such as (V, *s) are stars, and fields begin lines of a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

FIELDS = re.compile(r"([a-z_][a-z_0-9]*(?:, [a-z_][a-z_0-9]*)*)( \([^)]*\))?: ")
SECTION = re.compile(r"^(?:Args|Returns|Raises):$", re.MULTILINE)
NAMED = re.compile(r"( +\*{0,2}\w+(?: \([^)]*\))?: )(.*)")
CODE = re.compile(r"(`[^`]*`)")


class PlainDocstrings(griffe.Extension):
    """Makes Markdown of the docstring of each object."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is None or obj.is_alias:
            return
        if SECTION.search(obj.docstring.value):
            obj.docstring.value = with_sections(obj.docstring.value)
            obj.docstring.parser = griffe.Parser.google
            obj.docstring.parser_options = {"warnings": False}
        else:
            obj.docstring.value = markdown(obj.docstring.value, _fields(obj))


def _fields(obj: griffe.Object) -> set[str]:
    if isinstance(obj, griffe.Function):
        return {parameter.name for parameter in obj.parameters}
    return set(obj.members) if obj.is_class else set()


def markdown(text: str, fields: set[str]) -> str:
    """Return the text with its stars escaped outside code, and each line that begins with fields as an item of a list."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        found = FIELDS.match(line)
        block = line.startswith("    ") and (not lines or not lines[-1].strip() or lines[-1].startswith("    "))
        if found and set(found[1].split(", ")) <= fields:
            if not inside and lines and lines[-1].strip():
                lines.append("")
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            lines.append(f"- {names}{_plain(found[2] or '')}: {_plain(line[found.end() :])}")
            inside = True
        elif block and not inside:
            lines.append(line)
        else:
            inside = inside and bool(line.strip())
            lines.append(_plain(line))
    return "\n".join(lines)


def with_sections(text: str) -> str:
    """Return a docstring of Google's style with its stars escaped outside code, but those of `**fields` before a description."""
    lines = []
    for line in text.splitlines():
        found = NAMED.fullmatch(line)
        lines.append(f"{found[1]}{_plain(found[2])}" if found else _plain(line))
    return "\n".join(lines)


def _plain(text: str) -> str:
    pieces = CODE.split(text)
    return "".join(piece if n % 2 else piece.replace("*", r"\*").replace("<", "&lt;") for n, piece in enumerate(pieces))
