"""A damaged baseline or run manifest is refused in one line with exit code 2 that names file and field."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import called
from resealed import reseal

from leakbench import cli
from leakbench.gate.baseline import baseline_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small finished run."""
    folder = tmp_path_factory.mktemp("run") / "run"
    asked = (
        "run --quiet --json --dataset digits --attack lmmse --taps type-2 --train-rounds 1 --candidates 20 --victims 6"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["leakbench", *asked.split(), "--out", str(folder)])
        cli.main()
    return folder


def column(name: str, value: Any) -> Callable[[Any], None]:
    return lambda kept: kept["rows"].update({name: value})


def field(name: str, value: Any) -> Callable[[Any], None]:
    return lambda kept: kept.update({name: value})


def first(name: str, value: Any) -> Callable[[Any], None]:
    """Return a function that replaces the value of the first example."""

    def change(kept: Any) -> None:
        had = kept["rows"][name]
        listed = had if isinstance(had, list) else [had] * kept["examples"]
        kept["rows"][name] = [value, *listed[1:]]

    return change


WHOLE = ("round", "victim", "member", "example", "label", "candidates")

BASELINES = [
    *[(name, value) for name in ("identified", "success") for value in (7, -1, 0.5, "1", [], float("nan"))],
    ("success", None),
    *[(name, value) for name in WHOLE for value in ("x", 1.5, -1, None, True, {})],
    *[(name, value) for name in ("rmse", "null_rmse", "eta") for value in ("x", -1, float("inf"), [1], 10**400)],
    *[(name, 10**400) for name in ("label", "candidates", "label_guess")],
    *[("tap", value) for value in ("type-3", 1, None)],
    *[("label_guess", value) for value in ("x", 1.5)],
    *[("failure_reason", value) for value in (1, [])],
    ("eta", None),
]

FIELDS = [
    *[("accuracy", value) for value in ("x", 7, -1, True, [], float("nan"))],
    *[("epsilon", value) for value in ("x", -1, True, float("inf"))],
    *[(name, value) for name in ("attack", "hash", "name", "dataset") for value in (1, None, [])],
    *[("examples", value) for value in ("x", 0, -1, 1.5, True, None, 10**12, 5)],
    *[("rows", value) for value in ([], None, "x", {})],
    *[("settings", value) for value in ([], None, "x", {"reads": []}, {"reads": {}})],
]


