"""The public interface does not change unnoticed: commands, Python functions, recipes, file formats; old run folders are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import called

from tests import frozen_commands, frozen_files
from tests.frozen_commands import differences, record

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Return a function that calls the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


def recorded(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_commands_python_functions_and_recipes_equal_the_record() -> None:
    kept = {name: tree for name, tree in recorded(frozen_commands.RECORDED).items() if name != "parts"}
    changed = list(differences(kept, frozen_commands.current()))
    assert not changed, "\n".join([f"see {frozen_commands.COMMAND}", *changed])


@pytest.mark.slow
def test_file_formats_equal_the_record(tmp_path: Path) -> None:
    changed = list(differences(recorded(frozen_files.RECORDED), frozen_files.current(tmp_path)))
    assert not changed, "\n".join([f"see {frozen_files.COMMAND}", *changed])


def test_removed_renamed_and_changed_entries_are_named() -> None:
    kept = {"run": {"--seed": "integer, default 0", "--json": "flag"}, "asr": "number"}
    now = {"run": {"--seeds": "integer, default 0", "--json": "flag"}, "asr": "null"}
    assert list(differences(kept, now)) == ["run --seed: removed or renamed", "run --seeds: not recorded yet"]
    assert list(differences(kept, now, added=False)) == ["run --seed: removed or renamed"]
    other = {**kept, "run": {"--seed": "integer, default 1", "--json": "flag"}}
    assert list(differences(kept, other)) == ["run --seed: 'integer, default 1', recorded 'integer, default 0'"]
    assert list(differences({"asr": {"low": "number"}}, {"asr": "text"}))


def test_recording_adds_and_does_not_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recorded.json"
    assert record(path, {"run": {"--seed": "integer"}}) == 0
    assert record(path, {"run": {"--seed": "integer", "--json": "flag"}}) == 0
    whole = path.read_bytes()
    capsys.readouterr()
    assert record(path, {"run": {"--json": "flag"}}) == 1
    assert "run --seed: removed or renamed" in capsys.readouterr().out
    assert path.read_bytes() == whole
