"""What a part and its fields mean, read from its docstring: `name: meaning.  name: meaning.` after what it does."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

__all__ = ["meanings", "purpose"]


def purpose(part: type[Any]) -> str:
    """Return the first line of a part's docstring."""
    return (inspect.getdoc(part) or "").partition("\n")[0]


def meanings(part: type[Any]) -> dict[str, str]:
    """Return {field: its meaning} of the fields of a part that its docstring names, each up to the next or the paragraph's end."""
    fields = "|".join(re.escape(field.name) for field in dataclasses.fields(part))
    if not fields:
        return {}
    label = re.compile(rf"(?:^|(?<=[.;)]) )({fields})((?:, (?:{fields}))*): ")
    found: dict[str, str] = {}
    for paragraph in (inspect.getdoc(part) or "").split("\n\n"):
        text = " ".join(paragraph.split())
        labels = list(label.finditer(text))
        for this, after in zip(labels, [*labels[1:], None], strict=False):
            meaning = text[this.end() : after.start() if after else None].strip().rstrip(".;")
            for name in (this[1], *this[2].split(", ")[1:]):
                found.setdefault(name, meaning)
    return found
