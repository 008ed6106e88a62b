"""The journal of a sweep: a line of JSON for each cell that ended, written by one process; the last line of a cell counts.

A line has its checksum in it; one that was damaged is as if it were not there, and its cell is found whole, or measured, again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from leakbench.core.errors import InputError
from leakbench.core.hashes import content_hash
from leakbench.study.task import TaskOutcome, outcome_of

__all__ = ["Journal", "open_journal", "outcome_in"]


@dataclass
class Journal:
    """What is known of cells, by their keys."""

    path: Path
    known: dict[str, TaskOutcome]
    _file: FileIO = field(repr=False)

    def append(self, outcome: TaskOutcome) -> None:
        """Enter what came of a cell; a killed process leaves the line whole, or one that is read over.

        Raises OSError, with the journal's name, where the disk takes no more; what it took of the line goes again.
        """
        record = outcome.as_dict()
        line = json.dumps({**record, "checksum": content_hash(record)}, ensure_ascii=False).encode() + b"\n"
        whole = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(whole)
            raise OSError(error.errno, error.strerror, str(self.path)) from None
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
        file = path.open("a+b", buffering=0)
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
        journal = Journal(path, _known(text[:whole]), file)
        try:
            yield journal
        finally:
            with suppress(OSError):  # Another file is there, or the disk is full, which is reported already.
                journal.keep()
                if not file.seek(0, os.SEEK_END):
                    path.unlink()
                    for folder in made:
                        folder.rmdir()


def _known(text: bytes) -> dict[str, TaskOutcome]:
    """Return what the lines say; where one is damaged, only which cells are done, since it may have taken another line's place."""
    lines = [outcome_in(line) for line in text.splitlines()]
    known = {outcome.key: outcome for outcome in lines if outcome is not None}
    return {key: outcome for key, outcome in known.items() if outcome.kind == "done"} if None in lines else known


def outcome_in(line: bytes) -> TaskOutcome | None:
    """Return what a line says; None where it is damaged."""
    try:
        record = json.loads(line)
        said = record.pop("checksum", None)  # None in a journal of before there were checksums.
        found = outcome_of(record)
        return found if found.kind != "stopped" and said in (None, content_hash(record)) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
