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
    """Return what writes `content` into the file `name`."""

    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


@dataclass(frozen=True)
class Case:
    """What is asked of `leakbench` in a folder, after the folder was changed, and what the line has to say.

    asked: the command line behind `leakbench`.  says: pieces of text that are all in the line.
    """

    asked: str | Iterable[str]
    says: tuple[str, ...]
    change: Change = nothing

    @property
    def arguments(self) -> list[str]:
        """The command line, in words."""
        return self.asked.split() if isinstance(self.asked, str) else list(self.asked)
