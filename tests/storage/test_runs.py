"""`leakbench runs` lists the content of a folder with the state of each run; `leakbench.read` reads the rows of all runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from command_line import called
from resealed import reseal

import leakbench
from leakbench.core.errors import InputError
from leakbench.core.hashes import checksum
from leakbench.storage.rows_file import write_rows
from leakbench.storage.runs import listed

SMALL = (
    *("run", "--dataset", "cancer", "--attack", "cpl", "--iterations", "2", "--victims", "2", "--candidates", "3"),
    *("--train-rounds", "1", "--clients", "2", "--clients-per-round", "2", "--local-iterations", "1", "--quiet"),
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a folder with a finished run, an unfinished one, and one whose manifest is truncated."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    assert called(monkeypatch, capsys, *SMALL, "--taps", "type-2,type-1", "--out", "runs/a")[0] == 0
    shutil.copytree(runs / "a", runs / "deep" / "b")
    manifest = json.loads((runs / "a" / "manifest.json").read_text())
    reseal(runs / "deep" / "b", {**manifest, "complete": False})
    shutil.copytree(runs / "a", runs / "c")
    (runs / "c" / "manifest.json").write_text((runs / "a" / "manifest.json").read_text()[:100])
    return runs


@pytest.mark.slow
def test_runs_are_listed_with_their_state(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(monkeypatch, capsys, "runs", "--json")
    lines = json.loads(out)
    assert (code, err) == (0, "")
    assert [(line["run"], line["state"], line.get("point")) for line in lines] == [
        ("a", "done", "type-2"),
        ("a", "done", "type-1"),
        ("c", "damaged", None),
        ("deep/b", "unfinished", None),
    ]
    summary = json.loads((place / "a" / "manifest.json").read_text())["summary"]
    assert lines[1]["asr"] == summary["taps"]["type-1"]["asr"]
    assert [line["verdict"] for line in lines[:2]] == [summary["taps"][tap]["verdict"] for tap in ("type-2", "type-1")]
    assert (lines[1]["accuracy"], lines[1]["epsilon_valid"]) == (summary["accuracy"], None)
    assert "manifest.json: cannot be read" in lines[2]["why"]
    code, out, _ = called(monkeypatch, capsys, "runs")
    assert (code, len(out.splitlines())) == (0, 5)
    assert out.splitlines()[3].startswith("c       damaged")
    code, out, _ = called(monkeypatch, capsys, "runs", str(place / "a"))
    assert [line.split()[0] for line in out.splitlines()] == ["run", "a", "a"]


def _cut(share: float) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _another(path: Path) -> None:
    """Replace a table by an intact one with the same columns and other numbers."""
    frame = pd.read_parquet(path)
    write_rows(path, frame.assign(**{frame.columns[-1]: frame[frame.columns[-1]].iloc[::-1].to_numpy()}).iloc[:-1])


FILES = ("rows.parquet", "rounds.parquet", "reconstructions.safetensors", "model.safetensors")


def _as_finished(folder: Path) -> Path:
    """Write a run folder with the files of a finished run and a manifest with their checksums."""
    folder.mkdir(parents=True)
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    for name in FILES:
        write_rows(folder / name, table)
    files = {name: checksum(folder / name) for name in FILES} | {"report.html": "0" * 64}
    cell = {"dataset": "digits", "defense": "none", "attack": "cpl", "seed": 0}
    reseal(folder, {"schema": 2, "hash": "0" * 64, "complete": True, "cell": cell, "files": files})
    return folder


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage", [_cut(0), _cut(0.5), _flip, Path.unlink, _another, lambda path: (path.unlink(), path.mkdir())]
)
def test_a_run_with_a_damaged_file_is_not_listed_as_done(
    damage: Callable[[Path], object],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = _as_finished(tmp_path / "a") / name
    _as_finished(tmp_path / "b")
    # A missing or changed report is no damage: `leakbench report` writes it again.
    assert [run.state for run in listed(tmp_path)] == ["done", "done"]
    damage(path)
    code, out, _ = called(monkeypatch, capsys, "runs", "--json", str(tmp_path))
    lines = json.loads(out)
    assert code == 0
    assert [line["state"] for line in lines] == ["damaged", "done"]
    assert str(path) in lines[0]["why"]


def test_a_finished_run_without_rows_in_its_manifest_is_damaged(tmp_path: Path) -> None:
    folder = _as_finished(tmp_path / "a")
    manifest = json.loads((folder / "manifest.json").read_text())
    reseal(folder, {**manifest, "files": {}})
    assert [run.state for run in listed(tmp_path)] == ["damaged"]
    # An attack on an update without the true examples has no rows.
    reseal(folder, {**manifest, "files": {}, "kind": "attack"})
    assert [run.state for run in listed(tmp_path)] == ["done"]


def test_a_missing_folder_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch, capsys, "runs") == (2, "", "leakbench: runs: no folder 'runs'\n")
    (tmp_path / "runs").mkdir()
    assert called(monkeypatch, capsys, "runs") == (0, "no run in runs\n", "")
    (tmp_path / "runs" / "cells.jsonl").touch()
    elsewhere = "which is a sweep's: its runs are in the folder --runs, its merged rows in runs/rows.parquet"
    assert called(monkeypatch, capsys, "runs") == (0, f"no run in runs, {elsewhere}\n", "")
    with pytest.raises(InputError, match=f"no finished run in 'runs', {elsewhere}"):
        leakbench.read("runs")


def test_rows_of_several_runs_are_concatenated(place: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        leakbench.read(place)
    shutil.rmtree(place / "c")
    shutil.copytree(place / "a", place / "e")
    found, alone = leakbench.read(place), pd.read_parquet(place / "a" / "rows.parquet")
    assert list(found["run"].unique()) == ["a", "e"]
    for name in ("a", "e"):
        rows = found[found["run"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows[alone.columns], alone, check_dtype=False)
    assert list(found.columns[:5]) == ["run", "hash", "dataset", "defense", "attack"]


@pytest.mark.slow
def test_each_row_has_the_verdict_on_its_leakage_point(place: Path) -> None:
    taps = json.loads((place / "a" / "manifest.json").read_text())["summary"]["taps"]
    found = leakbench.read(place / "a")
    assert [taps[tap]["verdict"] for tap in found["tap"]] == list(found["verdict"])


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    """Its import takes longer than reading the manifests of thousands of runs."""
    listing = f"import pathlib, sys, leakbench.storage.runs as r; list(r.listed(pathlib.Path({str(tmp_path)!r})))"
    said = f"{listing}; print([name for name in ('torch', 'pandas', 'pyarrow') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
