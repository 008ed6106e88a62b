"""The functions of Python: fields by name, results as tables, the same numbers as the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pandas as pd
import pytest
from command_line import called

import leakbench
from leakbench.cell.fields import FIELDS
from leakbench.cell.request import Fields, Request
from leakbench.errors import InputError

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "attack": "cpl",
    "victims": 2,
    "iterations": 3,
    "candidates": 5,
    "train_rounds": 1,
    "clients": 4,
    "clients_per_round": 2,
    "local_iterations": 1,
    "taps": ("type-2",),
    "networks": 1,
}


def options(fields: dict[str, Any]) -> list[str]:
    """Return the options of the command line for some fields."""
    texts = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in fields.items()}
    return [word for name, text in texts.items() for word in (f"--{name.replace('_', '-')}", text)]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> leakbench.Result:
    return leakbench.run(out=tmp_path_factory.mktemp("api") / "run", quiet=True, **SMALL)


def test_the_public_names_are_listed_and_torch_waits() -> None:
    assert dir(leakbench) == sorted(leakbench.__all__)
    code = "import sys, leakbench; dir(leakbench); assert 'torch' not in sys.modules; leakbench.run; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_typed_fields_are_those_of_a_request() -> None:
    assert get_type_hints(Fields) == get_type_hints(Request)
    assert set(FIELDS) == set(Fields.__annotations__)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"victms": 3}, "unknown field 'victms'; did you mean 'victims'?"),
        ({"defence": "none"}, "unknown field 'defence'; did you mean 'defense'?"),
        ({"victims": "3"}, "victims: input should be a valid integer, got '3'"),
        ({"dataset": "digit"}, "did you mean 'digits'?"),
        ({"log": "tensorbord"}, "log: got 'tensorbord'; did you mean 'tensorboard'?"),
    ],
)
def test_a_wrong_field_is_one_line_with_the_nearest_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as found:
        leakbench.run(**fields)
    assert message in str(found.value) and "\n" not in str(found.value)


def test_a_result_is_what_its_folder_holds(result: leakbench.Result) -> None:
    opened = leakbench.Result.open(result.folder)
    assert str(opened) == str(result) and opened.summary == result.summary
    pd.testing.assert_frame_equal(opened.rows, leakbench.read(result.folder))
    assert repr(opened) == f"<Result of {str(result.folder)!r}: {result.verdict}>"


def test_the_table_has_the_core_columns(result: leakbench.Result) -> None:
    table = result.table()
    assert list(table.index) == ["type-2"] and table.loc["type-2", "victims"] == 2
    assert table.loc["type-2", "asr"] == result.rows["success"].mean()
    assert table.loc["type-2", "verdict"] == result.verdict == result.verdicts["type-2"]


def test_pictures_are_in_the_order_of_the_rows(result: leakbench.Result) -> None:
    found = result.pictures["type-2"]
    assert found.truth.shape == found.reconstruction.shape == (2, 1, 1, 8, 8)
    rmse = ((found.truth - found.reconstruction.clip(0, 1)) ** 2).mean((1, 2, 3, 4)) ** 0.5
    assert rmse == pytest.approx(result.rows["rmse"].to_numpy(), abs=1e-5)
    without = leakbench.run(out=result.folder.parent / "without", quiet=True, pictures=False, **SMALL)
    assert without.pictures == {}


def test_python_and_the_command_line_give_the_same_rows(
    result: leakbench.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = tmp_path / "run"
    code, out, _ = called(monkeypatch, capsys, "run", *options(SMALL), "--quiet", "--out", str(place))
    assert code == 0
    monkeypatch.setenv("COLUMNS", "120")
    assert out.startswith(str(result))
    mine, theirs = (leakbench.read(folder).drop(columns="run") for folder in (result.folder, place))
    pd.testing.assert_frame_equal(mine, theirs)
    other = leakbench.run(out=tmp_path / "other", quiet=True, **{**SMALL, "seed": 1})
    assert other.rows["rmse"].tolist() != mine["rmse"].tolist()


def test_the_folder_is_named_by_its_content(
    result: leakbench.Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = leakbench.run(quiet=True, **SMALL)
    assert found.folder.parent == Path("runs") and found.folder.name.startswith("digits-none-cpl-")
    assert found.rows.drop(columns="run").equals(result.rows.drop(columns="run"))
    assert found.finished.manifest["command"].startswith("leakbench run --attack cpl --dataset digits")
