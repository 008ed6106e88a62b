"""A page as blocks, written as Markdown or as HTML; text of cards is escaped in both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from leakbench.core.scripts import markdown_table

__all__ = ["Block", "Bullets", "Code", "Heading", "Inline", "Link", "Tabular", "Text", "as_html", "as_markdown"]


@dataclass(frozen=True)
class Link:
    """Words with an address; plain words where the address is empty."""

    words: str
    address: str


@dataclass(frozen=True)
class Code:
    """A command."""

    line: str


Inline: TypeAlias = str | Link | Code


@dataclass(frozen=True)
class Heading:
    """A heading of a level from 1 to 3."""

    level: int
    words: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    parts: tuple[Inline, ...]


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[tuple[Inline, ...], ...]


@dataclass(frozen=True)
class Tabular:
    """A table."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]


Block: TypeAlias = Heading | Text | Bullets | Tabular

STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:90rem;margin:0 auto;padding:1rem}table{border-collapse:collapse;"
    "font-size:.85rem}th,td{padding:.3rem .5rem;text-align:left;vertical-align:top;border-top:1px solid #8884}"
    ".scroll{overflow-x:auto}code{font-size:.85rem}"
)


def as_markdown(blocks: Sequence[Block]) -> str:
    """Return a page in Markdown."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_plain(block.words)}"
    if isinstance(block, Text):
        return _line(block.parts)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_line(item)}" for item in block.items)
    return markdown_table(map(_plain, block.heads), ([_line((cell,)) for cell in row] for row in block.rows))


def _line(parts: Sequence[Inline]) -> str:
    return "".join(map(_inline, parts))


def _inline(part: Inline) -> str:
    if isinstance(part, Code):
        return f"`{part.line.replace('`', chr(39)).replace('|', chr(92) + '|')}`"
    if isinstance(part, Link):
        return f"[{_plain(part.words)}]({part.address})" if part.address else _plain(part.words)
    return _plain(part)


def _plain(words: str) -> str:
    for sign in "\\`*|":
        words = words.replace(sign, f"\\{sign}")
    return words.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")


def as_html(blocks: Sequence[Block], title: str) -> str:
    """Return a page in HTML that needs no other file."""
    head = f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>'
    body = "\n".join(map(_html, blocks))
    return f"{head}\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        place = re.sub(r"[^a-z0-9]+", "-", block.words.lower()).strip("-")
        return f'<h{block.level} id="{place}">{escape(block.words)}</h{block.level}>'
    if isinstance(block, Text):
        return f"<p>{_tagged(block.parts)}</p>"
    if isinstance(block, Bullets):
        return "<ul>\n" + "\n".join(f"<li>{_tagged(item)}</li>" for item in block.items) + "\n</ul>"
    heads = "".join(f"<th>{escape(head)}</th>" for head in block.heads)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_tagged((cell,))}</td>' for cell in row)}</tr>" for row in block.rows)
    return f'<div class="scroll"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _tagged(parts: Sequence[Inline]) -> str:
    found = []
    for part in parts:
        if isinstance(part, Code):
            found.append(f"<code>{escape(part.line)}</code>")
        elif isinstance(part, Link) and part.address:
            found.append(f'<a href="{escape(part.address)}">{escape(part.words)}</a>')
        else:
            found.append(escape(part.words if isinstance(part, Link) else part))
    return "".join(found)
