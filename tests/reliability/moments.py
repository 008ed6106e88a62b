"""Copies a folder before each of its changes, as a kill would leave it, and resumes from each copy in this process."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from leakbench.study.grid import read_grid
from tests.reliability.same import differences, results
from tests.reliability.swept import GRID, swept
from tests.reliability.tally import Tally

__all__ = ["check_moments"]


def check_moments(tally: Tally, place: Path, count: int) -> None:
    """Copy the folder of a sweep before each of its changes, and resume from `count` of the copies; the results are the same."""
    place.mkdir(parents=True)
    (place / "grid.yaml").write_text(GRID, encoding="utf-8")
    grid, folder, moments = read_grid(place / "grid.yaml"), place / "unbroken", list[Path]()

    def changing() -> None:
        moments.append(place / f"moment{len(moments)}")
        shutil.copytree(folder, moments[-1])

    folder.mkdir()
    with _before_each(folder, changing):
        swept(grid, folder)
    expected = results(folder)
    tally.expect(len(moments) > 20, f"moments: only {len(moments)}")
    rng = random.Random(len(moments))
    for moment in rng.sample(moments, min(count, len(moments))):
        with tally.case(f"a sweep, killed at its {moment.name}"):
            _torn(rng, moment)
            swept(grid, moment)
            if said := differences(results(moment), expected):
                raise AssertionError(said)
    tally.figures.append(
        f"moments at which a sweep's folder changes: {len(moments)}, gone on from {min(count, len(moments))}"
    )


@contextmanager
def _before_each(folder: Path, changing: Callable[[], None]) -> Iterator[None]:
    """Call a function before any file in a folder gets or loses its name, or grows."""
    replace, unlink = Path.replace, Path.unlink

    def replaced(self: Path, target: Path) -> Path:
        if self.is_relative_to(folder):
            changing()
        return replace(self, target)

    def unlinked(self: Path, missing_ok: bool = False) -> None:
        if self.is_relative_to(folder) and self.exists():
            changing()
        unlink(self, missing_ok)

    with mock.patch.object(Path, "replace", replaced), mock.patch.object(Path, "unlink", unlinked):
        yield


def _torn(rng: random.Random, folder: Path) -> None:
    """Truncate the last line of a journal at a random place, as a power cut may."""
    journal = folder / "out" / "cells.jsonl"
    if journal.exists() and journal.stat().st_size:
        os.truncate(journal, rng.randrange(journal.stat().st_size))
