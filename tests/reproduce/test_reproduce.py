"""`leakbench reproduce`: tables, their cells, verdicts and pages; the pages in results/ match their rows."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import correlated_noise
import numpy as np
import pandas as pd
import pytest
import strongest_looks
import torch
import yaml
from command_line import called
from matplotlib.image import imread

from leakbench.box import beyond_the_asr, evidence_of, few_seeds, without_leak
from leakbench.cli import tables
from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.progress import Reporter
from leakbench.core.recipe import names
from leakbench.reproduce import measure as measuring
from leakbench.reproduce.accounting.page import judged
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.agreement import Agreement
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.columns import COLUMNS, OF_ONE, batches_with_one, legend_of, without_an_answer
from leakbench.reproduce.curves import Rounds
from leakbench.reproduce.file import body_of, table_names
from leakbench.reproduce.measure import MEASURES, accuracy_of, point_of, trainings_of
from leakbench.reproduce.minutes import minutes_at_full, minutes_left
from leakbench.reproduce.page import claims_of, page_of
from leakbench.reproduce.plans import Wanted, plan_of
from leakbench.reproduce.published import read_any, rows_of, store_of
from leakbench.reproduce.reached import Setting, reached
from leakbench.reproduce.reproduce import BEGIN, END, index_of, pages_of, reproduce, study_of
from leakbench.reproduce.table import Table, read_table, table_of
from leakbench.reproduce.verdict import NOT_MEASURED, VERDICTS, compared, decided, digits_of, settled
from leakbench.storage.rows_file import rows_at
from leakbench.storage.summary import Tap
from leakbench.study.engines import Places, engine_of
from leakbench.study.rows import RowStore, of_table
from leakbench.study.stale import stale_names
from leakbench.study.study import Execution
from tests.published_files import RESULTS, published_file

TABLES = {name: table for name in table_names() if isinstance(table := read_any(name), Table)}
WRITTEN = [name for name in TABLES if list(RESULTS.glob(f"*/{name}.csv"))]


def test_all_tables_are_measured_and_one_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second table lacks its data; the first and the third have rows, and the command names the failed one at the end."""
    tiny(tmp_path)
    lacking = (tmp_path / "tiny.yaml").read_text(encoding="utf-8").replace("dataset: digits", "dataset: lfw")
    assert "dataset: lfw" in lacking
    (tmp_path / "lacking.yaml").write_text(lacking, encoding="utf-8")
    names = [str(tmp_path / "tiny.yaml"), str(tmp_path / "lacking.yaml"), "flower_epsilons"]
    monkeypatch.setattr("leakbench.cli.tables.table_names", lambda: names)
    out = tmp_path / "out"
    asked = ["reproduce", "all", "--runs", str(tmp_path / "runs"), "--out", str(out), "--quiet"]
    code, said, err = called(monkeypatch, capsys, *asked)
    assert code == 2 and {path.stem for path in out.glob("*.csv")} == {"tiny", "flower_epsilons"}
    assert f"1 of 3 tables failed: {names[1]}; the others are measured" in err.splitlines()[-1]
    assert err.splitlines()[0].startswith(f"{names[1]}: ")
    assert "rows: " in said and "kept: " not in said
    code, said, _ = called(monkeypatch, capsys, *asked)
    assert code == 2 and "kept: 1 existing row (scale quick)" in said and "ASR" not in said
    assert "ASR" in called(monkeypatch, capsys, *asked, "--again")[1]


def test_an_engine_is_kept_from_tables_of_times_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, Any]()

    def noted(name: str, *given: Any) -> bool:
        asked[name] = next(each for each in given if isinstance(each, Execution)).engine
        return name != "fed_alpha_cdp_table_9"

    engine: Any = object()
    execution = Execution(tmp_path, None, Reporter(quiet=True), engine)
    each, all_of_them = tables.measure, tables.measure_stale
    monkeypatch.setattr(tables, "measure", noted)
    monkeypatch.setattr(tables, "measure_stale", noted)
    each("all", "full", "", (), None, execution, False)
    assert asked == {name: None if read_any(name).alone else engine for name in table_names()}
    assert None in asked.values()
    for name in ("fed_alpha_cdp_table_9", "fed_alpha_cdp_table_6"):
        (tmp_path / f"{name}.csv").write_text("", encoding="utf-8")
    assert not all_of_them("all", "", tmp_path, execution)
    (tmp_path / "fed_alpha_cdp_table_9.csv").unlink()
    assert all_of_them("all", "", tmp_path, execution)


