"""Files are complete or absent: what is flushed to the disk, and in which order."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from leakbench.storage.atomic import TEMPORARY, write_atomically


def test_content_is_flushed_before_the_rename_and_the_rename_before_returning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows"
    path.write_text("old")
    seen = []

    def fsync(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else os.pread(handle, 9, 0).decode()
        seen.append((kind, path.read_text()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(path, lambda temporary: temporary.write_text("new"))
    assert seen == [("new", "old"), ("folder", "new")]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_private_files_are_readable_by_the_owner_only(tmp_path: Path, private: bool, mode: int) -> None:
    path = tmp_path / "rows"
    write_atomically(path, lambda temporary: temporary.write_text("x"), private=private)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_files_of_killed_writers_are_removed_and_locked_ones_stay(tmp_path: Path) -> None:
    held, left, foreign = (
        tmp_path / name
        for name in (".rows.parquet.abcdefgh.tmp", ".rows.parquet.12345678.tmp", ".other.parquet.abcdefgh.tmp")
    )
    for path in (held, left, foreign):
        path.write_text("half")
    with held.open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        write_atomically(tmp_path / "rows.parquet", lambda temporary: temporary.write_text("x"))
    assert {path.name for path in tmp_path.iterdir()} == {"rows.parquet", held.name, foreign.name}


def test_a_temporary_file_that_is_removed_before_it_is_locked_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another writer of the same file had finished between creating and locking."""
    hold, removed = fcntl.flock, []

    def too_late(handle: int, how: int) -> None:
        if not removed:
            [path] = (path for path in tmp_path.iterdir() if TEMPORARY.fullmatch(path.name))
            path.unlink()
            removed.append(path)
        hold(handle, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    write_atomically(tmp_path / "rows.parquet", lambda temporary: os.truncate(temporary, 3))
    assert removed and [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    assert (tmp_path / "rows.parquet").stat().st_size == 3
