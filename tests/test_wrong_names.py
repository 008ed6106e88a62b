"""A wrong name of a recipe is answered at once, in one line."""

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


@pytest.mark.parametrize(
    ("option", "name", "meant"),
    [("--defense", "fed_cpd", "fed_cdp"), ("--dataset", "mnits", "mnist"), ("--attack", "autolaek", "autoleak")],
)
def test_a_typo_in_a_name_is_answered_without_torch(option: str, name: str, meant: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", HOOK, "run", option, name], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (2, "")
    said = f"leakbench: {option[2:]}: unknown name {name!r}; did you mean {meant!r}? (or a path that ends in .yaml)\n"
    assert found.stderr == said


def test_show_prints_one_error_for_a_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error of the kind of recipe that the file is."""
    path = tmp_path / "bad.yaml"
    path.write_text("title: mine\ncite: none\nunit: exampel\n")
    code, _, err = called(monkeypatch, capsys, "show", str(path))
    assert code == 2 and err.count("bad.yaml") == 1
    assert "unit" in err and "as one of the" not in err