def test_all_pages_are_written_from_the_rows_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of tables that have rows there, and no others."""
    names = ["fed_alpha_cdp_table_6", "geyer_table_1_rounds"]
    for name in names:
        shutil.copy(published_file(f"{name}.csv"), tmp_path)
    code, said, _ = called(monkeypatch, capsys, "reproduce", "all", "--page", "--out", str(tmp_path))
    assert code == 0 and said.splitlines() == [f"page: {tmp_path / name}.md" for name in names]
    assert sorted(path.stem for path in tmp_path.glob("*.md")) == names


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_rendered_from_its_rows(name: str) -> None:
    """Rendered again from the CSV the page is the same, and a changed row changes it."""
    rows, kept = pd.read_csv(published_file(f"{name}.csv")), (published_file(f"{name}.md")).read_text()
    plan = plan_of(TABLES[name])
    assert plan.page(rows, False, None) == kept
    assert plan.page(rows.assign(asr=0.123, trained_accuracy=0.123, cost_ratio=0.123), False, None) != kept


@pytest.mark.parametrize("name", WRITTEN)
def test_rows_belong_to_cells_of_the_page(name: str) -> None:
    rows = pd.read_csv(published_file(f"{name}.csv")).set_index("cell")
    cells = {line.name: line for line in TABLES[name].lines}
    assert list(dict.fromkeys(rows.index)) == [row for row in cells if row in rows.index]
    for row, found in rows.iterrows():
        given, claim = cells[str(row)].given, cells[str(row)].claimed(str(found["point"]))
        assert (found["dataset"], found["attack"]) == (Path(given["dataset"]).stem, Path(given["attack"]).stem)
        assert all(found[f"claimed_{key}"] == value for key, value in claim.items())
        if TABLES[name].repeats:
            assert found["cost_ratio_low"] <= found["cost_ratio"] <= found["cost_ratio_high"]
            continue
        if given["attack"] == "identification":
            assert pd.isna(found["asr"])
        else:
            assert found["asr_low"] <= found["asr"] <= found["asr_high"]
        assert 0 <= found["identified"] <= 1


@pytest.mark.parametrize("name", WRITTEN)
def test_a_row_name_from_the_page_selects_its_cell(name: str) -> None:
    rows, cells = pd.read_csv(published_file(f"{name}.csv")), [line.name for line in TABLES[name].lines]
    for row, cell in zip(rows["row"], rows["cell"], strict=True):
        assert chosen(cells, row) == chosen(cells, cell) == [cell]


def test_a_grid_gives_a_row_for_each_combination() -> None:
    """From a list, from named values, and from several fields; the last setting varies fastest, with single rows between."""
    each = {"data": {"digits": {"dataset": "mnist", "victims": 5}}, "batch": {"B 1": 1, 8: 8}, "attack": ["cpl", "dlg"]}
    rows: list[dict[str, Any]] = [
        {"name": "first {}", "given": {"attack": "dlg"}},
        {"name": "{data} {attack}, {batch}", "each": each, "given": {"victims": 9, "seed": 1}, "claim": {"asr": 1.0}},
    ]
    first, *lines = table_of(Path("tiny.yaml"), {**TINY, "given": {"knows": "defense"}, "rows": rows}).lines
    assert (first.name, first.given) == ("first {}", {"knows": "defense", "attack": "dlg"})
    digits = {"knows": "defense", "victims": 5, "seed": 1, "dataset": "mnist"}
    assert [(line.name, line.given, line.claims) for line in lines] == [
        ("digits cpl, B 1", {**digits, "batch": 1, "attack": "cpl"}, {"": {"asr": 1.0}}),
        ("digits dlg, B 1", {**digits, "batch": 1, "attack": "dlg"}, {"": {"asr": 1.0}}),
        ("digits cpl, 8", {**digits, "batch": 8, "attack": "cpl"}, {"": {"asr": 1.0}}),
        ("digits dlg, 8", {**digits, "batch": 8, "attack": "dlg"}, {"": {"asr": 1.0}}),
    ]


def test_every_cell_of_every_page_can_be_requested() -> None:
    for table in TABLES.values():
        for line in table.lines:
            for scale in ("quick", "full"):
                for request in line.requests(scale, {}):
                    assert request.attack in names("attacks") or Path(request.attack).is_file()
                    assert request.defense in names("defenses") or Path(request.defense).is_file()


def test_the_baseline_is_subtracted() -> None:
    """ASR .6 above a baseline of .2: .5."""
    row = pd.read_csv(published_file("fed_alpha_cdp_table_1.csv")).head(1).assign(asr=0.6, null_asr=0.2)
    assert "| 0.20 | 0.50 |" in page_of(TABLES["fed_alpha_cdp_table_1"], row)


ACCURACY = {"trained_accuracy": 0.65, "trained_accuracy_low": 0.648, "trained_accuracy_high": 0.652}
"""Ten trainings."""


def verdict_of(what: str, printed: float, row: dict[str, Any], **given: Any) -> tuple[str, str]:
    """Return (verdict, reason) of a single number of a page, printed to three digits."""
    asked = {"apart": {}, "because": "another network", "samples": {}, **given}
    found = compared(
        {"row": "a", **row}, {what: printed}, asked["apart"], asked["because"], {what: 3}, asked["samples"]
    )
    [claim] = decided(found)
    return claim.verdict, claim.reason


@pytest.mark.parametrize(
    ("printed", "verdict"),
    [(0.65, "reproduced"), (0.653, "reproduced"), (0.67, "undecided"), (0.8, "contradicted"), (0.3, "contradicted")],
)
def test_an_accuracy_is_reproduced_within_the_tolerance_and_contradicted_far_from_it(
    printed: float, verdict: str
) -> None:
    """The tolerance is .02 and the difference has a deviation of .007: .67 is neither close enough nor far enough."""
    found, reason = verdict_of("accuracy", printed, {**ACCURACY, "seeds": 10}, samples={"accuracy": 10_000})
    assert found == verdict
    assert (reason == "another network") == (verdict == "contradicted")
    assert reason.startswith("10 seeds: p = ") == (verdict == "undecided")


def test_a_small_significant_difference_is_reproduced() -> None:
    row = {"trained_accuracy": 0.65, "trained_accuracy_low": 0.6499, "trained_accuracy_high": 0.6501, "seeds": 50}
    assert verdict_of("accuracy", 0.66, row) == ("reproduced", "")


def test_agreement_over_a_wide_interval_is_not_reproduced() -> None:
    row = {"trained_accuracy": 0.65, "trained_accuracy_low": 0.5, "trained_accuracy_high": 0.8, "seeds": 3}
    assert verdict_of("accuracy", 0.65, row) == ("undecided", "3 seeds: p = 1 after Holm's correction")


@pytest.mark.parametrize(
    ("what", "row", "given", "verdict", "reason"),
    [
        ("asr", {}, {}, "not measured", ""),
        ("accuracy", {**ACCURACY, "seeds": 1}, {}, "different setting", "one seed"),
        ("accuracy", {**ACCURACY, "seeds": 2}, {}, "different setting", "2 seeds of at least 3"),
        (
            "accuracy",
            {**ACCURACY, "seeds": 9},
            {"apart": {"accuracy": "other rate"}},
            "different setting",
            "other rate",
        ),
        ("asr", {"asr": 0.5, "asr_low": 0.4, "asr_high": 0.6}, {}, "different setting", "one network"),
        ("asr", {"asr": 0.5, "networks": 5}, {}, "undecided", "the interval of the measurement is unknown"),
        ("recall", {"in_any_row": 0.5}, {}, "different setting", "one network"),
        ("cost_ratio", {"cost_ratio": 0.5}, {}, "no verdict", "another engine and machine"),
        (
            "rmse",
            {"rmse": 0.5, "asr": 0.9, "null_asr": 0.1},
            {},
            "different setting",
            "one network; a mean is printed, a median measured",
        ),
        ("iterations", {"iterations": 7.0}, {}, "different setting", "a mean is printed, a median measured"),
    ],
)
def test_only_the_same_quantity_is_compared(
    what: str, row: dict[str, float], given: dict[str, Any], verdict: str, reason: str
) -> None:
    assert verdict_of(what, 0.5, row, **given) == (verdict, reason)


def test_a_success_rate_over_five_networks_is_tested() -> None:
    near = {"asr": 0.9, "asr_low": 0.89, "asr_high": 0.91, "networks": 5.0}
    assert verdict_of("asr", 0.905, near)[0] == "reproduced"
    assert verdict_of("asr", 0.1, near)[0] == "contradicted"
    wide = {"asr": 0.9, "asr_low": 0.7, "asr_high": 0.97, "networks": 5.0}
    assert verdict_of("asr", 0.7, wide)[0] == "undecided"


def test_a_printed_mean_rmse_is_compared_with_the_mean() -> None:
    """A median of .0002 says nothing of a mean that a few failures make .08."""
    row = {"rmse": 0.0002, "asr": 0.9, "null_asr": 0.1, "networks": 5.0, "rmse_mean": 0.08}
    near = {**row, "rmse_mean_low": 0.079, "rmse_mean_high": 0.081}
    assert verdict_of("rmse", 0.081, near)[0] == "reproduced"
    assert verdict_of("rmse", 0.0002, near)[0] == "contradicted"
    assert verdict_of("rmse", 0.3, near, samples={"rmse": 100})[0] == "undecided"  # Sampling error of 100 images.


def test_looks_count_only_for_what_further_trainings_decide() -> None:
    """Networks are all measured at once: their p-values are not multiplied by the number of looks at trainings."""
    row = {"row": "a", "asr": 0.9, "asr_low": 0.89, "asr_high": 0.91, "networks": 5, "seeds": 5}
    row |= {"trained_accuracy": 0.9, "trained_accuracy_low": 0.89, "trained_accuracy_high": 0.91}
    claim = {"asr": 0.7, "accuracy": 0.7}
    once, often = (compared(row, claim, {}, "", {"asr": 2, "accuracy": 2}, None, looks) for looks in (1, 4))
    assert once[0].test is not None and once[0].test == often[0].test
    assert once[1].test is not None and often[1].test is not None
    assert often[1].test.p == pytest.approx(4 * once[1].test.p)


def test_a_row_is_settled_where_no_other_test_of_the_page_can_undo_it() -> None:
    """Far from its number, p = .004 is enough on a page of two tests and not of three; near it, the interval is."""
    [claim] = compared({"row": "a", **ACCURACY, "seeds": 3}, {"accuracy": 0.5}, {}, "", {"accuracy": 3})
    far = dataclasses.replace(claim, verdict="", test=Agreement(0.004, 0.1, 0.2))
    near = dataclasses.replace(far, test=Agreement(0.5, -0.02, 0.02))
    unknown = dataclasses.replace(far, test=Agreement(math.nan, -math.inf, math.inf))
    assert settled([far], 2) and not settled([far], 3)
    assert settled([near], 100) and not settled([unknown], 1) and not settled([far, unknown], 1)


@pytest.mark.parametrize(
    "ours", [{"asr": 0.0, "null_asr": 0.2}, {"asr": 0.2, "null_asr": 0.2}, {"asr": 0.9, "null_asr": 0.2}]
)
def test_the_rmse_of_a_failed_attack_gets_no_verdict(ours: dict[str, float]) -> None:
    """The paper calls it failed, or it is not better than the baseline guess."""
    resilient = 1.0 if ours["asr"] > ours["null_asr"] else 0.0
    found = compared(
        {"row": "a", "rmse": 0.5, **ours}, {"resilient": resilient, "rmse": 0.5}, {}, "", {"rmse": 1, "resilient": 0}
    )
    assert (found[1].verdict, found[1].reason) == ("no verdict", "RMSE of a failed attack")


def test_an_attack_that_reconstructs_beyond_its_asr_has_not_failed() -> None:
    """The verdict may rest on recognition where no image comes within eta; its RMSE is then compared as any other."""
    row = {"row": "a", "rmse": 0.5, "asr": 0.0, "null_asr": 0.2, "verdict": "reconstructs"}
    found = compared(row, {"resilient": 0.0, "rmse": 0.5}, {}, "", {"rmse": 1, "resilient": 0})
    assert found[1].reason != "RMSE of a failed attack"
    assert (
        compared({**row, "verdict": "inconclusive"}, {"rmse": 0.5}, {}, "", {"rmse": 1})[0].reason
        == "RMSE of a failed attack"
    )


@pytest.mark.parametrize(
    ("printed", "resilient", "leak", "verdict"),
    [
        (1.0, 1.0, "no leak found", "reproduced"),
        (0.0, 0.0, "reconstructs", "reproduced"),
        (1.0, 0.0, "reconstructs", "contradicted"),
        (1.0, math.nan, "inconclusive", "undecided"),
        (1.0, 0.0, "identifies", "different setting"),
    ],
)
def test_resilience_is_compared_with_the_verdict_on_the_leak(
    printed: float, resilient: float, leak: str, verdict: str
) -> None:
    row = {"row": "a", "resilient": resilient, "verdict": leak, "networks": 5}
    [found] = decided(compared(row, {"resilient": printed}, {}, "", {"resilient": 0}))
    assert found.verdict == verdict


@pytest.mark.parametrize(("printed", "verdict"), [(0.823, "reproduced"), (0.824, "contradicted")])
def test_a_formula_is_compared_at_the_printed_digits(printed: float, verdict: str) -> None:
    assert verdict_of("epsilon", printed, {"epsilon_claimed": 0.8227})[0] == verdict


def test_tests_of_a_page_are_corrected_together() -> None:
    """A number contradicted on its own page is not contradicted among a hundred others."""
    row = {"row": "a", **ACCURACY, "seeds": 10}
    one = compared(row, {"accuracy": 0.665}, {}, "", {"accuracy": 3})
    others = compared(row, {"accuracy": 0.65}, {}, "", {"accuracy": 3}) * 99
    assert decided(one)[0].verdict == "contradicted"
    assert decided([*one, *others])[0].verdict == "undecided"


def test_the_number_with_the_most_digits_sets_the_digits() -> None:
    """YAML reads 1.000 as 1.0."""
    claims = [{"asr": 1.0, "iterations": 846.0}, {"asr": 0.754, "iterations": 18.4}, {"asr": 0.9}, {"rounds": 100.0}]
    assert digits_of(claims) == {"asr": 3, "iterations": 1, "rounds": 0}


TINY = {
    "title": "A small table",
    "cite": "Nobody, 2026",
    "text": "Of digits.",
    "given": {"dataset": "digits", "attack": "cpl", "victims": 2, "taps": ["type-2"], "train_rounds": 0}
    | {"candidates": 10, "iterations": 2},
    "quick": {"victims": 1},
    "rows": [
        {"name": "cpl", "claim": {"asr": 1.0}, "because": "too short"},
        {"name": "dlg", "given": {"attack": "dlg"}, "quick": False},
    ],
    "found": "Little.",
}


def tiny(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}), encoding="utf-8")
    return path


def small(folder: Path) -> Table:
    return read_table(str(tiny(folder)))


def measure(table: Table, folder: Path, **asked: Any) -> tuple[list[str], pd.DataFrame]:
    """Return (rows measured now, all rows)."""
    told: list[str] = []
    given = {"scale": "full", "only": "", "changed": {}, "again": False, **asked}
    rows = reproduce(
        table,
        given["scale"],
        given["only"],
        given["changed"],
        folder,
        Execution(folder / "runs", None, Reporter(quiet=True)),
        lambda row: told.append(row["row"]),
        given["again"],
    )
    return told, rows


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml"])
def test_the_path_of_a_recipe_begins_where_the_table_lies(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    table = read_table(str(tiny(folder, given={**TINY["given"], "defense": f"../{name}"})))  # type: ignore[dict-item]
    assert {line.given["defense"] for line in table.lines} == {str(tmp_path / name)}


@pytest.mark.slow
def test_a_cell_is_measured_once(tmp_path: Path) -> None:
    table = small(tmp_path)
    assert measure(table, tmp_path, only="cpl")[0] == ["cpl"]
    told, rows = measure(table, tmp_path)
    assert told == ["dlg"] and list(rows["row"]) == ["cpl", "dlg"]
    first = (tmp_path / "tiny.csv").read_bytes()
    assert measure(table, tmp_path)[0] == []
    assert (tmp_path / "tiny.csv").read_bytes() == first
    # A row of `full` also serves `quick`, and a lost row is measured again, with the same numbers.
    assert measure(table, tmp_path, scale="quick")[0] == []
    (tmp_path / "tiny.csv").write_bytes(first.splitlines(keepends=True)[0] + first.splitlines(keepends=True)[2])
    told, rows = measure(table, tmp_path)
    assert told == ["cpl"] and (tmp_path / "tiny.csv").read_bytes() == first
    assert measure(table, tmp_path, again=True)[0] == ["cpl", "dlg"]


@pytest.mark.slow
def test_a_killed_table_resumes_and_repeats_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the end of a cell and its row, and in a cell."""
    from leakbench.reproduce import measure as measuring  # noqa: PLC0415

    table, executed = small(tmp_path), measuring.executed
    begun: list[str] = []

    def killed(cell: Any, *given: Any) -> Any:
        begun.append(cell.name)
        with executed(cell, *given):
            raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "executed", killed)
    with pytest.raises(KeyboardInterrupt):
        measure(table, tmp_path)
    monkeypatch.setattr(measuring, "executed", executed)
    [run] = (tmp_path / "runs").iterdir()
    rows_before = (run / "rows.parquet").stat().st_mtime_ns
    told, rows = measure(table, tmp_path)
    assert told == ["cpl", "dlg"] and len(begun) == 1
    assert (run / "rows.parquet").stat().st_mtime_ns == rows_before
    whole = measure(table, tmp_path / "other")[1]
    times = ["minutes", "wall_minutes"]
    pd.testing.assert_frame_equal(rows.drop(columns=times), whole.drop(columns=times))


