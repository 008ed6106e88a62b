"""A wrong recipe name is refused at once, in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import called

HOOK = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise AssertionError("torch is imported")
sys.meta_path.insert(0, NoTorch())
sys.argv = ["leakbench", *sys.argv[1:]]
from leakbench.cli import main
main()
"""


def without_torch(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Call the command in a process in which importing torch fails."""
    command = [sys.executable, "-c", HOOK, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("option", "name", "meant"),
    [("--defense", "fed_cpd", "fed_cdp"), ("--dataset", "mnits", "mnist"), ("--attack", "autolaek", "autoleak")],
)
def test_a_typo_in_a_name_is_refused_without_torch(option: str, name: str, meant: str) -> None:
    found = without_torch("run", option, name)
    assert (found.returncode, found.stdout) == (2, "")
    folder = ", or folder:PATH" if option == "--dataset" else ""
    said = f"leakbench: {option[2:]}: unknown name {name!r}; did you mean {meant!r}? (or a path that ends in .yaml{folder})\n"
    assert found.stderr == said


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "epsilon --defense fed_cpd",
        "audit --defense fed_cpd",
        "attack --model mine:build --shape 3 --classes 2 --defense fed_cpd",
        "flower . --model mine:build --shape 3 --classes 2 --defense fed_cpd",
        "card fed_cpd faces",
        "frontier --dataset faces --defenses none,fed_cpd",
        "show fed_cpd",
        "sweep grid.yaml",
        "data fetch fed_cpd",
        "data verify fed_cpd",
    ],
)
def test_every_command_refuses_a_typo_without_torch(words: str, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("each:\n  defense: [none, fed_cpd]\n", encoding="utf-8")
    found = without_torch(*words.split(), folder=tmp_path)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert "unknown name 'fed_cpd'; did you mean" in found.stderr or "data" in words.split()
    assert "unknown name 'fed_cpd'" in found.stderr


def test_show_prints_one_error_for_a_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error of the file's kind of recipe."""
    path = tmp_path / "bad.yaml"
    path.write_text("title: mine\ncite: none\nunit: exampel\n")
    code, _, err = called(monkeypatch, capsys, "show", str(path))
    assert code == 2 and err.count("bad.yaml") == 1
    assert "unit" in err and "as one of the" not in err
