"""The pages of what leaks say what their rows say."""

import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import yaml

from leakbench.cell import Request
from leakbench.recipe import names

RESULTS = Path(__file__).parent.parent / "results"
PAGES = {
    name: page
    for file in ("leakage_tables.yaml", "strongest_attacker.yaml", "aware.yaml")
    for name, page in yaml.safe_load((RESULTS / file).read_text()).items()
}
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
    rows = pd.read_csv(RESULTS / f"{name}.csv")
    rows = rows.set_index("cell")
    cells = {row: (given, claim) for row, given, claim in tables.cells(PAGES[name])}
    assert list(dict.fromkeys(rows.index)) == [row for row in cells if row in rows.index]
    for row, found in rows.iterrows():
        given, claim = cells[row]
        assert (found["dataset"], found["attack"]) == (given["dataset"], given["attack"])
        if given["attack"] == "identification":
            assert pd.isna(found["asr"])
        else:
            assert found["asr_low"] <= found["asr"] <= found["asr_high"]
        assert 0 <= found["identified"] <= 1
        assert all(found[f"claimed_{key}"] == value for key, value in claim.items())


def test_every_cell_of_every_page_can_be_asked_for(tables) -> None:
    for page in PAGES.values():
        for _, given, claim in tables.cells(page):
            lists = {key: tuple(map(str, value)) for key, value in given.items() if isinstance(value, list)}
            request = Request(**{**given, **lists})
            assert request.attack in names("attacks")
            assert request.defense in names("defenses") or Path(request.defense).is_file()
            assert set(claim) <= {"asr", "rmse", "iterations"}


def test_the_null_is_taken_off(tables) -> None:
    """ASR .6 above a null of .2: .5."""
    row = pd.read_csv(RESULTS / f"{WRITTEN[0]}.csv").head(1).assign(asr=0.6, null_asr=0.2)
    assert "| 0.20 | 0.50 |" in tables.page_of(PAGES[WRITTEN[0]], row)
