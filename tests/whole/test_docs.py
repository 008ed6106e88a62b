"""The pages of docs/: commands print what the pages show, generated blocks are current, links lead to files and headings."""

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import blocks
import links
import notebooks
import pytest
import recipes
from command_line import called
from documented import alike, follow, steps, unlike
from plain import hard_phrases

from leakbench.attack import Attack
from leakbench.core.recipe import _own_parts, names, resolve
from leakbench.defense import Defense
from leakbench.overview import hash_of, overview
from leakbench.reproduce.reproduce import BEGIN, END

pytestmark = pytest.mark.usefixtures("with_pages")

HOME = Path(__file__).parents[2]
LINKED = [
    HOME / "README.md",
    HOME / "CHANGELOG.md",
    *sorted((HOME / "docs").glob("*.md")),
    *sorted((HOME / "results").rglob("*.md")),
]

WRITTEN = [page for page in (*sorted((HOME / "docs").glob("*.md")), HOME / "SECURITY.md") if page.name != "index.md"]
PARTS = re.MULTILINE | re.DOTALL


@pytest.fixture
def leakbench(monkeypatch, capsys, tmp_path):
    """Call the command line in a separate folder, at the width of the pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


@pytest.mark.docs
def test_the_tutorial_prints_what_it_shows(leakbench):
    done = follow("tutorial.md", leakbench)
    verbs = {command.split()[1] for command in done if command.startswith("leakbench ")}
    assert verbs == {"run", "epsilon", "compare", "baseline", "gate"}


@pytest.mark.docs
def test_the_additions_of_the_page_work_as_written(leakbench, monkeypatch, tmp_path):
    """Entry points find the parts; pip would read them from pyproject.toml."""
    page = (HOME / "docs" / "adding.md").read_text(encoding="utf-8")
    project = tomllib.loads(re.search(r'```toml title="pyproject.toml"\n(.*?)```', page, re.DOTALL)[1])
    points = project["project"]["entry-points"]["leakbench.parts"]
    installed = tmp_path / "my_parts-0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 0.1\n", encoding="utf-8")
    lines = "".join(f"{name} = {where}\n" for name, where in points.items())
    (installed / "entry_points.txt").write_text(f"[leakbench.parts]\n{lines}", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = [where.partition(":")[0] for where in points.values()]
    assert project["tool"]["setuptools"]["py-modules"] == list(
        dict.fromkeys(modules)
    )  # Else pip installs none of them.
    written = {step.name: step.text for step in steps("adding.md")}
    for module in modules:
        (tmp_path / f"{module}.py").write_text(written[f"{module}.py"], encoding="utf-8")
    _own_parts.cache_clear()
    try:
        assert len(follow("adding.md", leakbench)) == 16
    finally:
        _own_parts.cache_clear()
        for module in modules:
            sys.modules.pop(module, None)


@pytest.mark.parametrize("count", [1, 4])
def test_the_package_of_the_page_installs_the_modules_that_are_written(count, tmp_path):
    """The reader installs it after each section, while run folders and recipes lie next to the modules."""
    written = {step.name: step.text for step in steps("adding.md")}
    project = tomllib.loads(written["pyproject.toml"])
    modules = project["tool"]["setuptools"]["py-modules"]
    points = project["project"]["entry-points"]["leakbench.parts"]
    assert list(dict.fromkeys(where.partition(":")[0] for where in points.values())) == modules and len(modules) == 4
    for name in ("pyproject.toml", "stripes.py", *(f"{module}.py" for module in modules[:count])):
        (tmp_path / name).write_text(written[name], encoding="utf-8")
    (tmp_path / "runs").mkdir()
    line = "from setuptools.build_meta import build_wheel; build_wheel('dist')"  # As `pip install .` does.
    subprocess.run([sys.executable, "-c", line], cwd=tmp_path, capture_output=True, check=True)
    with zipfile.ZipFile(tmp_path / "dist" / "my_parts-0.1-py3-none-any.whl") as wheel:
        files = wheel.namelist()
        listed = wheel.read("my_parts-0.1.dist-info/entry_points.txt").decode("utf-8")
    assert [name for name in files if "/" not in name] == sorted(f"{module}.py" for module in modules[:count])
    assert all(f"{name} = {where}" in listed for name, where in points.items())


@pytest.mark.parametrize("page", sorted((HOME / "docs").glob("*.md")), ids=lambda page: page.name)
def test_blocks_are_what_the_program_and_the_results_say(page):
    text = page.read_text(encoding="utf-8")
    assert blocks.renewed(text) == text, "python docs/hooks/blocks.py"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_prose_is_plain_and_fits(page):
    """Without code, tables and the blocks that the program writes."""
    without = re.sub(
        r"^[ ]*```.*?^[ ]*```$|^<!-- \w+ -->.*?^<!-- end -->$|^\|[^\n]*$", "", page.read_text("utf-8"), flags=PARTS
    )
    assert hard_phrases(without) == []
    if page.name == "answers.md":  # A script writes it: one answer per line.
        return
    lines = [line for line in without.splitlines() if not line.startswith(("    ", "![", "<img"))]
    assert [line for line in lines if len(line) > 100] == []


def test_blocks_show_their_source():
    assert "Wilson's" in blocks.BLOCKS["columns"]()
    assert "| [Table 3 of Fed-alphaCDP" in blocks.BLOCKS["reproduced"]()
    counts = re.compile(r"\d+ computed epsilons and rounds \(.*\) and \d+ measured numbers? are contradicted")
    assert counts.match(blocks.BLOCKS["contradicted"]())
    assert all(f"fed_alpha_cdp_table_{n}.md" in blocks.BLOCKS["epsilons"]() for n in ("6", "7", "8_rounds"))
    assert blocks.renewed("<!-- letters -->\nold\n<!-- end -->").count("**H**") == 1
    assert (
        blocks.renewed("<!-- setting -->\nof another page\n<!-- end -->")
        == "<!-- setting -->\nof another page\n<!-- end -->"
    )


def test_the_counts_of_verdicts_are_those_of_the_index():
    """The pages give one count, the rows the other."""
    index = (HOME / "results" / "README.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    of_rows = {
        line.split(" | ")[0].replace("](", "](../results/"): line.split(" | ")[1:7]
        for line in index.splitlines()
        if line[:3] in ("| [", "| a")
    }
    of_pages = {
        line.split(" | ")[0]: line.rstrip(" |").split(" | ")[1:7]
        for line in blocks.BLOCKS["verdicts"]().splitlines()
        if line[:3] in ("| [", "| a")
    }
    assert of_pages == of_rows and len(of_rows) > 10


def test_the_section_on_accuracy_has_no_typed_measurements():
    """Rows are measured again; the section links to their pages instead."""
    page = (HOME / "docs" / "papers.md").read_text(encoding="utf-8")
    section = page.partition("\n## Accuracy\n")[2].partition("\n## ")[0]
    assert "fed_alpha_cdp_table_4.md" in section
    assert not re.search(r"\.\d|contradicted|reproduced|undecided", section)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(HOME).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page):
    text = "".join(piece for n, piece in enumerate(links.CODE.split(page.read_text(encoding="utf-8"))) if n % 2 == 0)
    for link, anchor in links.LINK.findall(text):
        target = (page.parent / link).resolve()
        assert target.exists(), link
        assert not anchor or anchor.removeprefix("#") in headings(target), f"{link}{anchor}"


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub and MkDocs generate for a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("threats.md", "../attacks/loki.yaml", "attacks/loki.md"),
        ("threats.md", "../attacks/", "attacks/index.md"),
        ("measures.md", "../leakbench/measure/metrics.py", "api/leakbench.measure.md#leakbench.measure.metrics"),
        ("results/README.md", "../docs/strongest-attacker.md", "../strongest-attacker.md"),
        ("results/README.md", "../studies/", "../studies/index.md"),
        ("papers.md", "../results/history.md#accuracy", "results/history.md#accuracy"),
        ("changelog.md", "docs/index.md", "index.md"),
    ],
)
def test_links_of_a_checkout_become_links_of_the_site(page, link, expected):
    assert links.within_the_site(f"[x]({link})", page) == f"[x]({expected})"
    assert links.within_the_site(f"`[x]({link})`", page) == f"`[x]({link})`"


@pytest.mark.docs
def test_every_recipe_has_a_page_with_its_parts_and_its_text():
    pages = dict(recipes.pages())
    for kind in ("defenses", "attacks"):
        for name in names(kind):
            text = pages[f"{kind}/{name}.md"]
            assert (HOME / kind / f"{name}.yaml").read_text(encoding="utf-8").strip() in text
            assert f"[`{name}`]({name}.md)" in pages[f"{kind}/index.md"]
    page = pages["defenses/fed_cdp_valid.md"]
    assert "`clip_whole`" in page and "norm = `4.0`" in page and "| 0.823 | 0.576 | 0.576 | 0.576 | none |" in page
    assert "servers_imprint.md" in pages["attacks/imprint.md"]


@pytest.mark.parametrize("name", names("attacks"))
def test_the_command_of_an_attack_has_the_options_it_needs(name):
    attack = resolve("attacks", Attack, name)[1]
    command = recipes.command_of(name, attack)
    assert ("--leak-batch 1" in command) == attack.needs.alone
    assert ("--dataset cancer" in command) == attack.needs.table
    assert ("--dataset reviews" in command) == attack.needs.text


def test_every_defense_has_its_recorded_epsilons():
    """A recipe's text may change without them; its parts may not."""
    assert [name for name, _, row in overview() if row is None] == [], "`python studies/defenses.py` records them"
    defense = resolve("defenses", Defense, "fed_cdp")[1]
    assert hash_of(dataclasses.replace(defense, note="other words", printed_by="me")) == hash_of(defense)
    assert hash_of(dataclasses.replace(defense, batches="poisson")) != hash_of(defense)


