"""One malformed input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Case", "Change", "nothing", "written"]

Change = Callable[[Path], object]


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


def written(name: str, content: str | bytes) -> Change:
    """Return a function that writes `content` into the file `name`."""

    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


@dataclass(frozen=True)
class Case:
    """A `leakbench` command in a folder, how the folder is changed before it, and what the error line must contain.

    asked: the command line after `leakbench`.  says: pieces of text that the line must contain.
    """

    asked: str | Iterable[str]
    says: tuple[str, ...]
    change: Change = nothing

    @property
    def arguments(self) -> list[str]:
        """Return the words of the command line."""
        return self.asked.split() if isinstance(self.asked, str) else list(self.asked)
