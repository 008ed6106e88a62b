"""The pages of what leaks say what their rows say."""

import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import yaml

from leakbench.cell import Request
from leakbench.defense import Defense
from leakbench.recipe import load, names

RESULTS = Path(__file__).parent.parent / "results"
FILES = ("leakage_tables.yaml", "aware.yaml")
PAGES = {name: page for file in FILES for name, page in yaml.safe_load((RESULTS / file).read_text()).items()}
OWN = sorted((RESULTS / "recipes").glob("*.yaml"))
WRITTEN = [name for name in PAGES if (RESULTS / f"{name}.csv").exists()]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(RESULTS))
    sys.modules.pop("leakage_tables", None)
    import leakage_tables  # noqa: PLC0415

    return leakage_tables


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_made_of_its_rows(name, tables) -> None:
    """Written anew from the CSV it is the same, and a row that changes changes it."""
    rows, kept = pd.read_csv(RESULTS / f"{name}.csv"), (RESULTS / f"{name}.md").read_text()
    assert tables.page_of(PAGES[name], rows) == kept
    assert tables.page_of(PAGES[name], rows.assign(asr=0.123)) != kept


@pytest.mark.parametrize("name", WRITTEN)
def test_rows_are_measurements_of_cells_of_the_page(name, tables) -> None:
    rows = pd.read_csv(RESULTS / f"{name}.csv").set_index("row")
    cells = {row: (given, claim) for row, given, claim in tables.cells(PAGES[name])}
    assert list(rows.index) == [row for row in cells if row in rows.index]
    for row, found in rows.iterrows():
        given, claim = cells[row]
        assert (found["dataset"], found["attack"]) == (given["dataset"], given["attack"])
        assert found["asr_low"] <= found["asr"] <= found["asr_high"]
        assert all(found[f"claimed_{key}"] == value for key, value in claim.items())


def test_every_page_of_every_file_is_found(tables) -> None:
    assert tables.pages() == PAGES
    assert tables.FILES == FILES


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_a_recipe_of_the_pages_is_a_defense(path: Path) -> None:
    assert load(Defense, path).title


def test_each_defense_is_attacked_by_who_knows_it_and_who_does_not(tables) -> None:
    """Every one that a page names is in the catalog or beside the pages, and what differs within a pair is only what was told."""
    told: dict[str, list[str]] = {}
    for _, given, _ in tables.cells(PAGES["aware"]):
        assert given["defense"] in {*names("defenses"), *(f"results/recipes/{path.name}" for path in OWN)}
        told.setdefault(str({**given, "knows": ""}), []).append(given["knows"])
    assert len(told) == 16
    assert all(sorted(pair) == ["defense", "oblivious"] for pair in told.values())


def test_every_cell_of_every_page_can_be_asked_for(tables) -> None:
    for page in PAGES.values():
        for _, given, claim in tables.cells(page):
            lists = {key: tuple(map(str, value)) for key, value in given.items() if isinstance(value, list)}
            assert Request(**{**given, **lists}).attack in names("attacks")
            assert set(claim) <= {"asr", "rmse", "iterations"}


def test_the_null_is_taken_off(tables) -> None:
    """ASR .6 above a null of .2: .5."""
    row = pd.read_csv(RESULTS / f"{WRITTEN[0]}.csv").head(1).assign(asr=0.6, null_asr=0.2)
    assert "| 0.20 | 0.50 |" in tables.page_of(PAGES[WRITTEN[0]], row)