def test_lines_are_alike_up_to_rounding_and_in_order():
    assert alike(" type-1   0.30 [0.11, 0.60]  16.6", " type-1  0.30 [0.12, 0.60] 17.0 ")
    assert not alike("type-1 0.30", "type-1 0.60")
    assert not alike("type-1 0.30", "type-2 0.30")
    assert unlike("a\n...\nc\n", "a\nb\nc\n") == ""
    assert unlike("a\nc\n", "a\nb\nc\n") == "c"
    assert unlike("c\n...\na\n", "a\nb\nc\n") == "c"
    assert "goes on" in unlike("a\n", "a\nb\n")


@pytest.mark.docs
def test_external_updates_and_probes_work_as_written(leakbench):
    sys.modules.pop("mine", None)  # Several pages have a file mine.py.
    assert len(follow("own_updates.md", leakbench)) == 2
    sys.modules.pop("mine", None)
    assert len(follow("probe.md", leakbench)) == 1


def test_the_page_gives_the_size_of_the_malformed_corpus():
    from tests.bad.corpus import KINDS  # noqa: PLC0415
    from tests.reliability.readers import READERS  # noqa: PLC0415

    page, security = (
        " ".join((HOME / name).read_text(encoding="utf-8").split()) for name in ("docs/reliability.md", "SECURITY.md")
    )
    number = sum(map(len, KINDS.values()))
    assert f"holds {number} malformed inputs: " in page and f"fuzzes {len(READERS)} readers" in page
    assert all(f"{len(cases)} {kind}" in page for kind, cases in KINDS.items())
    assert all(len(cases) >= 15 for cases in KINDS.values()) and number >= 200
    assert f"holds {number} malformed inputs" in security


@pytest.mark.docs
@pytest.mark.parametrize("page", notebooks.notebooks(), ids=lambda page: page.name)
def test_a_notebook_prints_what_it_shows(page, tmp_path):
    shown = notebooks.texts(json.loads(page.read_text(encoding="utf-8")))
    printed = notebooks.texts(notebooks.executed(page, tmp_path))
    assert len(shown) == len(printed) >= 4 and sum(map(bool, shown)) >= 3, "python docs/hooks/notebooks.py"
    assert [unlike(one, other) for one, other in zip(shown, printed, strict=True)] == [""] * len(shown)
