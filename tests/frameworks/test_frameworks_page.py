"""The page of NVFlare and pfl with its commands, among them a simulated job of NVFlare: pytest -m nvflare."""

import shutil
import sys

import pytest
from command_line import called
from documented import DOCS, follow

pytest.importorskip("nvflare", reason="no nvflare; pip install 'leakbench[nvflare]'")
pytest.importorskip("pfl.privacy", reason="no pfl; docs/frameworks.md has the command")


@pytest.mark.nvflare
@pytest.mark.pfl
@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_page_print_its_output(tmp_path, monkeypatch, capsys):
    shutil.copytree(DOCS.parent / "examples" / "nvflare", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = follow("frameworks.md", lambda *arguments: called(monkeypatch, capsys, *arguments))
    assert [command.split()[:2] for command in done] == [
        ["leakbench", "run"],
        ["leakbench", "audit"],
        ["python", "job.py"],
        ["leakbench", "attack"],
        ["leakbench", "audit"],
        ["leakbench", "epsilon"],
        ["leakbench", "audit"],
    ]