def held(kept: Any, folder: Path, monkeypatch: Any, capsys: Any, run: Path) -> str:
    """Check that the gate refuses the run against a baseline, and return the line."""
    path = folder / "kept.json"
    path.write_text(kept if isinstance(kept, str) else json.dumps(kept), encoding="utf-8")
    code, out, err = called(monkeypatch, capsys, "gate", str(run), "--baseline", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "kept.json" in err and "bug" not in err
    return err


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), BASELINES)
@pytest.mark.parametrize("how", [column, first])
def test_a_column_of_a_baseline(
    how: Any, name: str, value: Any, finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    kept = baseline_of(finished)
    how(name, value)(kept)
    line = held(kept, tmp_path, monkeypatch, capsys, finished)
    assert f"rows.{name}: got" in line or "is not a number of JSON" in line or "cannot be read" in line


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), FIELDS)
def test_a_field_of_a_baseline(
    name: str, value: Any, finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    kept = baseline_of(finished)
    kept[name] = value
    line = held(kept, tmp_path, monkeypatch, capsys, finished)
    assert name in line or "is not a number of JSON" in line or name == "examples"


@pytest.mark.parametrize(
    "name", [*WHOLE, "tap", "eta", "success", "identified", "rmse", "label_guess", "failure_reason"]
)
def test_a_missing_column(name: str, finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    kept = baseline_of(finished)
    del kept["rows"][name]
    assert f"rows.{name} is missing" in held(kept, tmp_path, monkeypatch, capsys, finished)


@pytest.mark.parametrize("name", ["accuracy", "epsilon", "attack", "hash", "name", "dataset", "examples", "rows"])
def test_a_missing_field(name: str, finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    kept = baseline_of(finished)
    del kept[name]
    assert f"{name} is missing" in held(kept, tmp_path, monkeypatch, capsys, finished)


def test_an_example_twice_and_some_that_were_not_ranked(
    finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    for change, says in (
        (column("victim", 0), "victim 0 appears twice"),
        (first("identified", None), "some victims have null, expected all or none"),
    ):
        kept = copy.deepcopy(baseline_of(finished))
        change(kept)
        assert says in held(kept, tmp_path, monkeypatch, capsys, finished)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"leakbench baseline": 2}', "[" * 100_000])
def test_files_that_are_not_baselines(text: str, finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    assert "baseline: " in held(text, tmp_path, monkeypatch, capsys, finished)


def at(path: str, value: Any) -> Callable[[Any], None]:
    def change(manifest: Any) -> None:
        *above, last = path.split("/")
        for name in above:
            manifest = manifest[name]
        manifest[last] = value

    return change


MANIFEST = [
    *[(name, value) for name in ("cell", "recipes", "settings", "phases", "files") for value in (3, "x", [], None)],
    *[(name, value) for name in ("hash", "command") for value in (3, None, [])],
    *[("summary", value) for value in (3, "x", [], None)],
    *[("cell/dataset", value) for value in (3, None)],
    ("files/rows.parquet", 3),
    *[("phases/prepare", value) for value in ("x", 10**400)],
    *[("summary/accuracy", value) for value in (10**400, -(10**400))],
    ("summary/taps/type-2/rmse", 10**400),
    *[("summary/accuracy", value) for value in ("x", 7, -1, [])],
    *[("summary/epsilon", value) for value in (3, None, [])],
    *[("summary/epsilon/valid", value) for value in ("x", -1, [])],
    *[("summary/taps", value) for value in (3, None, [], {}, {"type-2": 3})],
    *[("summary/taps/type-2/asr", value) for value in ("x", 7, -1, [])],
    *[("summary/taps/type-2/victims", value) for value in ("x", 0, 1.5, [])],
    *[("summary/taps/type-2/verdict", value) for value in (3, None)],
    *[("summary/taps/type-2/psnr", value) for value in ("x", [])],
    *[("summary/taps/type-2/anytime", value) for value in ("x", 3)],
    *[("summary/notes", value) for value in (3, [], {"x": 3})],
    *[("summary/warnings", value) for value in (3, {}, [3])],
    *[("summary/violations", value) for value in (3, {})],
]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["gate", "baseline", "compare", "report"])
@pytest.mark.parametrize(("path", "value"), MANIFEST)
def test_a_manifest_that_no_run_wrote(
    path: str, value: Any, command: str, finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    manifest = json.loads((run / "manifest.json").read_text())
    at(path, value)(manifest)
    reseal(run, manifest)
    before = {file: file.read_bytes() for file in run.iterdir()}
    more = {"gate": ["--baseline", str(finished)], "compare": [str(finished)]}.get(command, [])
    code, out, err = called(monkeypatch, capsys, command, str(run), *more)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "run/manifest.json: " in err and path.rsplit("/", maxsplit=1)[-1] in err and "bug" not in err
    assert {file: file.read_bytes() for file in run.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--markdown", "kept.json"], "markdown: got 'kept.json', which is the baseline"),
        (["--junit", "../{here}/kept.json"], "which is the baseline"),
        (["--markdown", "page", "--junit", "./page"], "junit: got 'page', which is --markdown's file"),
        (["--junit", "run/manifest.json"], "which is a file of the run"),
    ],
)
def test_a_gate_does_not_overwrite_its_inputs(
    options: list[str], says: str, finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "kept.json").write_text(json.dumps(baseline_of(finished)))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    monkeypatch.chdir(tmp_path)
    given = [option.format(here=tmp_path.name) for option in options]
    code, out, err = called(monkeypatch, capsys, "gate", "run", "--baseline", "kept.json", *given)
    assert (code, out, err.count("\n")) == (2, "", 1) and says in err
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
