"""The page of TabLeak on Adult says what its rows say."""

import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(RESULTS))
    sys.modules.pop("tableak_page", None)
    import tableak_page  # noqa: PLC0415

    return tableak_page.page


def test_the_page_is_made_of_its_rows(page) -> None:
    """Written anew from the CSV it is the same, and a row that changes changes it."""
    grid = yaml.safe_load((RESULTS / "tableak.yaml").read_text())
    rows = pd.read_csv(RESULTS / "tableak.csv")
    kept = (RESULTS / "tableak.md").read_text()
    assert page(grid, rows) == kept
    assert page(grid, rows.assign(feature_accuracy=0.5)) != kept


def test_rows_are_of_the_grid() -> None:
    """Every cell that was measured is one of the grid, with its number of victims and of records, and shares are shares."""
    grid = yaml.safe_load((RESULTS / "tableak.yaml").read_text())
    rows = pd.read_csv(RESULTS / "tableak.csv")
    for (network, attack, batch), found in rows.groupby(["network", "attack", "batch"]):
        assert network in grid["networks"]
        assert attack in grid["attacks"]
        assert found["victim"].nunique() == grid["victims"][batch]
        assert len(found) == grid["victims"][batch] * batch
        assert found.filter(regex="accuracy|match").stack().between(0, 1).all()
