"""results/checks/mechanisms.md equals the output of studies/mechanisms.py, and its valid epsilons are those of the ledger."""

from __future__ import annotations

from pathlib import Path

import mechanisms
import pandas as pd
import pytest
from mechanisms import FEDERATION, MECHANISMS, POINTS, page

import leakbench
from tests.published_files import published_file

ROWS = pd.read_csv(published_file("mechanisms.csv"))


def test_the_page_equals_the_output_of_the_script() -> None:
    assert page(ROWS) == published_file("mechanisms.md").read_text(encoding="utf-8")
    assert list(ROWS["mechanism"]) == list(MECHANISMS)


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_the_published_epsilons_are_those_of_the_ledger(name: str) -> None:
    """Claimed, and valid for each observer; the audited bounds do not exceed them."""
    recipe, row = MECHANISMS[name], ROWS.set_index("mechanism").loc[name]
    path = str(Path(mechanisms.__file__).parent / recipe) if recipe.endswith(".yaml") else recipe
    found = leakbench.epsilon(path, **FEDERATION)
    valid = found.table()["valid"]
    expected = [valid["released models"], *(valid[point] for point in POINTS)]
    assert list(row[["valid", *POINTS]].astype(float)) == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert pd.isna(row["claimed"]) if found.claimed is None else row["claimed"] == pytest.approx(found.claimed)
    assert row["audited"] <= row["audited_valid"] and row["training_most"] <= row["valid"]
    assert row["audited"] > 0


def test_a_contradicted_epsilon_is_named() -> None:
    assert "An audit contradicts 0 of" in page(ROWS)
    assert f"contradicts 1 of {len(ROWS)}: trees" in page(
        ROWS.assign(audit=ROWS["audit"].mask(ROWS["mechanism"] == "trees", "violated"))
    )
    assert f"contradicts 1 of {len(ROWS)}: banded" in page(
        ROWS.assign(training_most=ROWS["training_most"].mask(ROWS["mechanism"] == "banded", 9.0))
    )