@pytest.mark.slow
def test_quick_rows_do_not_replace_full_ones(tmp_path: Path) -> None:
    """Also if the full ones have an older recipe; in other folders, or at full scale, they are measured."""
    table = small(tmp_path)
    measure(table, tmp_path, only="cpl")
    before = (tmp_path / "tiny.csv").read_bytes()
    with pytest.raises(
        InputError, match=r"has rows of scale full, which quick ones would replace \(cpl\); give --scale full"
    ):
        measure(table, tmp_path, only="cpl", scale="quick", again=True)
    assert (tmp_path / "tiny.csv").read_bytes() == before
    (tmp_path / "elsewhere").mkdir()
    assert measure(table, tmp_path / "elsewhere", only="cpl", scale="quick")[0] == ["cpl"]


@pytest.mark.slow
def test_auto_measures_at_full_size_what_is_short_and_at_quick_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick row says how long a cell takes at full size; a row at full size is never replaced by a quick one."""
    rows = [{"name": "cpl"}, {"name": "dlg", "given": {"attack": "dlg"}}]
    table = read_table(str(tiny(tmp_path, quick={"iterations": 1}, rows=rows)))
    told, found = measure(table, tmp_path, scale="auto")
    assert told == ["cpl", "dlg", "cpl", "dlg"] and found["scale"].tolist() == ["full", "full"]
    assert measure(table, tmp_path, scale="auto")[0] == []
    whole = measure(table, tmp_path / "whole")[1]
    assert found["hash"].tolist() == whole["hash"].tolist() and found["rmse"].tolist() == whole["rmse"].tolist()
    monkeypatch.setattr("leakbench.reproduce.plans.MOST_MINUTES", 0.0)
    assert measure(table, tmp_path, scale="auto", again=True)[0] == []
    told, found = measure(table, tmp_path / "long", scale="auto")
    assert told == ["cpl", "dlg"] and found["scale"].tolist() == ["quick", "quick"]
    assert measure(table, tmp_path / "long", scale="auto")[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"victims": 3}, {}])
def test_auto_keeps_full_rows_whose_time_is_unknown(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a trial, and rows without minutes: neither says how long the cell takes."""
    monkeypatch.setattr("leakbench.reproduce.plans.MOST_MINUTES", 0.0)
    table = small(tmp_path)
    _, rows = measure(table, tmp_path / "out", only="cpl", changed=changed)
    study_of(table, tmp_path / "out").store.write(
        rows.assign(wall_minutes=rows["wall_minutes"] if changed else math.nan)
    )
    before = (tmp_path / "out" / "tiny.csv").read_bytes()
    told, kept = measure(table, tmp_path / "out", only="cpl", scale="auto")
    assert told == [] and kept["scale"].tolist() == ["full"]
    assert (tmp_path / "out" / "tiny.csv").read_bytes() == before


def test_the_time_at_full_size_follows_from_the_quick_row(tmp_path: Path) -> None:
    """A training of ten times as many rounds and three seeds takes thirty times as long; a row of full size says it itself."""
    body = {"train_rounds": 10, "local_iterations": 2, "clients_per_round": 2, "clients": 4}
    table = read_table(
        str(tiny(tmp_path, given={**TINY["given"], **body}, seeds=3, quick={"train_rounds": 1, "seeds": 1}))
    )
    name = table.lines[0].name
    cells = [{"row": line.name, "cell": line.name, "point": "type-2", "hash": "x"} for line in table.lines]
    plain = dict.fromkeys(("limit", "asr", "null_asr", "identified", "candidates", "victims", "batch"), 1.0)
    rows = pd.DataFrame([{**cell, **plain, "wall_minutes": 2.0, "scale": "quick"} for cell in cells])
    study_of(table, tmp_path).store.write(rows)
    assert minutes_at_full(table, tmp_path, {}, None)[name] == pytest.approx(60.0)
    study_of(table, tmp_path).store.write(rows.assign(scale="full"))
    assert minutes_at_full(table, tmp_path, {}, None)[name] == pytest.approx(2.0)
    assert minutes_at_full(table, tmp_path, {"train_rounds": 40}, None)[name] == pytest.approx(8.0)
    # A trial of the same numbers is known as it is, one of others is not used.
    trial = rows.assign(scale="full", changed='{"victims": 3}')
    study_of(table, tmp_path).store.write(trial)
    assert minutes_at_full(table, tmp_path, {"victims": 3}, None)[name] == pytest.approx(2.0)
    assert minutes_at_full(table, tmp_path, {"victims": 4}, None) == {}
    # The minutes of a GPU say nothing about those of this machine.
    study_of(table, tmp_path).store.write(rows.assign(scale="full", versions='{"device": "cuda (NVIDIA H100)"}'))
    assert minutes_at_full(table, tmp_path, {}, None) == {}


def test_a_cell_without_a_row_has_its_estimated_cost(tmp_path: Path) -> None:
    """Six times the work of a measured cell, and three seeds; no cost from quick rows, from a GPU, or from another data set."""
    body = {"train_rounds": 10, "local_iterations": 2, "clients_per_round": 2, "clients": 8, "iterations": 1}
    larger = {"train_rounds": 20, "clients_per_round": 6}
    rows = [{"name": "a"}, {"name": "b", "given": larger}, {"name": "c", "given": {**larger, "dataset": "cancer"}}]
    table = read_table(
        str(
            tiny(
                tmp_path, given={**TINY["given"], **body}, seeds=3, quick={"victims": 1}, rows=rows, columns="accuracy"
            )
        )
    )
    plain = dict.fromkeys(
        ("trained_accuracy", "trained_accuracy_low", "trained_accuracy_high", "epsilon_claimed", "epsilon_valid"), 0.5
    )
    known = pd.DataFrame(
        [
            {
                "row": "a",
                "cell": "a",
                "point": "type-2",
                "hash": "x",
                **plain,
                "wall_minutes": 30.0,
                "seeds": 3,
                "scale": "full",
            }
        ]
    )
    assert minutes_left(table, known) == {"b": pytest.approx(180.0)}
    assert "Not measured yet: b, about 3 hours; c. Times at full size on one CPU core" in plan_of(table).page(
        known, True, None
    )
    assert minutes_left(table, known.assign(wall_minutes=1.0)) == {"b": pytest.approx(6.0)}
    assert "b, about 6 minutes; c." in plan_of(table).page(known.assign(wall_minutes=1.0), True, None)
    for unknown in (known.assign(scale="quick"), known.assign(versions='{"device": "cuda (NVIDIA H100)"}')):
        assert minutes_left(table, unknown) == {}
        assert "Not measured yet: b; c.\n" in plan_of(table).page(unknown, True, None)


def test_the_finding_describes_the_published_rows(tmp_path: Path) -> None:
    name = "fed_alpha_cdp_table_1"
    rows = pd.read_csv(published_file(f"{name}.csv"))
    page_file = study_of(TABLES[name], tmp_path).page
    assert page_file is not None
    page_file.write(rows)
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert "\nAbout the published rows, not these: CPL reconstructs" in page
    assert "About the published rows" not in published_file(f"{name}.md").read_text(encoding="utf-8")


