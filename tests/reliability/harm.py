"""Kinds of damage to a file: flipped bits, a truncated end, an empty file, or the content of another file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ANOTHER", "Harm", "harms"]

ANOTHER = "another's content"


@dataclass(frozen=True)
class Harm:
    """A named kind of damage to a file."""

    name: str
    do: Callable[[Path], object]


def harms(rng: random.Random, size: int, flips: int, cuts: int, other: bytes | None = None) -> Iterator[Harm]:
    """Yield kinds of damage to a file of `size` bytes; other: the content of another file of the same kind."""
    for _ in range(flips):
        at, bit = rng.randrange(size), 1 << rng.randrange(8)
        yield Harm(f"bit {bit} of byte {at} flipped", lambda path, at=at, bit=bit: _flip(path, at, bit))  # type: ignore[misc]
    for _ in range(cuts):
        at = rng.randrange(size)
        yield Harm(f"cut off after {at} of {size} bytes", lambda path, at=at: _cut(path, at))  # type: ignore[misc]
    if not cuts:
        return
    yield Harm("empty", lambda path: _cut(path, 0))
    yield Harm("missing", Path.unlink)
    yield Harm("a line more", lambda path: path.write_bytes(path.read_bytes() + b"\n0"))
    if other is not None:
        yield Harm(ANOTHER, lambda path: path.write_bytes(other))


def _flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def _cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])
