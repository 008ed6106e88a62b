"""The page of TabLeak on Adult matches its rows."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.published_files import STUDIES, published_file


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    sys.modules.pop("tableak_page", None)
    import tableak_page  # noqa: PLC0415

    return tableak_page


@pytest.fixture
def grid() -> dict[str, Any]:
    return yaml.safe_load((STUDIES / "recipes" / "tableak_grid.yaml").read_text())


@pytest.fixture
def rows() -> pd.DataFrame:
    return pd.read_csv(published_file("tableak.csv"))


def table_under(page: str, head: str) -> list[list[str]]:
    """Return the cells of the first table after a heading."""
    lines = page.split(head, 1)[1].split("| --- |\n", 1)[1].splitlines()
    ends = next((i for i, text in enumerate(lines) if not text.startswith("|")), len(lines))
    return [[cell.strip() for cell in text.strip("|").split("|")] for text in lines[:ends]]


def test_the_page_is_rendered_from_its_rows(made: ModuleType, grid: dict[str, Any], rows: pd.DataFrame) -> None:
    """Rendered again from the CSV the page is the same, and a changed row changes it."""
    kept = (published_file("tableak.md")).read_text()
    assert made.page(grid, rows) == kept
    assert made.page(grid, rows.assign(feature_accuracy=0.5)) != kept


def test_rows_belong_to_the_grid(grid: dict[str, Any], rows: pd.DataFrame) -> None:
    """Exactly the cells of the grid are measured, with their numbers of victims and records; shares are between 0 and 1."""
    keys = ["network", "attack", "searches", "batch"]
    cells = [
        (n, a, s, b)
        for n in grid["networks"]
        for a in grid["attacks"]
        for s in grid["searches"]
        for b in grid["victims"]
    ]
    assert set(rows[keys].itertuples(index=False, name=None)) == set(cells)
    for (*_, batch), found in rows.groupby(keys):
        assert found["victim"].nunique() == grid["victims"][batch]
        assert len(found) == grid["victims"][batch] * batch
        assert found.filter(regex="accuracy|match").stack().between(0, 1).all()


def test_all_rows_of_a_batch_size_use_the_same_records(rows: pd.DataFrame) -> None:
    """For any network, attack and number of searches: the same victims, with the same two guesses."""
    known = ["victim", "example", *rows.filter(regex="^(random|null)_").columns]
    for _, of_size in rows.groupby("batch"):
        first, *others = [
            found[known].reset_index(drop=True) for _, found in of_size.groupby(["network", "attack", "searches"])
        ]
        for other in others:
            pd.testing.assert_frame_equal(other, first)


def test_attacks_are_compared_at_the_same_number_of_searches(
    made: ModuleType, grid: dict[str, Any], rows: pd.DataFrame
) -> None:
    """Two attacks are compared if they have the same number of searches; the printed numbers are marked as different."""
    page = made.page(grid, rows)
    equal = table_under(page, "## Attack against attack")
    assert {(line[3], line[5]) for line in equal} == {(str(s), str(s)) for s in grid["searches"]}
    unequal = table_under(page, "have unequal budgets")
    assert [(line[2], line[3], line[4], line[5]) for line in unequal] == [
        ("tableak", "15", "inverting_gradients_table", "1")
    ]
    means = {line[3]: line[7] for line in equal if (line[0], line[1], line[2]) == ("standardized", "32", "tableak")}
    assert f"{means['1']} (1 each), {means['15']} (15 each):" in page
    for line in table_under(page, "*above random*"):
        assert int(line[3]) == grid["victims"][int(line[1])]


@pytest.mark.slow
def test_a_record_without_a_reconstruction_counts_as_wrong(
    made: ModuleType, grid: dict[str, Any], rows: pd.DataFrame
) -> None:
    """Failures stay in every mean as 0: one record of each batch, and all of a batch; the rest of the page does not change."""
    measures = ["feature_accuracy", "record_match"]
    for failed in (~rows.duplicated([*made.KEYS, "victim"]), rows["victim"] == 1):
        missing, wrong = rows.copy(), rows.copy()
        missing.loc[failed, measures] = np.nan
        wrong.loc[failed, measures] = 0.0
        assert made.page(grid, missing) == made.page(grid, wrong) != made.page(grid, rows)


def test_the_mean_and_deviation_of_batches_with_a_failure(made: ModuleType) -> None:
    """Two batches of two: one with all right, one with half of a record right and a failure: .625 +- .5303."""
    rows = pd.DataFrame({"victim": [0, 0, 1, 1], "feature_accuracy": [1.0, 1.0, 0.5, np.nan]})
    assert made.batches(rows, "feature_accuracy").tolist() == [100.0, 25.0]
    assert made.share(rows, "feature_accuracy") == "62.5 +- 53.0"


def test_p_is_from_students_test_over_batches(made: ModuleType) -> None:
    """Differences 1, 2, 3: t = 2 sqrt(3) with two degrees of freedom; none if all are equal or there is one batch."""
    t = 2 * 3**0.5
    assert made.p_of(pd.Series([1.0, 2.0, 3.0])) == f"{1 - t / (2 + t * t) ** 0.5:.3f}"
    assert made.p_of(pd.Series([10.0, 10.01, 9.99, 10.0])) == "< 0.001"
    assert made.p_of(pd.Series([1.0, 1.0])) == "n/a: all alike"
    assert made.p_of(pd.Series([1.0])) == "n/a: one batch"
