"""The first page, the Dockerfile and the landing page: their sizes, their commands, and that the output matches the page."""

import json
import re
from pathlib import Path

import pytest
import yaml
from command_line import called
from documented import BLOCK, follow, unlike
from PIL import Image

from leakbench import __version__

HOME = Path(__file__).parents[2]
README = (HOME / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """Return the two commands of the first page, which `.ci/run` runs literally."""
    return [line for line in README.splitlines() if line.startswith("python3 -m venv ")]


def test_the_first_page_is_short():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []


def test_the_first_page_has_two_commands_and_the_second_runs_the_tests():
    first, second = commands()
    assert first.endswith(".venv/bin/leakbench run") and second.endswith("-m pytest")


def test_the_dockerfile_runs_the_commands_of_the_first_page_without_root():
    dockerfile = (HOME / "Dockerfile").read_text(encoding="utf-8")
    runs = [line.removeprefix("RUN ") for line in dockerfile.splitlines() if line.startswith("RUN python3")]
    assert sorted(runs) == sorted(commands())
    assert dockerfile.index("USER user") < dockerfile.index("RUN python3")
    assert "FROM python:3.12-slim" in dockerfile


def test_the_image_ignores_what_git_ignores():
    """Run folders contain private data, and an environment of this machine would not work in the image."""
    ignored = (HOME / ".gitignore").read_text(encoding="utf-8").split()
    left_out = (HOME / ".dockerignore").read_text(encoding="utf-8").split()
    assert {name.rstrip("/").removeprefix("**/") for name in ignored} <= {n.removeprefix("**/") for n in left_out}


def test_no_page_installs_from_an_index():
    """Extras such as `leakbench[flower]` add to an existing installation."""
    pages = [HOME / "README.md", *(HOME / "docs").glob("*.md"), *(HOME / "examples").rglob("*.yml")]
    found = {page.name for page in pages if re.search(r"pip install leakbench", page.read_text(encoding="utf-8"))}
    assert found == set()


def test_the_citation_is_that_of_the_first_page():
    citation = yaml.safe_load((HOME / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__ and f"version = {{{__version__}}}" in README
    assert citation["title"] in README and citation["license"] == "Apache-2.0"
    assert citation["authors"][0]["name"] in README


def test_the_figure_of_the_first_page_is_small_and_wide():
    path = HOME / "docs" / "front.png"
    assert path.stat().st_size < 200_000
    with Image.open(path) as picture:
        width, height = picture.size
    assert width > 1000 and width > 2 * height


def test_the_recipes_of_the_first_page_exist(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    recipes = [text for language, _, text in BLOCK.findall(README) if language == "yaml"]
    assert len(recipes) == 2 and all(len(text.splitlines()) <= 10 for text in recipes)
    for number, text in enumerate(recipes):
        Path(f"mine{number}.yaml").write_text(text, encoding="utf-8")
        code, out, err = called(monkeypatch, capsys, "show", f"./mine{number}.yaml")
        assert code == 0 and yaml.safe_load(text)["title"] in out, err


@pytest.mark.docs
def test_the_lines_of_python_run_as_written(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    ((_, _, text),) = [block for block in BLOCK.findall(README) if block[0] == "python"]
    assert len(text.splitlines()) <= 6
    exec(compile(text, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.match(r"[A-Z ]+: ", printed) and "leakage point" in printed
    assert Path("figure.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.docs
def test_the_first_run_prints_the_output_of_the_first_page(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    ((_, _, text),) = [block for block in BLOCK.findall(README) if block[0] == "console"]
    command, _, shown = text.removeprefix("$ ").partition("\n")
    assert command == "leakbench run" and len(shown.splitlines()) > 5
    code, printed, said = called(monkeypatch, capsys, "run", "--quiet")
    assert code == 0, said
    missing = unlike(shown, printed)
    assert not missing, f"README.md: `{command}` does not print\n{missing}\nbut\n{printed}"
    summary = json.loads((next(Path("runs").iterdir()) / "manifest.json").read_text(encoding="utf-8"))["summary"]
    assert summary["taps"]["type-2"]["verdict"] == "reconstructs"


@pytest.mark.docs
@pytest.mark.parametrize(("page", "number"), [("auditing.md", 10), ("servers.md", 2), ("texts.md", 6)])
def test_the_commands_of_a_page_print_its_output(page, number, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert len(follow(page, lambda *arguments: called(monkeypatch, capsys, *arguments))) == number
