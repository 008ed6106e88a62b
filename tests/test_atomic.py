"""Files that are whole or not there: what is brought to the disk, and in which order."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from leakbench.atomic import write_atomically


def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_it_is_said_to_be(
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
def test_what_is_private_nobody_else_may_read(tmp_path: Path, private: bool, mode: int) -> None:
    path = tmp_path / "rows"
    write_atomically(path, lambda temporary: temporary.write_text("x"), private=private)
    assert stat.S_IMODE(path.stat().st_mode) == mode
