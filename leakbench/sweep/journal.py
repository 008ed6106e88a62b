"""The journal of a sweep: a line of JSON for each cell that ended, by one process; of a cell's lines the last one counts."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedRandom
from pathlib import Path

from leakbench.errors import InputError
from leakbench.sweep.task import Outcome, outcome_of

__all__ = ["Journal", "open_journal"]


@dataclass
class Journal:
    """What is known of cells, by their keys."""

    known: dict[str, Outcome]
    _file: BufferedRandom = field(repr=False)

    def append(self, outcome: Outcome) -> None:
        """Enter what came of a cell; a killed process leaves the line whole, or one that is read over."""
        self._file.write(json.dumps(outcome.as_dict(), ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self.known[outcome.key] = outcome

    def keep(self) -> None:
        """Bring what was entered from the system's memory to the disk."""
        os.fsync(self._file.fileno())


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """Open a journal, new or to go on, for this process alone; raises InputError where another holds it or it cannot be written.

    A new one in which nothing was entered is not left behind.
    """
    try:
        made = [folder for folder in (path.parent, *path.parents[1:]) if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise InputError(f"out: cannot write to {str(path.parent)!r}: {error.strerror}; give another --out") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"out: another sweep is writing to {str(path.parent)!r}; wait for it or give another --out"
            ) from None
        file.seek(0)
        text = file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):  # A line that a killed process did not finish.
            file.truncate(whole)
        journal = Journal(dict(_lines(text[:whole])), file)
        try:
            yield journal
        finally:
            journal.keep()
            if not file.seek(0, os.SEEK_END):
                path.unlink()
                with suppress(OSError):  # Something else lies there.
                    for folder in made:
                        folder.rmdir()


def _lines(text: bytes) -> Iterator[tuple[str, Outcome]]:
    for line in text.splitlines():
        try:
            outcome = outcome_of(json.loads(line))
        except (ValueError, TypeError):  # Damaged, so that its cell is found whole, or measured, again.
            continue
        yield outcome.key, outcome
