"""The public interface does not change unnoticed: commands, Python functions, recipes, file formats; old run folders are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command_line import called

import leakbench
from leakbench.core.hashes import checksum
from tests import frozen_commands, frozen_files
from tests.frozen_commands import differences, record

OLD_RUNS = Path(__file__).parents[1] / "old_runs"

OLD = {
    "digits_cpl": {"type-2": (2, 1.0, "reconstructs")},
    "cancer_tableak": {"type-2": (2, 0.0, "inconclusive"), "type-1": (8, 0.0, "inconclusive")},
    "own_update": {"type-2": (1, 1.0, "reconstructs")},
}
"""{run folder: {leakage point: (rows, ASR, verdict)}}."""

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


def first_format(folder: Path) -> None:
    """Turn a run folder into the first format: no checksum of the manifest, no version and no verdicts in the rows."""
    path = folder / "rows.parquet"
    rows = pq.read_table(path)
    rows = rows.drop_columns([name for name in ("network", "verdict") if name in rows.column_names])
    pq.write_table(rows.replace_schema_metadata(None), path)
    manifest = recorded(folder / "manifest.json")
    del manifest["checksum"]
    manifest |= {"schema": 1, "files": {**manifest["files"], path.name: checksum(path)}}
    manifest["files"].pop("report.html")
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("change", [None, first_format], ids=["format of 0.1", "first format"])
@pytest.mark.parametrize("name", OLD)
def test_an_old_run_folder_is_read(name: str, change: Callable[[Path], None] | None, call: Call) -> None:
    """Every command that reads run folders reads it; nothing is measured."""
    folder = Path(shutil.copytree(OLD_RUNS / name, name))
    if change is not None:
        change(folder)
    code, out, _ = call("runs", ".", "--json")
    found = {line["point"]: line for line in json.loads(out)}
    assert code == 0 and set(found) == set(OLD[name])
    rows = leakbench.read(folder)
    for point, (count, asr, verdict) in OLD[name].items():
        assert (found[point]["asr"], found[point]["verdict"], found[point]["state"]) == (asr, verdict, "done")
        assert list(rows[rows["tap"] == point]["verdict"]) == [verdict] * count
    code, out, _ = call("report", name)
    assert code == 0 and "<html" in (folder / "report.html").read_text(encoding="utf-8")
    code, out, _ = call("compare", name, name, "--json")
    assert code == 0 and {line["point"] for line in json.loads(out)} == set(OLD[name])
    code, out, err = call("baseline", name)
    if name == "own_update":
        assert code == 2 and "the folder of an own update" in err
        return
    Path("baseline.json").write_text(out, encoding="utf-8")
    for baseline in ("baseline.json", name):
        assert call("gate", name, "--baseline", baseline)[0] == 0
    result = leakbench.Result.open(folder)
    assert result.verdicts == {point: verdict for point, (_, _, verdict) in OLD[name].items()}
    assert len(result.rows) == len(rows)
    code, out, _ = call("report", name, "--latex")
    assert code == 0 and "toprule" in out
