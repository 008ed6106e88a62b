"""results/findings.md equals the output of studies/findings.py, and a finding is stated only where its rows show it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import findings
import pandas as pd
import pytest
from findings import Inputs, Source
from plain import hard_phrases

from leakbench.core.request import Request
from leakbench.core.verdict_words import LEAKING
from leakbench.reproduce.published import read_any
from leakbench.reproduce.reproduce import pages_of
from tests.published_files import RESULTS

PAGE = (RESULTS / "findings.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## (?=\d)", PAGE.partition("## Not in this list")[0], flags=re.MULTILINE)[1:]


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return findings.read()


def changed(inputs: Inputs, name: str, **columns: object) -> Inputs:
    """Return the rows with other values in all rows of a table."""
    source = inputs.tables[name]
    return replace(inputs, tables={**inputs.tables, name: replace(source, rows=source.rows.assign(**columns))})


def aged(inputs: Inputs, name: str) -> Inputs:
    """Return the rows with all rows of a table stale."""
    source = inputs.tables[name]
    return replace(inputs, tables={**inputs.tables, name: replace(source, stale=frozenset(source.rows["cell"]))})


def test_the_page_equals_the_output_of_the_script(inputs: Inputs) -> None:
    assert findings.page(inputs) == PAGE
    assert len(SECTIONS) == len(findings.FINDINGS) == 10


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition(".")[0])
def test_a_finding_has_an_interval_or_a_count_a_source_and_a_limit(section: str) -> None:
    text = " ".join(section.split())
    numbers = text.partition("- Source:")[0]
    interval = re.search(r"\d\.\d+ \[\d\.\d+, \d\.\d+\]", numbers)
    size = re.search(r"\d+ (victims|batches) on \d+ networks|\d+ networks|\d+ trainings", numbers)
    counted = re.search(r"\d+ of \d+ (printed|recipes|epsilons)", numbers)
    assert (interval and size) or (counted and "no interval is needed" in numbers)
    assert text.count("- It does not show: ") == 1
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all((RESULTS / link).is_file() for link in links)


def test_the_words_are_plain_and_the_lines_short() -> None:
    assert hard_phrases(PAGE) == []
    assert [line for line in PAGE.splitlines() if len(line) > 100 and not line.startswith("- Source:")] == []


def test_the_list_of_pages_has_the_findings() -> None:
    line = "- [Findings](findings.md)"
    assert line in pages_of(RESULTS).splitlines()
    assert line in (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("finding", "name", "columns"),
    [
        (findings.repeated_noise, "strongest_ranking", {"verdict": "inconclusive"}),
        (findings.repeated_noise, "strongest_ranking", {"identified_low": 0.0}),
        (findings.layer_wise_clip, "strongest_ranking", {"identified_high": 1.0}),
        (findings.honest_layer, "servers_rows", {"verbatim_low": 0.0}),
        (findings.honest_layer, "servers_rows", {"victims": 1, "networks": 1}),
        (findings.sums_of_clients, "servers_secure", {"asr_low": 0.0}),
        (findings.clips_and_pruning, "servers_defenses", {"asr_low": 0.4}),
        (findings.clips_and_pruning, "servers_defenses", {"verdict": "attack failed"}),
        (findings.flower_accountant, "flower_epsilons", {"gives": 1.0}),
    ],
)
def test_rows_that_are_not_significant_take_a_claim_back(finding, name, columns, inputs: Inputs) -> None:  # type: ignore[no-untyped-def]
    assert finding(inputs).doubts == []
    without = finding(changed(inputs, name, **columns))
    assert without.doubts and without.text(1) != finding(inputs).text(1)
    assert without.text(1).startswith("## 1. Not shown: ")
    assert "- Not shown, because " in without.text(1)


def test_the_noise_of_a_round_is_sigma_times_the_root_of_the_parameters() -> None:
    """The network of Table 4: 9 x 32, 9 x 32 x 64 and 1,600 x 10 weights; sigma C = 24 on the sum over K_t = 100 updates."""
    table = read_any("fed_alpha_cdp_table_4")
    line = next(line for line in table.lines if line.name == findings.STATED)
    found = findings.noise_of_a_round(Request(**line.given))
    parameters = 9 * 32 + 9 * 32 * 64 + 1600 * 10
    assert (found.parameters, found.layers, found.rounds) == (parameters, 3, 100) == (34_720, 3, 100)
    assert found.noise == pytest.approx(6 * 4 * math.sqrt(parameters) / 100, rel=1e-6)
    assert found.update == pytest.approx(4 * math.sqrt(3), rel=1e-6)
    assert found.noise > 6 * found.update
    # The texts of the table have these numbers.
    texts = " ".join([table.answer, table.found, line.because])
    for number in (f"{found.noise:.1f}", f"{found.update:.2f}", "34,720", "norm of 447", "reach 693"):
        assert number in texts
    assert round(found.noise * 10) == 447 and round(found.update * 100) == 693


def test_more_clients_make_the_noise_shorter_than_an_update(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings.printed_accuracy(inputs).doubts == []
    monkeypatch.setattr(findings, "STATED", "N = 10000, 10 %, Fed-SDP")
    assert findings.printed_accuracy(inputs).doubts == [
        "the noise of a round (4.5) is not longer than an update (6.93)"
    ]


def test_the_finding_on_released_code_says_for_which_noise_the_claim_is(inputs: Inputs) -> None:
    text = " ".join(findings.released_code(inputs).text(1).split())
    assert re.search(r"`fed_cdp_as_released` claims [\d.]+ \(for sigma 6\) and has [\d.,]+ \(with sigma 0\.5\)", text)


@pytest.mark.parametrize(
    ("finding", "name"),
    [
        (findings.printed_epsilons, "fed_alpha_cdp_table_7"),
        (findings.printed_accuracy, "fed_alpha_cdp_table_4"),
        (findings.repeated_noise, "strongest_ranking"),
        (findings.layer_wise_clip, "strongest_ranking"),
        (findings.honest_layer, "servers_rows"),
        (findings.sums_of_clients, "servers_secure"),
        (findings.clips_and_pruning, "servers_defenses"),
        (findings.flower_accountant, "flower_epsilons"),
    ],
)
def test_stale_rows_take_a_claim_back(finding, name, inputs: Inputs) -> None:  # type: ignore[no-untyped-def]
    text = " ".join(finding(aged(inputs, name)).text(1).split())
    assert "Not shown, because" in text and "rows are stale, measured with an earlier version" in text


def test_equal_intervals_take_back_the_claim_on_calibrated_noise(inputs: Inputs) -> None:
    source = inputs.frontiers["mnist"]

    def found(changed: Source) -> findings.Finding:
        return findings.calibrated_noise(replace(inputs, frontiers={**inputs.frontiers, "mnist": changed}))

    assert found(source).doubts == []
    assert found(replace(source, rows=source.rows.assign(identified_high=1.0))).doubts == [
        "0 of 2 settings have a better one"
    ]
    assert "rows are stale" in found(replace(source, stale=frozenset(source.rows["cell"]))).doubts[0]


def test_recipes_within_their_claim_or_changed_take_back_the_claim_on_released_code(inputs: Inputs) -> None:
    assert findings.released_code(inputs).doubts == []
    fine = tuple(replace(row, valid="0.1") if row.name == "fed_cdp_as_released" else row for row in inputs.defenses)
    assert findings.released_code(replace(inputs, defenses=fine)).doubts == ["only 6 of 7 recipes exceed their claim"]
    old = replace(inputs, old_defenses=frozenset({"fed_sdp_as_released"}))
    assert findings.released_code(old).doubts == ["1 of 7 recipes have changed since they were computed"]


def test_formulas_that_give_most_printed_numbers_take_the_claim_back(inputs: Inputs) -> None:
    for name in findings.BUDGETS:
        inputs = changed(inputs, name, stated=1.0, gives=1.0)
    assert findings.printed_epsilons(inputs).doubts == ["0 of 55 printed numbers do not follow, not most"]


def test_the_script_writes_the_page_and_the_list(
    tmp_path: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("<!-- pages -->\n<!-- end -->\n", encoding="utf-8")
    monkeypatch.setattr(findings, "RESULTS", tmp_path)
    monkeypatch.setattr(findings, "read", lambda: inputs)
    findings.main()
    assert (tmp_path / "findings.md").read_text(encoding="utf-8") == PAGE
    assert "- [Findings](findings.md)" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_row_of_few_examples_of_one_network_is_a_doubt() -> None:
    columns = {"row": ["a"], "cell": ["a"], "victims": [8], "batch": [1], "networks": [float("nan")]}
    rows = pd.DataFrame({**columns, "asr_low": [0.7], "verdict": ["reconstructs"]})
    assert Source("a.md", rows).doubts(rows, "asr", 0.0) == ["1 of 1 rows have fewer than 50 examples of one network"]


def test_a_defense_whose_rows_leak_is_not_said_to_stop_the_server(inputs: Inputs) -> None:
    """No image is within eta behind the strongest ones, but other measures find a leak, and the page says which verdict."""
    rows = inputs.tables["servers_defenses"].matching(
        r"prune 99 %, defense|sigma \.01, defense|cumulative, prune 90 %, defense|prune 90 %, B = 64, defense"
    )
    text = " ".join(SECTIONS[8].split())
    assert "nothing" not in text and len(rows) == 4
    assert all(f"verdict `{verdict}`" in text for verdict in rows["verdict"])
    assert f"{rows['verdict'].isin(LEAKING).sum()} of these 4 leak by other measures" in text


def test_a_network_that_diverged_has_no_accuracy() -> None:
    row = {"trained_accuracy": 0.0, "trained_accuracy_low": 0.0, "trained_accuracy_high": 0.561, "seeds": 3.0}
    assert findings.accuracy(pd.Series({**row, "diverged": 3.0})) == "diverged in every training"
    assert (
        findings.accuracy(pd.Series({**row, "diverged": 2.0}))
        == findings.accuracy(pd.Series(row))
        == "0.000 [0.000, 0.561]"
    )
