"""Only one writer at a time, also if one starts just as another ends."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

import pytest

from leakbench.core.errors import BusyError
from leakbench.storage.locks import locked


def test_a_lock_file_just_removed_by_its_holder_is_not_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a third process could lock another file of the same name at the same time."""
    folder, hold = tmp_path / "run", fcntl.flock

    def too_late(lock: IO[str], how: int) -> None:
        (folder / ".lock").unlink()
        (folder / ".lock").touch()
        hold(lock, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with pytest.raises(BusyError, match="another leakbench is writing"), locked(folder):
        pytest.fail("two hold it")
    assert (folder / ".lock").exists()


def test_a_lock_of_another_process_is_refused_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        with pytest.raises(BusyError, match="another leakbench is writing"), locked(folder):
            pytest.fail("two hold it")
        assert (folder / ".lock").exists()
    assert not folder.exists()
