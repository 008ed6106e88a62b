"""The page of fishing matches its rows, and the rows confirm the expected results."""

import sys
from types import ModuleType

import pandas as pd
import pytest

from tests.published_files import STUDIES, published_file


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    sys.modules.pop("fishing_page", None)
    import fishing_page  # noqa: PLC0415

    return fishing_page


@pytest.fixture
def rows() -> pd.DataFrame:
    return pd.read_csv(published_file("fishing.csv"))


def test_the_page_is_rendered_from_its_rows(made: ModuleType, rows: pd.DataFrame) -> None:
    """Rendered again from the CSV the page is the same, and a changed row changes it."""
    kept = (published_file("fishing.md")).read_text()
    assert made.page(rows) == kept
    assert made.page(rows.assign(isolated=0.5)) != kept
    assert made.page(rows.assign(others=1)) != kept
    assert set(rows["row"]) <= {made.name_of(*row) for row in made.ROWS}


def test_the_gradient_of_a_single_caught_example_is_exact(made: ModuleType, rows: pd.DataFrame) -> None:
    """For every batch with exactly one caught example; a batch with another catch has no cosine."""
    one = made.alone(rows)
    assert (rows.loc[one, "isolated"] >= 0.999).all()
    assert rows.loc[~one, "isolated"].isna().all()
    assert rows.loc[rows["row"].str.endswith("class, unique"), "caught"].eq(1).all()


def test_the_rate_of_single_catches_equals_the_expected_one(made: ModuleType, rows: pd.DataFrame) -> None:
    """For a class as drawn, within four standard errors of n q (1 - q)^(n - 1)."""
    for _, found in rows[rows["row"].str.endswith("class, drawn")].groupby("row"):
        expected = found["chance"].iloc[0]
        error = (expected * (1 - expected) / len(found)) ** 0.5
        assert abs(made.alone(found).mean() - expected) < 4 * error


def test_a_line_equals_numbers_by_hand(made: ModuleType) -> None:
    """Four batches: one without a catch, two with one of the class, one with an additional example of another class."""
    rows = pd.DataFrame(
        {
            "caught": [0, 1, 1, 1],
            "others": [0, 0, 0, 1],
            "chance": 0.25,
            "honest": [float("nan"), 0.2, 0.4, float("nan")],
            "leaked": [float("nan"), 0.9, 0.8, float("nan")],
            "isolated": [float("nan"), 1.0, 0.9995, float("nan")],
            "eta": 0.1,
            "rmse": [float("nan"), 0.05, 0.25, float("nan")],
        }
    )
    found = made.line(("cnn", "class", "drawn"), rows)
    counts = (4, "0.25", "0.50", "0.25", "0.300", "0.80000", "0.99950", 2, "0.1500", "0.50")
    assert found == ("cnn", "class", "drawn", *counts)
