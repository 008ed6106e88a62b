"""The tables of printed epsilons: what the script computes today is what is committed, cell by cell and page by page."""

import copy
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import yaml

RESULTS = Path(__file__).parent.parent / "results"
GRID: dict[str, Any] = yaml.safe_load((RESULTS / "epsilon_tables.yaml").read_text())
TABLES = list(GRID["tables"])


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("epsilon_tables", RESULTS / "epsilon_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed(table: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / f"epsilon_{table}.csv").fillna({"reason": ""})


def cut(table: str, data: tuple[str, ...] = (), claims: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """Return the grid with some claims and data sets of one table only."""
    grid = copy.deepcopy(GRID)
    found = grid["tables"][table]
    found["claims"] = [c for c in found["claims"] if not claims or c["name"] in claims]
    for claim in found["claims"]:
        if data:
            claim["printed"] = {name: value for name, value in claim["printed"].items() if name in data}
    found.update(fields)
    return grid


CHEAP: dict[str, dict[str, Any]] = {
    "table_6": {"data": ("adult", "cancer")},
    "table_7": {"data": ("cancer",)},
    "table_8": {"data": ("lfw", "adult", "cancer"), "claims": ("staircase", "cyclic")},
    "table_11_budgets": {},
    "table_11_rounds": {"claims": ("staircase / base", "staircase / advanced"), "losses": []},
    "geyer_1": {"claims": ("100 clients",), "releases": [1]},
}


@pytest.mark.parametrize("table", TABLES)
def test_cheap_cells_are_what_was_committed(script: ModuleType, table: str) -> None:
    found, rows = script.measure(table, cut(table, **CHEAP[table])), committed(table)
    keys = ["claim", "data", "reading"]
    expected = rows.set_index(keys).loc[list(found[keys].itertuples(index=False, name=None))].reset_index()
    if table == "table_11_rounds":
        expected["losses"] = float("nan")
    assert len(found) > 0
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("table", TABLES)
def test_every_printed_cell_has_its_rows(script: ModuleType, table: str) -> None:
    rows, found = committed(table), GRID["tables"][table]
    if table == "geyer_1":
        assert len(rows) == len(found["claims"]) * len(found["releases"]) * 2
        return
    expected = [(c["name"], data, name, c["printed"][data]) for c, data, name, _, _ in script.readings(found)]
    assert list(rows[["claim", "data", "reading", "printed"]].itertuples(index=False, name=None)) == expected


@pytest.mark.parametrize("table", TABLES)
def test_pages_say_what_the_tables_have(script: ModuleType, table: str) -> None:
    text = (RESULTS / f"epsilon_{table}.md").read_text()
    assert text == script.page(GRID["tables"][table], GRID, committed(table))
    lines = text.splitlines()
    assert len(lines) < 60
    assert lines[2].startswith("`python results/epsilon_tables.py`")


@pytest.mark.parametrize("table", TABLES)
def test_verdicts_are_those_of_the_numbers(table: str) -> None:
    rows = committed(table)
    within = GRID["tables"][table].get("within", 0)
    follows = (rows["printed"] - rows["formula"]).abs() <= within
    if table == "geyer_1":
        looked_for = rows["reading"].str.startswith("sigma looked for")
        assert follows[looked_for].all()  # The middle of each interval stops after the printed round,
        follows &= ~looked_for  # but no sigma is printed.
    assert list(rows["verdict"] == "follows") == list(follows)
    assert list(rows["reason"] == "") == list(follows)
    assert (rows["losses"].isna() | (rows["losses"] < rows["renyi"])).all()


NEVER = {
    "table_6": {("Fed-CDP, Fed-alphaCDP", "cancer")},
    "table_7": set(),
    "table_8": {
        *((policy, data) for policy in ("linear", "staircase", "exponential") for data in ("lfw", "adult")),
        *(("cyclic", data) for data in ("mnist", "cifar10", "adult")),
    },
    "table_11_budgets": set(),
    "table_11_rounds": {(f"cyclic / {name}", "mnist") for name in ("base", "advanced", "zCDP", "moments")},
    "geyer_1": {("100 clients", "delta' 0.001"), ("1000 clients", "delta' 1e-05"), ("10000 clients", "delta' 1e-06")},
}


@pytest.mark.parametrize("table", TABLES)
def test_these_cells_follow_from_no_reading(table: str) -> None:
    best = committed(table).groupby(["claim", "data"])["verdict"].max()
    assert set(best.index[best == "does not follow"]) == NEVER[table]


def test_a_verdict_is_computed(script: ModuleType) -> None:
    """Another printed value, another verdict: Fed-CDP's 300 steps on Cancer give .147."""
    grid = cut("table_6", ("cancer",), ("Fed-CDP, Fed-alphaCDP",))
    [claim] = grid["tables"]["table_6"]["claims"]
    own, pooled = script.measure("table_6", grid).to_dict("records")
    assert (own["verdict"], own["reason"]) == ("does not follow", "given by 251 to 255 steps, 300 are counted")
    assert pooled["reason"] == "given by no number of steps, 300 are counted"
    claim["printed"]["cancer"] = 0.147
    own, pooled = script.measure("table_6", grid).to_dict("records")
    assert (own["verdict"], own["reason"]) == ("follows", "")
    assert pooled["verdict"] == "does not follow"


def test_a_reason_names_the_rounded_epsilon_of_one_step() -> None:
    rows = committed("table_11_budgets").set_index(["claim", "reading"])
    for claim in ("base", "advanced"):
        assert "0.80747, has to be rounded to 0.807" in rows.loc[(claim, "not rounded"), "reason"]
