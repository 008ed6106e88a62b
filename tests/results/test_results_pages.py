"""Every page in results/ has a test that renders it again from its rows; this module tests four pages."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import bounds_hold_page
import pandas as pd
import priority_importance
import pytest

import defenses
from benchmarks.speed.bench import Bench
from benchmarks.speed.figure import Figure, figure_of
from benchmarks.speed.machine import Machine
from benchmarks.speed.page import page
from leakbench.overview import recorded
from leakbench.reproduce.file import table_names
from leakbench.summary.verdict import EXACT, LEAST_COMPARED, above_chance, whole_victims
from tests.published_files import RESULTS, published_file

ROOT = Path(__file__).parents[2]

TESTED = {
    "README": "test_reproduce.py",
    "adapter_patches": "test_results_adapter_patches.py",
    "audits": "test_results_audits.py",
    "batch_norm": "test_results_batch_norm.py",
    "bench": "test_results_pages.py",
    "broken_defenses": "test_results_broken_defenses.py",
    "bounds_hold": "test_results_pages.py",
    "conspicuous": "test_results_conspicuous.py",
    "defenses": "test_results_pages.py",
    "findings": "test_results_findings.py",
    "fishing": "test_results_fishing.py",
    "flower_wrappers": "test_results_flower_wrappers.py",
    "frontier_adult": "test_frontier.py",
    "frontier_cancer": "test_frontier.py",
    "frontier_mnist": "test_frontier.py",
    "geyer_figures": "test_results_geyer_figures.py",
    "ideal_server": "test_results_servers.py",
    "leaderboard": "test_leaderboard_page.py",
    "mechanisms": "test_results_mechanisms.py",
    "noise_bounds": "test_results_noise_bounds.py",
    "priority_importance": "test_results_pages.py",
    "tableak": "test_results_tableak.py",
    "threat_matrix": "test_results_servers.py",
}
"""{page: the test module that renders it again from its rows}; `test_reproduce*.py` do so for the pages of all tables."""

BY_HAND = {
    "history": "rows that version 0.1.0 printed; no CSV of them is kept",
    "defense_cost": "printed times, without a CSV",
    "peer_scorers": "its script needs checkouts of other projects; test_results_peers.py compares its counts with its CSV",
}
"""{page: why no test renders it again}."""


def text(name: str) -> str:
    return published_file(f"{name}.md").read_text(encoding="utf-8")


def test_every_page_has_a_test_that_renders_it_again() -> None:
    assert {path.stem for path in RESULTS.rglob("*.md")} == {*TESTED, *BY_HAND, *table_names()}
    assert set(TESTED.values()) <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize(
    ("name", "script", "write", "changed"),
    [
        ("bounds_hold", bounds_hold_page, "page_of", {"tenth": True}),
        ("priority_importance", priority_importance, "page", {"least": 0.25}),
    ],
)
def test_a_page_is_rendered_from_its_rows(
    name: str, script: ModuleType, write: str, changed: dict[str, object]
) -> None:
    rows = pd.read_csv(published_file(f"{name}.csv"))
    assert getattr(script, write)(rows) == text(name)
    assert getattr(script, write)(rows.assign(**changed)) != text(name)


def test_the_page_of_all_defenses_is_rendered_from_its_rows() -> None:
    assert defenses.page_of(recorded()) == text("defenses")
    assert defenses.page_of(recorded()[1:]) != text("defenses")
    undefended = [row for row in recorded() if row.name == "none"]
    assert len(undefended) == 1
    assert f"{len(recorded()) - 1} defenses and `none`, computed by" in text("defenses")


def test_the_page_of_speed_is_rendered_from_its_json() -> None:
    """And the JSON equals the output of `python -m benchmarks --json` for these figures."""
    read = json.loads((published_file("bench.json")).read_text(encoding="utf-8"))
    figures = {key: figure_of(figure) if figure else Figure("", "") for key, figure in read["figures"].items()}
    found = Bench(figures, Machine(**read["machine"]), read["quick"], read["command"])
    assert page(found) == text("bench")
    assert found.as_dict() == read


def test_no_published_row_of_few_victims_reconstructs_by_its_rates_alone() -> None:
    """With fewer than four victims it takes a significant identification, or an example that is exact."""
    few = 0
    for name in table_names():
        path = published_file(f"{name}.csv")
        rows = pd.read_csv(path) if path.is_file() else pd.DataFrame()
        if not {"verdict", "victims"} <= set(rows):
            continue
        for row in rows[(rows["victims"] < LEAST_COMPARED) & (rows["verdict"] == "reconstructs")].to_dict("records"):
            share, victims = row["identified"], int(row["victims"])
            ranked = not pd.isna(share) and above_chance(whole_victims(share * victims), victims, 1 / row["candidates"])
            exact = row["rmse"] <= EXACT * row["null_rmse"] or row.get("verbatim", 0) > 0
            assert ranked or exact, (name, row["row"])
            few += 1
    assert few > 10


def test_the_texts_of_tables_4_and_5_follow_from_their_rows() -> None:
    """The numbers that the texts state of MNIST, Adult and Cancer at the paper's size."""
    found = dict[str, pd.DataFrame]()
    for number in (4, 5):
        rows = pd.read_csv(published_file(f"fed_alpha_cdp_table_{number}.csv"))
        whole = (rows["scale"] == "full") | (rows["dataset"] == "cancer")  # Cancer has no smaller size.
        found |= {str(cell): row for cell, row in rows[whole].groupby("cell")}

    def mean(cell: str) -> float:
        return float(found[cell]["trained_accuracy"].iloc[0])

    for clip in ("0.1", "0.5"):
        assert mean(f"mnist, Fed-SDP, C = {clip}") > 0.9
    for clip in ("4", "8", "16", "32"):
        assert mean(f"mnist, Fed-SDP, C = {clip}") < 0.2
    for method in ("Fed-CDP", "Fed-alphaCDP"):
        assert mean(f"mnist, {method}, C = 0.1") > 0.7
        assert abs(mean(f"mnist, {method}, C = 0.5") - 0.3) < 0.02
        for clip in ("1", "2", "4", "8", "16", "32"):
            cell = f"mnist, {method}, C = {clip}"
            assert cell not in found or mean(cell) < 0.2
            cancer = [mean(f"cancer, {method}, C = {each}") for each in ("0.1", "0.5", clip)]
            assert min(cancer) > 0.49 and max(cancer) < 0.67
    for share in ("5 %", "10 %"):
        for method in ("Fed-CDP", "Fed-alphaCDP"):
            assert mean(f"N = 100, {share}, {method}") < 0.3
        assert mean(f"N = 100, {share}, Fed-SDP") < 0.12
    assert abs(mean("N = 1000, 5 %, non-private") - 0.977) < 0.003 > abs(mean("N = 1000, 10 %, non-private") - 0.98)
    assert abs(mean("mnist, Fed-SDP, C = 0.1") - 0.928) < 0.01