def test_kept_rows_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(tmp_path)
    asked = ["reproduce", str(tmp_path / "tiny.yaml"), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    said = [called(monkeypatch, capsys, *asked, "--only", "cpl")[1].splitlines()[:-1] for _ in range(2)]
    assert said[0][0].startswith("cpl: ASR ") and len(said[0]) == 1
    assert said[1] == [
        "kept: 1 existing row (scale quick); to measure again, add --again, or --out FOLDER for new rows in another folder"
    ]


@pytest.mark.slow
def test_quick_is_smaller_and_reports_it(tmp_path: Path) -> None:
    table = small(tmp_path)
    told, rows = measure(table, tmp_path, scale="quick")
    assert told == ["cpl"] and list(rows["victims"]) == [1] and list(rows["scale"]) == ["quick"]
    page = (tmp_path / "tiny.md").read_text()
    assert "- 1 victim instead of 2: cpl." in page and "- left out: dlg." in page and "Not measured yet: dlg." in page
    # Then the row of the paper's size replaces it.
    told, rows = measure(table, tmp_path)
    assert told == ["cpl", "dlg"] and list(rows["scale"]) == ["full", "full"]
    assert "Scale `quick`, smaller" not in (tmp_path / "tiny.md").read_text()


@pytest.mark.slow
def test_a_row_that_quick_does_not_change_has_the_scale_full(tmp_path: Path) -> None:
    rows = [{"name": "cpl", "quick": {"victims": 2, "seeds": 1}}, {"name": "dlg", "given": {"attack": "dlg"}}]
    table = read_table(str(tiny(tmp_path, quick={}, rows=[*rows, {"name": "less", "quick": {"victims": 1}}])))
    told, measured = measure(table, tmp_path, scale="quick")
    assert told == ["cpl", "dlg", "less"] and list(measured["scale"]) == ["full", "full", "quick"]
    page = (tmp_path / "tiny.md").read_text()
    assert " 1 cell is smaller than the paper's (scale `quick`)." in page and "- 1 victim instead of 2: less." in page
    assert page_of(table, measured.assign(scale="quick"), out=tmp_path) == page  # As of an earlier version.
    assert measure(table, tmp_path, scale="quick")[0] == []
    assert measure(table, tmp_path, scale="quick", only="cpl", again=True)[0] == ["cpl"]


@pytest.mark.slow
def test_a_page_has_the_claims_with_their_verdicts(tmp_path: Path) -> None:
    claimed = {"name": "cpl", "claim": {"asr": 0.985}}
    table = read_table(str(tiny(tmp_path, rows=[{**claimed, "because": "too short"}])))
    _, rows = measure(table, tmp_path)
    [claim] = claims_of(table, rows)
    assert (claim.row, claim.claimed, claim.verdict) == ("cpl", 0.985, "different setting")
    assert claim.reason == "2 networks of at least 5"
    page = page_of(table, rows.assign(asr=0.1, asr_low=0.08, asr_high=0.12, networks=5))
    assert "Nobody, 2026" in page and "1 printed number: contradicted 1." in page
    assert "| cpl | ASR | 0.985 | 0.100 | [0.080, 0.120] | **contradicted** | too short |" in page
    untried = read_table(str(tiny(tmp_path, rows=[claimed])))
    page = page_of(untried, rows.assign(asr=0.1, asr_low=0.08, asr_high=0.12, networks=5))
    assert "| **contradicted** | the difference is not explained yet |" in page
    assert json.loads(rows["versions"].iloc[0])["torch"] and (rows["seeds"] == 1).all()


@pytest.mark.slow
def test_claims_of_scale_quick_have_a_different_setting(tmp_path: Path) -> None:
    for quick, reason in (
        ({"victims": 1}, "one network; scale quick: fewer victims"),
        ({"iterations": 1}, "2 networks of at least 5; scale quick: other iterations"),
    ):
        folder = tmp_path / str(len(reason))
        folder.mkdir()
        table = read_table(str(tiny(folder, quick=quick)))
        [claim] = claims_of(table, measure(table, folder, scale="quick")[1])
        assert (claim.verdict, claim.reason) == ("different setting", reason)


@pytest.mark.slow
def test_claims_of_cells_without_rows_are_not_measured(tmp_path: Path) -> None:
    """One for each leakage point that has claims."""
    claim = {"rmse": 0.5, "type-1": {"asr": 0.25}}
    rows = [{"name": "cpl"}, {"name": "dlg", "given": {"taps": ["type-2", "type-1"]}, "claim": claim}]
    table = read_table(str(tiny(tmp_path, rows=rows)))
    found = claims_of(table, measure(table, tmp_path, only="cpl")[1])
    assert {c.verdict for c in found} == {NOT_MEASURED}
    assert [(c.row, c.what) for c in found] == [
        ("dlg, type-2", "rmse"),
        ("dlg, type-1", "rmse"),
        ("dlg, type-1", "asr"),
    ]


@pytest.mark.slow
def test_a_page_shows_the_number_of_examples_of_printed_numbers(tmp_path: Path) -> None:
    said = {"samples": {"asr": {"digits": 40, "mnist": 50}}, "samples_from": "its Table 9"}
    table = read_table(str(tiny(tmp_path, **said)))
    assert table.lines[0].samples == {"asr": 40}
    _, rows = measure(table, tmp_path)
    assert "Examples behind the printed numbers, from its Table 9: digits 40 (ASR)." in page_of(table, rows)


@pytest.mark.parametrize("number", [94, -0.5, 1.001])
def test_a_printed_share_in_percent_is_refused(number: float) -> None:
    rows = [{"name": "a", "claim": {"type-2": {"asr": number}}}]
    with pytest.raises(
        InputError, match=f"claim: type-2: asr: got {number}, expected a share from 0 to 1, not percent"
    ):
        table_of(Path("tiny.yaml"), {**TINY, "rows": rows})


@pytest.mark.slow
def test_a_claim_belongs_to_its_leakage_point(tmp_path: Path) -> None:
    claim = {"rmse": 0.5, "type-1": {"asr": 0.25, "rmse": 0.7}}
    row = {"name": "cpl", "given": {"taps": ["type-2", "type-1"], "leak_batch": 1}, "claim": claim}
    table = read_table(str(tiny(tmp_path, rows=[row])))
    _, rows = measure(table, tmp_path)
    found = {(c.row, c.what): c.claimed for c in claims_of(table, rows)}
    assert found == {("cpl, type-2", "rmse"): 0.5, ("cpl, type-1", "rmse"): 0.7, ("cpl, type-1", "asr"): 0.25}


def test_numbers_are_printed_in_the_order_of_the_combinations() -> None:
    each = {"victims": [1, 2], "batch": [3, 4]}
    row = {"name": "{victims} {batch}", "each": each, "printed": {"accuracy": [0.1, 0.2, None, 0.4]}}
    lines = table_of(Path("tiny.yaml"), {**TINY, "rows": [row]}).lines
    assert [line.claimed("type-2") for line in lines] == [{"accuracy": 0.1}, {"accuracy": 0.2}, {}, {"accuracy": 0.4}]
    said = r"row '\{victims\} \{batch\}': printed: accuracy: got 1 numbers for 4 combinations"
    with pytest.raises(InputError, match=said):
        table_of(Path("tiny.yaml"), {**TINY, "rows": [{**row, "printed": {"accuracy": [0.1]}}]})


@pytest.mark.slow
def test_accuracy_is_over_the_seeds(tmp_path: Path) -> None:
    """Wilson's interval over test examples for one seed, Student's over seeds for several."""
    training = {"defense": "none", "dataset": "digits", "clients": 10, "clients_per_round": 2, "local_iterations": 5}
    given = {**TINY["given"], "iterations": 1, "victims": 1, "train_rounds": 2, **training}  # type: ignore[dict-item]
    rows = [{"name": "one"}, {"name": "three", "seeds": 3}]
    table = read_table(str(tiny(tmp_path, given=given, rows=rows, columns="accuracy", quick={})))
    _, found = measure(table, tmp_path)
    one, three = found.to_dict("records")
    assert (one["seeds"], three["seeds"], one["rounds"]) == (1, 3, 2)
    assert one["hash"] != three["hash"] and len(list((tmp_path / "runs").iterdir())) == 3
    for row in (one, three):
        assert 0 <= row["trained_accuracy_low"] < row["trained_accuracy"] < row["trained_accuracy_high"] <= 1
    assert "| three |" in page_of(table, found)


def cancer_table(folder: Path, **more: Any) -> Table:
    """A training of an accuracy near .94; .1 and .94 are printed of it, the latter once with a setting that is another one."""
    training = {"defense": "none", "dataset": "cancer", "clients": 10, "clients_per_round": 10, "local_iterations": 20}
    given = {**TINY["given"], "iterations": 1, "victims": 1, "train_rounds": 6, **training}  # type: ignore[dict-item]
    rows = [{"name": "far", "claim": {"accuracy": 0.1}}, {"name": "near", "claim": {"accuracy": 0.94}}]
    rows += [{"name": "other", "claim": {"accuracy": 0.94}, "apart": {"accuracy": "other rate"}}, {"name": "silent"}]
    return read_table(str(tiny(folder, **{"given": given, "rows": rows, "columns": "accuracy", "quick": {}} | more)))


def test_the_tests_of_a_page_are_those_of_each_round_that_leaks(tmp_path: Path) -> None:
    """Three claims of accuracy, each in a row for each of two rounds; a formula has no test."""
    assert cancer_table(tmp_path).tests == 3
    live = {"protocol": "live", "leak_rounds": [1, 2], "train_rounds": 2, "taps": ["type-2"], "attack": "cpl"}
    rows = [{"name": "a", "claim": {"accuracy": 0.5, "epsilon": 1.0}}, {"name": "b", "claim": {"type-2": {"asr": 0.5}}}]
    given = {**TINY["given"], **live}  # type: ignore[dict-item]
    assert read_table(str(tiny(tmp_path, given=given, rows=rows))).tests == 4


@pytest.mark.slow
def test_a_row_ends_when_its_verdict_is_certain(tmp_path: Path) -> None:
    """Only the number near the measured ones needs all seeds; one of another setting, and none, need no more than the least."""
    table = cancer_table(tmp_path, seeds=3, most_seeds=6)
    _, rows = measure(table, tmp_path)
    seeds = rows.set_index("cell")["seeds"].to_dict()
    assert seeds["far"] < 6 and (seeds["near"], seeds["other"], seeds["silent"]) == (6, 3, 3)
    verdicts = {claim.row: claim.verdict for claim in claims_of(table, rows)}
    assert verdicts == {"far": "contradicted", "near": "undecided", "other": "different setting"}
    assert measure(table, tmp_path)[0] == [] and stale_names(list(rows_of(table, rows))) == {}
    page = (tmp_path / "tiny.md").read_text(encoding="utf-8")
    assert "A row at full size may have 3 to 6 trainings" in page and "can change its verdict (3 tests in all)" in page
    again = next(line for line in page.splitlines() if line.startswith("`leakbench reproduce"))
    assert " A row at full size is trained 3 to 6 times, until its verdict is certain, which may be more often" in again


@pytest.mark.slow
def test_a_row_goes_on_where_more_seeds_are_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured with three seeds, then with up to five: only the open row is measured again, and its first seeds are read."""
    table = cancer_table(tmp_path, seeds=3)
    measure(table, tmp_path)
    runs, notes = len(list((tmp_path / "runs").iterdir())), list[str]()
    monkeypatch.setattr(Reporter, "note", lambda _, line: notes.append(line))
    told, after = measure(cancer_table(tmp_path, seeds=3, most_seeds=5), tmp_path)
    assert "near" in told and "silent" not in told and "other" not in told
    seeds = after.set_index("cell")["seeds"].to_dict()
    assert seeds["near"] == 5 and seeds["silent"] == 3
    settings = "1 setting" if len(told) == 1 else f"{len(told)} settings"
    assert notes[0].startswith(f"tiny: {settings}, at least 1 cell to measure, ")  # The fourth training of each.
    assert len(list((tmp_path / "runs").iterdir())) == runs + 2  # All rows are the same trainings.


@pytest.mark.slow
def test_a_row_goes_on_from_its_csv_alone(tmp_path: Path) -> None:
    """On a machine without the first runs only further seeds are trained, and the row is that of one uninterrupted measurement."""
    table, more = cancer_table(tmp_path, seeds=3), cancer_table(tmp_path, seeds=3, most_seeds=5)
    _, begun = measure(table, tmp_path)
    assert [len(each) for each in map(json.loads, begun["accuracies"])] == [3] * 4
    shutil.rmtree(tmp_path / "runs")
    _, after = measure(more, tmp_path)
    assert len(list((tmp_path / "runs").iterdir())) == 2
    (tmp_path / "at_once").mkdir()
    _, whole = measure(more, tmp_path / "at_once")
    times = ["wall_minutes", "minutes"]  # Those of the first three are of the earlier measurement.
    pd.testing.assert_frame_equal(after.drop(columns=times), whole.drop(columns=times))
    near = after.set_index("cell").loc["near"]
    assert near["trained_accuracy"] == pytest.approx(np.mean([last for (last,) in json.loads(near["accuracies"])]))
    # Asked for again, a row is measured anew from its first seed.
    shutil.rmtree(tmp_path / "runs")
    _, again = measure(more, tmp_path, only="near", again=True)
    assert len(list((tmp_path / "runs").iterdir())) == 5
    assert again.set_index("cell").loc["near", "accuracies"] == near["accuracies"]


@pytest.mark.slow
def test_a_row_that_does_not_keep_its_trainings_is_measured_from_the_first(tmp_path: Path) -> None:
    """So is one whose settings have changed: neither may be mixed with further seeds."""
    measure(cancer_table(tmp_path, seeds=3), tmp_path, only="near")
    more = cancer_table(tmp_path, seeds=3, most_seeds=4)
    store = store_of(more, tmp_path)
    store.write(store.read().assign(accuracies=None))
    shutil.rmtree(tmp_path / "runs")
    measure(more, tmp_path, only="near")
    assert len(list((tmp_path / "runs").iterdir())) == 4
    given = {**TINY["given"], "iterations": 1, "victims": 1, "train_rounds": 7, "dataset": "cancer"}  # type: ignore[dict-item]
    given |= {"defense": "none", "clients": 10, "clients_per_round": 10, "local_iterations": 20}
    shutil.rmtree(tmp_path / "runs")
    _, rows = measure(cancer_table(tmp_path, seeds=3, most_seeds=4, given=given), tmp_path, only="near")
    assert len(list((tmp_path / "runs").iterdir())) == rows.loc[0, "seeds"] and rows.loc[0, "rounds"] == 7


@pytest.mark.slow
def test_a_row_that_goes_on_adds_to_what_it_has(tmp_path: Path) -> None:
    """Minutes, diverged trainings, versions and the GPU of its first trainings stay; the label of a trial does not."""
    measure(cancer_table(tmp_path, seeds=3), tmp_path, only="near")
    more = cancer_table(tmp_path, seeds=3, most_seeds=4)
    store = store_of(more, tmp_path)
    rows = store.read()
    today = json.loads(rows.loc[0, "versions"])
    versions = today | {"torch": "1.0", "device": "cuda (a GPU)"}
    store.write(rows.assign(wall_minutes=50.0, diverged=2, versions=json.dumps(versions), changed='{"clients": 10}'))
    _, after = measure(more, tmp_path, only="near")
    row = after.to_dict("records")[0]
    assert row["seeds"] == 4 and 50.0 <= row["wall_minutes"] < 55.0 and row["diverged"] == 2
    assert json.loads(row["versions"])["device"] == "cuda (a GPU), cpu"
    assert json.loads(row["versions"])["torch"] == f"1.0, {today['torch']}"
    assert pd.isna(row.get("changed"))


KEPT = {"seeds": 2, "rounds": 3, "accuracies": "[[0.5], [0.7]]", "trained_accuracy": 0.6, "diverged": 0}
KEPT |= {"wall_minutes": 0.1, "versions": "{}"}


@pytest.mark.parametrize(
    ("given", "rounds", "trainings"),
    [
        ({}, False, 2),
        ({"accuracies": "[[0.5], [0.6], [0.7]]"}, False, 0),
        ({"accuracies": "[[0.1, 0.2, 0.5], [0.1, 0.2, 0.7]]"}, False, 0),
        ({"accuracies": "[[0.1, 0.2, 0.5], [0.1, 0.2, 0.7]]"}, True, 2),
        ({}, True, 0),
        ({"accuracies": math.nan}, False, 0),
        ({"trained_accuracy": 0.61}, False, 0),
        ({"trained_accuracy": math.nan}, False, 0),
        ({"diverged": math.nan}, False, 0),
        ({"wall_minutes": math.nan}, False, 0),
        ({"versions": math.nan}, False, 0),
    ],
)
def test_a_row_goes_on_only_with_all_that_it_needs(given: dict[str, Any], rounds: bool, trainings: int) -> None:
    table = dataclasses.replace(TABLES["fed_alpha_cdp_table_2"], rounds=Rounds(2, {}, ()) if rounds else None)
    assert trainings_of(table, [KEPT | given]) == trainings
    for column in ("accuracies", "diverged", "wall_minutes", "versions"):
        assert trainings_of(table, [{name: value for name, value in KEPT.items() if name != column}]) == 0
    assert trainings_of(table, []) == 0


def test_an_engine_measures_only_the_trainings_that_a_row_lacks(tmp_path: Path) -> None:
    table = cancer_table(tmp_path, seeds=3, most_seeds=5)
    three = KEPT | {"seeds": 3, "accuracies": "[[0.5], [0.7], [0.6]]"}
    engine = engine_of("process", Places(workers=1), tmp_path)
    execution = Execution(tmp_path / "runs", None, Reporter(quiet=True), engine)
    for begun, seeds in (((), [0, 1, 2, 3, 4]), ((three,), [3, 4])):
        (job,) = plan_of(table).jobs({"near": Wanted("full", {}, begun)}, tmp_path, execution)
        assert [request.seed for request in job.requests] == seeds


@pytest.mark.slow
def test_a_row_of_the_scale_quick_is_tested_as_one_of_full_size(tmp_path: Path) -> None:
    """Where quick changes only the seeds the cells are the same, and at full size each further training is a test more."""
    least = cancer_table(tmp_path, quick={"seeds": 3}, seeds=3, most_seeds=4)
    measure(least, tmp_path, only="near", scale="quick")
    _, rows = measure(least, tmp_path, only="near")
    assert rows.loc[0, ["scale", "seeds"]].tolist() == ["full", 4]


@pytest.mark.slow
def test_a_row_has_the_numbers_of_its_leakage_point(tmp_path: Path) -> None:
    """Each column equals the field of the run's summary; the accuracy is that of the model that leaked."""
    federation = {"clients": 10, "clients_per_round": 5, "local_iterations": 9, "train_rounds": 3, "noise_factor": 0.01}
    leak = {"protocol": "live", "leak_rounds": ["1", "2"], "taps": ["type-2", "type-1"], "victims": 4, "candidates": 30}
    given = {"dataset": "cancer", "attack": "cpl", "iterations": 2, "defense": "fed_sdp_client_valid"} | federation
    table = read_table(str(tiny(tmp_path, given=given | leak, rows=[{"name": "one"}], quick={})))
    _, found = measure(table, tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["summary"]
    accuracies = pd.read_parquet(folder / "rounds.parquet")["accuracy"].tolist()
    assert len({*accuracies}) == 3
    assert found["point"].tolist() == list(summary["taps"])
    for row in found.to_dict("records"):
        tap = summary["taps"][row["point"]]
        names_of = (*MEASURES, "victims", "batch", "networks", "verdict")
        copied = {name: None if pd.isna(row[name]) else row[name] for name in names_of}
        assert copied == {name: tap[name] for name in names_of}
        assert row["accuracy"] == accuracies[tap["round"] - 1]
        assert (row["epsilon_claimed"], row["epsilon_valid"]) == pytest.approx(
            (summary["epsilon"]["claimed"], summary["epsilon"]["valid"])
        )
    assert found["epsilon_claimed"][0] != pytest.approx(found["epsilon_valid"][0])
    assert found["trained_accuracy"].tolist() == [accuracies[-1]] * 4


@pytest.mark.slow
def test_a_page_says_how_many_networks_diverged(tmp_path: Path) -> None:
    """At a learning rate of 1e9, no output is finite, so no prediction counts as right: an accuracy of 0."""
    table = cancer_table(tmp_path, rows=[{"name": "fast", "given": {"learning_rate": 1e9}}, {"name": "plain"}], seeds=2)
    _, rows = measure(table, tmp_path)
    assert dict(zip(rows["cell"], rows["diverged"], strict=True)) == {"fast": 2, "plain": 0}
    page = (tmp_path / "tiny.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith("| fast |")]
    assert "| 0.000 [0.000, 0.658] (2 of 2 diverged) |" in line and page.count("diverged") == 1


def test_a_page_names_older_rows_with_an_accuracy_of_0() -> None:
    """Rows of earlier versions do not count the trainings that diverged; rows that do say so next to the accuracy."""
    rows = pd.DataFrame({"cell": ["a", "b", "c", "a"], "trained_accuracy": [0.0, 0.0, 0.5, 0.0]})
    said = "An accuracy of 0 is that of a network that diverged, so that no output is finite: "
    assert without_an_answer(rows) == [f"{said}a; b.", ""]
    assert without_an_answer(rows.assign(diverged=[math.nan, 3, math.nan, math.nan])) == [f"{said}a.", ""]
    assert without_an_answer(rows.assign(diverged=0)) == without_an_answer(rows[["cell"]]) == []
    table = TABLES["fed_alpha_cdp_table_10"]
    old = {"cell": table.lines[0].name, "point": "type-2", "scale": "full", "seeds": 3, "trained_accuracy": 0.0}
    old |= {"row": old["cell"], "trained_accuracy_low": 0.0, "trained_accuracy_high": 0.561}
    assert f"{said}{table.lines[0].name}." in page_of(table, pd.DataFrame([old]))


def test_the_accuracy_of_several_seeds_is_their_mean() -> None:
    """Student's interval: for three seeds 4.30 standard errors to each side."""
    found = accuracy_of([0.5, 0.7, 0.6], 100)
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert found["trained_accuracy"] == pytest.approx(0.6)
    assert found["trained_accuracy_high"] - 0.6 == pytest.approx(half, rel=1e-5)
    assert 0.6 - found["trained_accuracy_low"] == pytest.approx(half, rel=1e-5)


def test_rows_at_a_point_are_only_those_of_its_round() -> None:
    rows = pd.DataFrame([{"round": r, "tap": t} for r in (1, 2) for t in ("type-1", "type-2") for _ in range(2)])
    found = rows_at(rows, LeakagePoint.of("type-1@2"))
    assert list(found.index) == [4, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdict", "resilient"),
    [
        ("reconstructs", 0.0),
        ("identifies", 0.0),
        ("no leak found", 1.0),
        ("inconclusive", math.nan),
        ("attack failed", math.nan),
    ],
)
def test_resilient_means_no_leak_found(verdict: str, resilient: float, tmp_path: Path, monkeypatch: Any) -> None:
    """Table 3 asks whether a defense withstands a leak: a failed attack or weak evidence answers neither yes nor no."""
    table = small(tmp_path)
    plain = measuring.executed

    @contextmanager
    def said(*given: Any) -> Iterator[Any]:
        with plain(*given) as (summary, run):
            yield summary.replaced(taps={n: tap.replaced(verdict=verdict) for n, tap in summary.taps.items()}), run

    monkeypatch.setattr(measuring, "executed", said)
    _, found = measure(table, tmp_path, only="cpl")
    assert list(found["resilient"]) == pytest.approx([resilient], nan_ok=True)
    assert list(found["verdict"]) == [verdict]


def test_missing_cells_are_named_together() -> None:
    table = TABLES["fed_alpha_cdp_table_4"]
    [one] = [line for line in table.lines if line.name == "N = 100, 10 %, Fed-CDP"]
    rows = pd.DataFrame([{"row": one.name, "cell": one.name, "point": "type-2", "scale": "full"}])
    page = page_of(table, rows)
    assert "N = 100, 10 % (6 cells)" in page
    assert "N = 10000, 50 % (4 cells)" in page


def test_the_first_settings_of_a_sweep_that_reach_its_target() -> None:
    """In the table's order, from the most noise on: by the mean, and by the interval of one more training; or none."""
    measured_at = [
        ("a", 6, 0.5, 0.4, 0.69),
        ("a", 3, 0.8, 0.7, 0.85),
        ("a", 1, 0.9, 0.89, 0.91),
        ("a", 0.5, 0.95, 0.9, 0.96),
        ("b, c", 6, 0.2, 0.1, 0.3),
        ("b, c", 3, 0.89, 0.8, 0.99),
        ("d", 6, 0.5, 0.4, 0.6),
    ]
    rows = pd.DataFrame(
        [
            {"cell": f"{sweep}, sigma = {sigma}", "aim": 0.9, "trained_accuracy": accuracy}
            | {"trained_accuracy_low": low, "trained_accuracy_high": high, "epsilon_valid": 1 / sigma, "seeds": 3}
            for sweep, sigma, accuracy, low, high in measured_at
        ]
    )
    one, other, none = reached(rows)
    # Over three trainings the interval of one more is twice the longer side of that of their mean, and cut at 0 and 1.
    assert (one.sweep, one.aim, one.mean.cell, one.few) == ("a", 0.9, "sigma = 1", 0)
    assert one.possible == Setting("sigma = 3", "0.800 [0.700, 0.850]", "[0.600, 1.000]", "-", "0.333")
    assert (other.sweep, other.possible.further) == ("b, c", "[0.690, 1.000]")
    # On few test examples a training may come out higher by chance; and .8995 may be printed as .9.
    assert reached(rows, {"a, sigma = 6": 20})[0].possible.cell == "sigma = 6"
    for short, cell in ((4e-4, "sigma = 6"), (6e-4, "sigma = 3")):
        near = rows.assign(trained_accuracy_high=rows["trained_accuracy"] + 0.2 - short / 2)
        assert reached(near.assign(trained_accuracy_low=near["trained_accuracy"]))[0].possible.cell == cell
    assert other.mean == none.mean == none.possible == Setting("none of those measured", "-", "-", "-", "-")


def test_one_or_two_trainings_exclude_nothing() -> None:
    """The interval of a single training is over test examples; a sweep of such cells has a mean, but says nothing of others."""
    cell = {"aim": 0.9, "trained_accuracy": 0.5, "trained_accuracy_low": 0.49, "trained_accuracy_high": 0.51}
    rows = pd.DataFrame([{**cell, "cell": f"a, {seeds}", "seeds": seeds} for seeds in (1, 2, 3)])
    (found,) = reached(rows)
    assert (found.few, found.possible.cell) == (2, "none of those measured")
    (found,) = reached(rows[rows["seeds"] < 3])
    assert (found.few, found.possible, found.mean.cell) == (2, Setting("-"), "none of those measured")
    (found,) = reached(rows.assign(trained_accuracy=0.95)[:1])
    assert (found.mean.cell, found.possible) == ("1", Setting("-"))


@pytest.mark.parametrize("unknown", ["seeds", "trained_accuracy", "trained_accuracy_low", "trained_accuracy_high"])
def test_a_cell_without_a_number_excludes_nothing(unknown: str) -> None:
    """Rows of older versions may lack one; such cells count as those with few trainings."""
    cell = {
        "aim": 0.9,
        "trained_accuracy": 0.5,
        "trained_accuracy_low": 0.49,
        "trained_accuracy_high": 0.51,
        "seeds": 3,
    }
    rows = pd.DataFrame([{**cell, "cell": f"a, {n}"} for n in (1, 2)])
    rows.loc[0, unknown] = math.nan
    assert [(each.few, each.possible.cell) for each in reached(rows)] == [(1, "none of those measured")]
    assert [(each.few, each.possible) for each in reached(rows.drop(columns=[unknown]))] == [(2, Setting("-"))]


def test_the_page_follows_the_current_table() -> None:
    """A corrected number of a paper next to an older measured row; a row with another name; a target."""
    table = TABLES["fed_alpha_cdp_table_10"]
    line = table.lines[0]
    old = {"cell": line.name, "point": "type-2", "claimed_accuracy": 0.1, "scale": "full", "seeds": 3}
    rows = table.current(pd.DataFrame([old, {**old, "cell": "renamed"}]))
    assert rows["cell"].tolist() == [line.name]
    assert rows["claimed_accuracy"].tolist() == [line.claimed("type-2")["accuracy"]]
    assert "aim" not in rows
    sweep = TABLES["largest_noise"]
    assert sweep.current(pd.DataFrame([{**old, "cell": sweep.lines[0].name}]))["aim"].tolist() == [sweep.lines[0].aim]


def test_members_without_a_reconstruction_are_the_worst_of_their_batch() -> None:
    """Two of three fail in each of twelve batches: the median of the others does not describe the attack."""
    rows = pd.DataFrame(
        [
            {
                "victim": victim,
                "network": 0,
                "rmse": 0.01 if member == 0 else math.nan,
                "iterations_to_success": 5.0 if member == 0 else math.nan,
            }
            for victim in range(12)
            for member in range(3)
        ]
    )
    found = point_of(Tap(), rows)
    assert all(math.isinf(found[f"{name}_{end}"]) for name in ("rmse", "iterations") for end in ("low", "high"))
    assert found["rmse_mean"] is None


def test_an_answer_picks_its_own_where_no_other_example_is_as_near() -> None:
    """Nearer to its truth, as near to another one, nearer to another one, and missing."""
    answers = torch.tensor([[0.25], [0.5], [0.75], [math.nan]])
    assert measuring._picked(answers, torch.zeros(4, 1), torch.ones(1, 1)) == 0.25


def test_the_mean_rmse_of_a_row_covers_its_networks() -> None:
    """Means over batches, not over images; over the two networks' means the interval is far wider than over eight batches'."""
    scores = [[0.1, 0.3], [0.2, 0.2], [0.1, 0.3], [0.2, 0.22]] + [[0.5, 0.7]] * 4
    rows = pd.DataFrame(
        {"victim": victim, "network": victim // 4, "rmse": score, "iterations_to_success": 1.0}
        for victim, batch in enumerate(scores)
        for score in batch
    )
    found, alone = point_of(Tap(), rows), point_of(Tap(), rows.assign(network=0))
    assert found["rmse_mean"] == alone["rmse_mean"] == pytest.approx(0.40125)
    assert found["rmse_mean_high"] - found["rmse_mean_low"] > 2 * (alone["rmse_mean_high"] - alone["rmse_mean_low"])


def test_tables_are_in_natural_order() -> None:
    """Of the command, of the index and of the list of pages: Table 2 comes before Table 10."""
    inside = [name for name in table_names() if re.fullmatch(r"fed_alpha_cdp_table_\d+", name)]
    assert inside == [f"fed_alpha_cdp_table_{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)]
    for listed in (index_of(RESULTS), pages_of(RESULTS)):
        assert re.findall(r"/(fed_alpha_cdp_table_\d+).md", listed) == inside


@pytest.mark.slow
def test_the_index_counts_the_verdicts_of_the_rows(tmp_path: Path) -> None:
    """Each claim of the pages in results/ counts once; the sums are below."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    within = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert within == index_of(RESULTS)
    verdicts = [
        c.verdict for name in WRITTEN for c in claims_of(TABLES[name], pd.read_csv(published_file(f"{name}.csv")))
    ]
    for name in table_names():
        if isinstance(table := read_any(name), AccountingTable):
            verdicts += [c.verdict for c in judged(table, pd.read_csv(published_file(f"{name}.csv")))]
    counts = [verdicts.count(word) for word in VERDICTS]
    assert sum(counts) == len(verdicts) > 0
    assert within.splitlines()[-1] == f"| all | {' | '.join(map(str, counts))} |  |  |  |"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ("fed_alpha_cdp_tabel_1",),
            "table: unknown name 'fed_alpha_cdp_tabel_1'; did you mean 'fed_alpha_cdp_table_1'?",
        ),
        (
            ("fed_alpha_cdp_table_1", "--set", "victims", "--out", "x"),
            "set: got 'victims', expected NAME=VALUE, as victims=20",
        ),
        (
            ("fed_alpha_cdp_table_1", "--set", "victim=2", "--out", "x"),
            "set: 'victim' is not a number of a cell; did you mean",
        ),
        (("fed_alpha_cdp_table_1", "--set", "attack=2", "--out", "x"), "set: 'attack' is not a number of a cell"),
        (
            ("fed_alpha_cdp_table_1", "--set", "victims=few", "--out", "x"),
            "set: victims: got 'few', expected a whole number",
        ),
        (
            ("fed_alpha_cdp_table_1", "--set", "victims=2", "--set", "victims=3", "--out", "x"),
            "set: victims appears twice",
        ),
        (
            ("fed_alpha_cdp_table_1", "--set", "learning_rate=.nan", "--out", "x"),
            "set: learning_rate: got '.nan', expected a finite number",
        ),
        (("fed_alpha_cdp_table_1", "--set", "victims=2"), "set: measures a trial, which would take the place of"),
        (("al", "--stale"), "table: unknown name 'al'; did you mean 'all'?"),
        (("xyzxyz",), "table: unknown name 'xyzxyz'; `leakbench reproduce` lists the names (or a path that ends"),
        (
            ("--only", "cancer", "--again"),
            "table: got none with --only, --again, expected a TABLE; `leakbench reproduce` lists the names",
        ),
        (("fed_alpha_cdp_table_1", "--only", "mnits"), "only: no row's name contains 'mnits'"),
        (("fed_alpha_cdp_table_1", "--scale", "fast"), "scale: got 'fast'"),
        (("fed_alpha_cdp_table_1", "--page", "--out", "x"), "page: rows not found in x/fed_alpha_cdp_table_1.csv"),
        (("nowhere.yaml",), "table: no file 'nowhere.yaml'"),
        (("all", "--only", "cpl"), "table: got all, which takes no --only and no --set"),
        (("all", "--set", "victims=2", "--out", "x"), "table: got all, which takes no --only and no --set"),
        (("all", "--page", "--out", "x"), "page: no rows of tables in 'x'"),
        (("all", "--scale", "fast"), "scale: got 'fast'"),
        (("all", "--stale", "--out", "x"), "stale: no rows of tables in 'x'"),
        (("all", "--stale", "--only", "cpl"), "table: got all, which takes no --only"),
        (("fed_alpha_cdp_table_1", "--data-dir", "nowhere"), "'nowhere' does not exist"),
    ],
)
def test_wrong_input_is_one_line(
    given: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = called(monkeypatch, capsys, "reproduce", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": [{"name": "a", "claims": {"asr": 1}}]}, "row 'a': unknown field 'claims'; did you mean 'claim'?"),
        ({"rows": [{"given": {}}]}, "row None: missing field 'name'"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "rows: two are called 'a'"),
        (
            {"rows": [{"name": "a", "claim": {"assr": 1}}]},
            "row 'a': claim: 'assr' is not measured; did you mean 'asr'?",
        ),
        ({"samples": {"asr": 5}}, "samples, samples_from: each needs the other"),
        ({"samples": {"assr": 5}, "samples_from": "x"}, "samples: 'assr' is not measured; did you mean 'asr'?"),
        ({"samples": {"asr": 0.5}, "samples_from": "x"}, "samples: asr: got 0.5, expected a whole number >= 1"),
        ({"columns": "claim"}, "columns: got 'claim'; did you mean 'claims'?"),
        ({"tittle": "A"}, "unknown field 'tittle'; did you mean 'title'?"),
    ],
)
def test_a_wrong_table_is_named_with_its_field(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_table(str(tiny(tmp_path, **changes)))
    assert says in str(caught.value) and "tiny.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_field_of_a_cell_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 'cpl': unknown field 'victim'; did you mean 'victims'"):
        read_table(str(tiny(tmp_path, given={**TINY["given"], "victim": 1})))  # type: ignore[dict-item]


def test_the_figure_of_observations_shows_its_rows() -> None:
    """For each sigma, a solid line of the measurements and a dashed one of its bound, in separate panels."""
    rows = pd.DataFrame(
        [
            {"dataset": dataset, "defense": f"clip_4_sigma_{sigma}", "observations": n, "identified": n / 200}
            | {"identified_bound": n / 100, "label_ranked": n / 150, "label_ranked_bound": n / 110}
            for dataset in ("mnist", "lfw")
            for sigma in ("0_3", "6")
            for n in (100, 1, 10)
        ]
    )
    figure = strongest_looks.drawn(rows)
    assert len(figure.axes) == 3
    for axes, share in zip(figure.axes, (200, 200, 150), strict=True):
        measured, bound = axes.lines[0], axes.lines[1]
        assert list(measured.get_xdata()) == [1, 10, 100]
        assert list(measured.get_ydata()) == pytest.approx([n / share for n in (1, 10, 100)])
        assert list(bound.get_ydata()) == pytest.approx([n / (100 if share == 200 else 110) for n in (1, 10, 100)])
        assert axes.lines[2].get_label() == "sigma 6"


def test_the_published_figure_of_observations_is_that_of_its_rows() -> None:
    """Rows that were measured again without drawing the figure change about 3 % of its pixels."""
    store = RowStore(published_file("strongest_looks.csv"), of_table("strongest"))
    figure, published = strongest_looks.drawn(store.read()), imread(published_file("strongest_looks.png"))
    figure.set_dpi(strongest_looks.DPI)
    figure.canvas.draw()
    now = np.asarray(figure.canvas.buffer_rgba()) / 255  # type: ignore[attr-defined]
    assert published.shape == now.shape
    assert (np.abs(published - now).max(axis=2) > 0.1).mean() < 0.005


@pytest.mark.slow
def test_two_tables_measured_at_once_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one command measures a cell, another one writes the next row; a deleted page is written again."""
    from leakbench.reproduce import plans  # noqa: PLC0415

    table, plain = small(tmp_path), plans.measured

    def meanwhile(*given: Any) -> Any:
        found = plain(*given)
        monkeypatch.setattr(plans, "measured", plain)
        assert measure(table, tmp_path, only="dlg")[0] == ["dlg"]
        return found

    monkeypatch.setattr(plans, "measured", meanwhile)
    assert measure(table, tmp_path, only="cpl")[0] == ["cpl"]
    assert list(pd.read_csv(tmp_path / "tiny.csv")["row"]) == ["cpl", "dlg"]
    page = tmp_path / "tiny.md"
    whole = page.read_bytes()
    page.unlink()
    assert measure(table, tmp_path)[0] == [] and page.read_bytes() == whole


@pytest.mark.slow
def test_a_trial_names_the_numbers_that_differ_from_the_table(tmp_path: Path) -> None:
    """The page of a user's table has its path and its seed in the command that measures it again."""
    table = read_table(str(tiny(tmp_path, given={**TINY["given"], "seed": 7})))  # type: ignore[dict-item]
    _, rows = measure(table, tmp_path, only="cpl", changed={"victims": 3, "iterations": 1})
    said = "- 1 iteration instead of 2, 3 victims instead of 2 (`--set iterations=1 --set victims=3`): cpl."
    page = (tmp_path / "tiny.md").read_text(encoding="utf-8")
    assert "A trial: " in page and said in page
    assert f"`leakbench reproduce {tmp_path / 'tiny.yaml'} --only" in page and "All rows use seed 7." in page
    # The note covers earlier rows too, but no row of the full table.
    assert said in page_of(table, RowStore(tmp_path / "tiny.csv", of_table("claims")).read())
    assert "A trial" not in page_of(table, rows.drop(columns="changed"))
    _, both = measure(table, tmp_path, only="dlg")
    assert said in page_of(table, both) and "changed" in both


@pytest.mark.slow
def test_a_page_elsewhere_has_its_whole_command_no_dead_link_and_its_caveats(tmp_path: Path) -> None:
    rows = [{"name": "cpl", "claim": {"asr": 1.0}}, {"name": "later"}]
    path, out = tiny(tmp_path, rows=rows), tmp_path / "my rows"
    measure(read_table(str(path)), out, only="cpl")
    page = (out / "tiny.md").read_text(encoding="utf-8")
    assert f"- **Command:** `leakbench reproduce {path} --scale full --out '{out}'`" in page
    assert "What the verdicts mean (docs/papers.md of leakbench)." in page and "](../" not in page
    assert "1 of 1 cell has fewer than 10 victims: its intervals are wide." in page
    assert "1 of 2 cells is not measured yet." in page
    measure(read_table(str(path)), out, only="cpl", changed={"victims": 3})
    assert f"--scale full --set victims=3 --out '{out}'`" in (out / "tiny.md").read_text(encoding="utf-8")


def test_the_command_of_a_page_has_the_scale_of_its_rows(tmp_path: Path) -> None:
    """`auto` for rows of both scales; none where all rows are quick, or where quick changes nothing."""
    names = [{"name": "cpl"}, {"name": "dlg"}]
    _, rows = measure(read_table(str(tiny(tmp_path, rows=names))), tmp_path)

    def command(scales: list[str], out: Path | None = None, **changes: Any) -> str:
        page = page_of(read_table(str(tiny(tmp_path, rows=names, **changes))), rows.assign(scale=scales), out=out)
        return page.partition("> - **Command:** `leakbench reproduce ")[2].partition("`")[0].partition("tiny.yaml")[2]

    for out, more in ((None, ""), (tmp_path, f" --out {tmp_path}")):
        assert command(["full", "full"], out) == f" --scale full{more}"
        assert command(["full", "quick"], out) == f" --scale auto{more}"
        assert command(["quick", "quick"], out) == more
        assert command(["full", "full"], out, quick={}) == more


@pytest.mark.parametrize("title", ["<script>alert(1)</script>", "a | b", "<img src=x>"])
def test_titles_and_names_are_escaped(title: str, tmp_path: Path) -> None:
    row = {"name": title, "claim": {"asr": 1.0}, "because": title}
    table = read_table(str(tiny(tmp_path, title=title, text=title, found=title, cite=title, rows=[row])))
    measure(table, tmp_path)
    page = (tmp_path / "tiny.md").read_text(encoding="utf-8")
    assert "<script" not in page and "<img" not in page
    widths = {line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("| ")}
    heads = [line.count("|") for line in page.splitlines() if line.startswith("| ---")]
    assert widths == set(heads)


def test_the_box_of_a_page_is_computed_from_its_rows() -> None:
    name = "servers_spear"
    table, rows = TABLES[name], RowStore(published_file(f"{name}.csv"), of_table("servers")).read()
    top = page_of(table, rows).partition("- **Command:**")[0]
    assert f"- **Claim:** {' '.join(table.question.split())}" in top
    assert f"- **Verdict:** {' '.join(table.answer.split())} Leak verdicts of {len(rows)} rows: `reconstructs` " in top
    assert f"- **Evidence:** {len(rows)} rows, 5 victims a row, " in top
    older = rows.assign(behaviours='{"rankings": 1}', networks=1.0)
    top = page_of(table, older, elsewhere=True).partition("- **Command:**")[0]
    assert f"{len(rows)} of {len(rows)} cells are stale" in top
    assert f"{len(rows)} cells were measured on one network" in top
    assert "- **Verdict:** Leak verdicts" in top  # The box describes the published rows.


def test_the_caveats_of_a_box_count_rows() -> None:
    """Rows without a leak, rows that reconstruct beyond their ASR, and cells of few trainings; a missing number is one."""
    words = ["reconstructs", "reconstructs", "inconclusive", "attack failed", "no leak found"]
    rows = pd.DataFrame({"verdict": words, "asr": [0.0, 0.9, 0.0, 0.0, 0.0], "null_asr": 0.1})
    assert (
        without_leak(rows)
        == "2 rows show no leak, 1 `inconclusive` and 1 `attack failed`, which does not show protection."
    )
    assert without_leak(rows[:3]) == "1 row is `inconclusive`, which does not show protection."
    assert without_leak(rows[3:4]) == "1 row is `attack failed`, which does not show protection."
    assert without_leak(rows[:2]) == without_leak(rows[4:]) == without_leak(rows[["asr"]]) == ""
    assert beyond_the_asr(rows).startswith("1 row says `reconstructs` at an ASR not above the baseline guess's")
    assert beyond_the_asr(rows[1:]) == beyond_the_asr(rows[["verdict"]]) == ""
    assert beyond_the_asr(rows.assign(asr=0.1)).startswith("2 rows say")
    cells = pd.DataFrame({"cell": ["a", "b", "c"], "seeds": [3, 2, math.nan]})
    assert few_seeds(cells, 3).startswith("2 of 3 cells have fewer than 3 trainings")


def test_the_evidence_of_a_box_has_the_range_of_its_rows() -> None:
    rows = pd.DataFrame({"cell": ["a", "b", "c"], "victims": [10.0, 1000.0, 20.0], "networks": [5.0, np.nan, 5.0]})
    assert evidence_of(rows) == "3 rows, 10 to 1,000 victims a row, 5 networks a row (not recorded for 1 row)."


def test_every_table_states_its_claim_and_its_verdict_without_numbers() -> None:
    for table in (*TABLES.values(), *(read_any(n) for n in table_names() if n not in TABLES)):
        assert table.question.strip().endswith((".", "?")), table.name
        assert table.answer.strip().endswith("."), table.name
        assert not re.search(r"(?<![\w.])\.\d|\d\.\d", table.answer), table.name


def test_the_published_figure_of_correlated_noise_is_that_of_its_rows() -> None:
    figure = correlated_noise.drawn(*(correlated_noise.read(n) for n in ("correlated_noise", "correlated_noise_leak")))
    figure.set_dpi(correlated_noise.DPI)
    figure.canvas.draw()
    now = np.asarray(figure.canvas.buffer_rgba()) / 255  # type: ignore[attr-defined]
    published = imread(published_file("correlated_noise.png"))
    assert published.shape == now.shape
    assert (np.abs(published - now).max(axis=2) > 0.1).mean() < 0.005


def test_the_figure_of_correlated_noise_has_a_line_for_each_defense_at_its_epsilons() -> None:
    ends = {"trained_accuracy_low": 0.1, "trained_accuracy_high": 0.9}
    accuracies = pd.DataFrame(
        [{"cell": "none", "trained_accuracy": 0.85} | ends]
        + [{"cell": f"{d}, epsilon {e}", "trained_accuracy": (e + 10) / 50} | ends for d in ("a", "b") for e in (32, 2)]
    )
    leaks = pd.DataFrame(
        [
            {"cell": f"{d}, epsilon {e}", "point": point, "identified": share}
            | {"identified_low": 0.0, "identified_high": 1.0}
            for d, share in (("a", 1.0), ("b", 0.25))
            for e in (2, 32)
            for point in ("type-1", "type-0")
        ]
    )
    left, right = correlated_noise.drawn(accuracies, leaks).axes
    assert [list(line.get_ydata()) for line in left.lines[:2]] == [[12 / 50, 42 / 50]] * 2
    assert left.lines[-1].get_label() == "no defense"
    assert [list(line.get_ydata()) for line in right.lines[:2]] == [[1.0, 1.0], [0.25, 0.25]]


def test_time_left_is_estimated_for_cells_that_are_given_an_epsilon() -> None:
    """Their undefended counterparts, by which the work is compared, have none."""
    table = table_of(*body_of("correlated_noise"))
    cells = [line.name for line in table.lines if line.name.endswith("epsilon 8")]
    rows = pd.DataFrame({"cell": cells, "scale": "full", "seeds": 1, "wall_minutes": 3.0, "minutes": 3.0})
    left = minutes_left(table, rows)
    assert left["Fed-SDP, epsilon 2"] == pytest.approx(3.0)


def test_a_legend_defines_eta_once() -> None:
    """A table with its own threshold does not have the one that is calibrated on pairs of examples."""
    for kind in ("claims", "texts"):
        usual = "\n".join(legend_of(COLUMNS[kind], {None}))
        assert "once in a thousand pairs" in usual and "- eta:" not in usual
    own = legend_of(COLUMNS["claims"], {0.1122})
    assert "thousand pairs" not in "".join(own) and own[-1] == "- eta: the threshold of success; 0.1122 in this table."
    assert legend_of(COLUMNS["claims"], {None, 0.05})[-1].endswith(
        "0.05 in this table, and that of the data set in other rows."
    )


def test_the_share_of_batches_is_that_of_attacks_that_read_one_image_at_most() -> None:
    row = {"attack": OF_ONE[0], "batch": 64, "asr": 25 / (50 * 64), "asr_low": 0.28 / 64, "asr_high": 1.5 / 64}
    assert batches_with_one(row) == "0.50 [0.28, 1.00]"
    assert batches_with_one({**row, "attack": "imprint"}) == "-"
    assert batches_with_one({**row, "asr": float("nan")}) == "-"
