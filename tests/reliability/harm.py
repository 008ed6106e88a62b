"""What may happen to a file: bits that flip, an end that is cut off, nothing left of it, or another's content in its place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ANOTHER", "Harm", "harms"]

ANOTHER = "another's content"


@dataclass(frozen=True)
class Harm:
    """A way to harm a file, by its name."""

    name: str
    do: Callable[[Path], object]


def harms(rng: random.Random, size: int, flips: int, cuts: int, other: bytes | None = None) -> Iterator[Harm]:
    """Yield ways to harm a file of `size` bytes; other: the content of another file of its kind."""
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
