"""The five commands without interruption: their files, and the duration of each phase."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.offline import python_path
from tests.reliability.commands import Command, commands
from tests.reliability.killed import Pace, started
from tests.reliability.lying import Server
from tests.reliability.same import differences, results
from tests.reliability.tally import Tally

__all__ = ["Unbroken", "unbroken"]


@dataclass(frozen=True)
class Unbroken:
    """A command and its files.  pages: pages of 4 KiB that these take on a disk."""

    command: Command
    environment: dict[str, str]
    pace: Pace
    results: dict[str, Any]
    pages: int

    @property
    def name(self) -> str:
        """Return the name of the command."""
        return self.command.name

    def prepare(self, folder: Path) -> Path:
        """Make a folder in which the command can be started."""
        folder.mkdir(parents=True)
        self.command.prepared(folder)
        return folder

    def goes_on(self, tally: Tally, folder: Path, name: str) -> None:
        """Run the command to its end; the folder's content must be that of the uninterrupted command."""
        ended, _ = started(self.command.words, folder, self.environment, None)
        tally.expect(ended.code == 0, f"{name}, gone on: exit code {ended.code}: {ended.err[-300:]}")
        with tally.case(f"{name}, gone on"):
            if said := differences(results(folder), self.results):
                raise AssertionError(said)


def unbroken(tally: Tally, server: Server, place: Path) -> list[Unbroken]:
    """Run every command once."""
    finished, root, found = place / "finished", Path(__file__).parents[2], list[Unbroken]()
    environment = {name: value for name, value in os.environ.items() if name != "LEAKBENCH_DATA"}
    environment |= {"PYTHONPATH": python_path(root), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(place / "cache")}
    for command in commands(server, finished):
        folder = place / command.name.replace(" ", "-")
        folder.mkdir(parents=True)
        command.prepared(folder)
        ended, pace = started(command.words, folder, environment, None)
        tally.expect(ended.code == 0, f"{command.name}, unbroken: exit code {ended.code}: {ended.err[-300:]}")
        pages = sum(_pages(path) for path in folder.rglob("*"))
        found.append(Unbroken(command, environment, pace, results(folder), pages))
        if command.name == "run":
            next((folder / "runs").iterdir()).rename(finished)
    return found


def _pages(path: Path) -> int:
    return 1 if path.is_dir() else -(-path.stat().st_size // 4096)
