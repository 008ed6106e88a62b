"""Wrong input to a script in results/ or benchmarks/ gives one line on stderr and exit code 2, and nothing is written."""

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from leakbench.core.errors import InputError
from leakbench.core.scripts import existing, markdown_table, one_line
from leakbench.reproduce.choose import chosen, numbers

HOME = Path(__file__).parents[2]
SCRIPTS = {"tableak": "studies", "priority_importance": "studies"}
SCRIPTS |= {"peer_scorers": "benchmarks"}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], ModuleType]:
    """Import a copy of a script's folder, so that the real one cannot change."""

    def of(name: str) -> ModuleType:
        folder = tmp_path / SCRIPTS[name]
        shutil.copytree(HOME / SCRIPTS[name], folder, ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.syspath_prepend(str(HOME / SCRIPTS[name]))
        sys.modules.pop(name, None)
        script = importlib.import_module(name)
        if hasattr(script, "HERE"):
            monkeypatch.setattr(script, "HERE", folder)
        if hasattr(script, "RESULTS"):
            group = script.RESULTS.relative_to(HOME)
            shutil.copytree(script.RESULTS, tmp_path / group, dirs_exist_ok=True)
            monkeypatch.setattr(script, "RESULTS", tmp_path / group)
        monkeypatch.chdir(tmp_path)
        return script

    return of


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("tableak", "--only tabelak", "only: no row's name contains 'tabelak'"),
        ("tableak", "--only tabelak --page", "only: no row's name contains 'tabelak'"),
        ("tableak", "--data-dir nowhere", "--data-dir: no folder 'nowhere'"),
        ("priority_importance", "--data-dir nowhere", "--data-dir: no folder 'nowhere'"),
        ("peer_scorers", "nowhere --out .", "CHECKOUTS: no folder "),
        ("peer_scorers", ". --out .", "CHECKOUTS: no folder "),
        ("peer_scorers", ". --out nowhere", "--out: no folder 'nowhere'"),
    ],
)
def test_wrong_input_is_one_line(
    name: str, given: str, says: str, load: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """For every script; its files are unchanged, and no run begins."""
    script = load(name)
    before = contents(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{SCRIPTS[name]}/{name}.py", *given.split()])
    with pytest.raises(SystemExit) as ended:
        one_line(script.main)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"{name}.py: ") and says in err
    assert contents(tmp_path) == before


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert existing("--data-dir", tmp_path) == tmp_path
    with pytest.raises(InputError, match="--data-dir: no folder"):
        existing("--data-dir", tmp_path / "file")


def test_messages_of_several_lines_become_one(capsys: Any) -> None:
    def main() -> None:
        raise InputError("field: got this,\n  expected that")

    with pytest.raises(SystemExit, match="2"):
        one_line(main)
    assert capsys.readouterr().err.endswith(": field: got this, expected that\n")


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ("", ["a, B = 1", "a, B = 16", "a", "c"]),
        ("a", ["a"]),
        ("a, B", ["a, B = 1", "a, B = 16"]),
        ("a, B = 1", ["a, B = 1"]),
        ("B = 1", ["a, B = 1", "a, B = 16"]),
        ("a, B = 1, type-2@0", ["a, B = 1"]),
        ("a, B = 16, type-1", ["a, B = 16"]),
        ("a, type-0@0+3", ["a"]),
    ],
)
def test_rows_are_selected_by_the_name_of_their_cell(only: str, found: list[str]) -> None:
    """A cell's exact name selects only it, other text all cells that contain it, and a printed row its cell."""
    assert chosen(["a, B = 1", "a, B = 16", "a", "c"], only) == found


@pytest.mark.parametrize("only", ["a, B = 2", "a, B = 1, type-3", "a, B = 1, c", "c type-2", "type-2@0", "A"])
def test_a_row_without_a_cell_is_refused(only: str) -> None:
    with pytest.raises(InputError, match=f"^only: no row's name contains '{only}'"):
        chosen(["a, B = 1", "a, B = 16", "a", "c"], only)


def test_a_table_in_markdown() -> None:
    assert markdown_table(("a", "b"), [(1, "x"), (2, "y")]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2 | y |"
    assert markdown_table(["a"], []) == "| a |\n| --- |"


def test_numbers_are_formatted_by_their_fields() -> None:
    assert numbers(["victims=20", "dropout=0.5", "success=1"]) == {"victims": 20, "dropout": 0.5, "success": 1}
    for word in ("victims=true", "victims=1.0", "dropout=yes"):
        with pytest.raises(InputError, match=r"^set: "):
            numbers([word])


def test_tableak_measures_one_row_again(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """--only measures the named cell again and keeps all others; without it no existing cell is measured."""
    script = load("tableak")
    path = tmp_path / "results" / "attacks" / "tableak.csv"
    kept, asked = pd.read_csv(path), []
    mine = kept["row"] == "tableak, scaled, batch 8, 1 searches"
    new = kept[mine].drop(columns=["row", *script.KEYS, "seconds", "checksum"])
    new = new.assign(record_match=1 - new["record_match"])
    monkeypatch.setattr(script, "cell_of", lambda _, *cell: asked.append(cell))
    monkeypatch.setattr(script, "measure", lambda *_: new)
    monkeypatch.setattr(sys, "argv", ["tableak.py"])
    script.main()
    pd.testing.assert_frame_equal(pd.read_csv(path), kept)
    assert asked == []
    monkeypatch.setattr(sys, "argv", ["tableak.py", "--only", kept["row"][mine].iloc[0]])
    script.main()
    assert asked == [("tableak", 1, 8, None)]
    rows = pd.read_csv(path)
    assert (rows["row"] == kept["row"]).all()
    assert (rows.loc[mine, "record_match"] == 1 - kept.loc[mine, "record_match"]).all()
    pd.testing.assert_frame_equal(rows[~mine].drop(columns="checksum"), kept[~mine].drop(columns="checksum"))
