"""A recipe's parts in words: the name of each, what it does, and what it sets, from its docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

from leakbench.catalog import descriptions
from leakbench.core.recipe import recipe_name

__all__ = ["described", "escaped"]


def _is_part(value: Any) -> bool:
    """Say whether a value is a part of a recipe."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def described(value: Any, label: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the lines of a list: a part, what it does, what it sets; below it the parts within it."""
    part = type(value)
    name = recipe_name(part)
    said = f"`{name}`" if name else part.__name__
    head = f"**{label}**: {said}" if label else said
    module = part.__module__
    link = f"[{part.__name__}](../api/{module.rpartition('.')[0]}.md#{module}.{part.__qualname__})"
    yield f"{'    ' * depth}- {head}. {escaped(_purpose(part))} ({link})"
    explained = descriptions(part)
    for field in dataclasses.fields(value):
        got = getattr(value, field.name)
        inner = got if isinstance(got, tuple) else (got,)
        if any(_is_part(item) for item in inner):
            for item in inner:
                yield from described(item, field.name, depth + 1)
        elif got not in ("", (), None):
            meaning = f": {escaped(explained[field.name])}" if field.name in explained else ""
            yield f"{'    ' * (depth + 1)}- {escaped(field.name)} = `{_written(got)}`{meaning}"


def _purpose(part: type[Any]) -> str:
    """Return the docstring's first lines up to one that ends a sentence."""
    lines = (inspect.getdoc(part) or "").partition("\n\n")[0].splitlines()
    ends = next((n for n, line in enumerate(lines) if line.endswith(".")), len(lines))
    return " ".join(line.strip() for line in lines[: ends + 1])


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def escaped(text: str) -> str:
    """Return text whose stars, brackets and the like stand as they are written; what is between backticks is code."""
    pieces = re.split(r"(`[^`]*`)", text)
    plain = (re.sub(r"([*_\[\]|])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces)
    return "".join(piece if n % 2 else words for n, (piece, words) in enumerate(zip(pieces, plain, strict=True)))
