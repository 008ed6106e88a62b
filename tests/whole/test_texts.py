"""A run on texts goes the way of every other: comparisons, baselines, tables, trackers and cards have its edit distance."""

import json

import pandas as pd
import pytest

import leakbench
from leakbench.leaderboard.point import point_of
from leakbench.log.log import figures_of
from leakbench.report.rows import victims
from leakbench.storage.rows_file import read_rows
from leakbench.storage.summary import Summary
from leakbench.summary.compare import compare, sentence
from tests.command_line import called

FEW = {"dataset": "reviews", "attack": "dager", "victims": 10, "candidates": 20, "taps": ("type-1",), "train_rounds": 0}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folders of a run without a defense, in which every sentence is found, and of one with noise, in which none is."""
    place = tmp_path_factory.mktemp("texts")
    for defense in ("none", "noise_gaussian"):
        leakbench.run(**FEW, leak_batch=1, defense=defense, out=place / defense)
    return place / "none", place / "noise_gaussian"


def test_a_comparison_has_the_edit_distance_and_no_rmse(runs):
    found = {d.measure: d for d in compare(*runs)}
    assert "rmse" not in found
    change = found["edit_distance"]
    assert change.first == 0
    # Without an answer, a sentence counts as the baseline guess.
    rows = read_rows(runs[1] / "rows.parquet")
    assert change.second == pytest.approx(rows["null_edit_distance"].mean())
    for measure in ("exact_match", "rouge_1"):
        assert (found[measure].first, found[measure].second) == (1, 0)
    assert "fell from 1.00 to 0.00" in sentence(list(found.values()), (None, None))


def test_a_baseline_keeps_the_edit_distance_and_the_gate_sees_a_rise(runs, tmp_path, monkeypatch, capsys):
    def leakbench(*arguments):
        return called(monkeypatch, capsys, *map(str, arguments))

    path = tmp_path / "baseline.json"
    code, written, _ = leakbench("baseline", runs[1])
    path.write_text(written)
    columns = json.loads(written)["rows"]
    assert code == 0 and {"edit_distance", "null_edit_distance"} <= columns.keys() and "rmse" not in columns
    assert leakbench("gate", runs[1], "--baseline", path)[0] == 0
    worse, said, _ = leakbench("gate", runs[0], "--baseline", runs[1])
    assert worse == 1 and "asr: 0.00 before, 1.00 now" in said
    del columns["edit_distance"], columns["null_edit_distance"]
    path.write_text(json.dumps(json.loads(written) | {"rows": columns}))
    code, _, refused = leakbench("gate", runs[1], "--baseline", path)
    assert code == 2 and "rows.rmse is missing" in refused


def test_tables_trackers_and_cards_have_the_edit_distance(runs):
    result = leakbench.run(**FEW, leak_batch=1, out=runs[0])
    line = result.table().loc["type-1"]
    assert line["edit_distance"] == 0 and line["baseline_edit_distance"] > 0.5 and "rmse" not in line
    summary = Summary.of(result.summary)
    logged = {name.rpartition("/")[2] for name, _, _ in figures_of(summary, pd.DataFrame())}
    assert {"edit_distance", "null_edit_distance"} <= logged and "rmse" not in logged
    headings = [heading for heading, _ in victims({"type-1": result.rows}).headings]
    assert {"edit distance", "baseline edit distance"} <= set(headings) and "RMSE" not in headings
    point = point_of("type-1", summary, result.rows)
    assert point.error == ("edit distance", 0.0, point.null_edit_distance) and point.rmse is None
    assert point_of("type-1", *_of(runs[1])).error[1] is None
    assert r"& ROUGE-1 & exact & edit distance &" in result.latex() and r"& 1.00 & 1.00 & 0.000 &" in result.latex()


def _of(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    return Summary.of(manifest["summary"]), read_rows(folder / "rows.parquet")
