"""The model of a summary: what is written is what was read, and every rate of the registry has its fields."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import leakbench
from leakbench.core.errors import InputError
from leakbench.measure.measures import MEASURES, RMSE
from leakbench.measure.rates import ASR, EXCLUDABLE, IDENTIFIED, RATES, RECOGNISED, fields_of
from leakbench.storage.summary import Summary, Tap

ROOT = Path(__file__).parents[2]
RUNS = {
    "pictures": {"dataset": "digits", "attack": "cpl", "defense": "fed_cdp_valid", "train_rounds": 1},
    "records": {"dataset": "cancer", "attack": "tableak", "taps": ("type-1", "type-2"), "train_rounds": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("given", RUNS.values(), ids=RUNS)
def test_a_summary_is_written_as_it_was_read(given: dict[str, Any], tmp_path: Path) -> None:
    result = leakbench.run(**given, victims=2, iterations=1, candidates=5, out=tmp_path / "run", quiet=True)
    summary = json.loads((result.folder / "manifest.json").read_text(encoding="utf-8"))["summary"]
    assert json.dumps(Summary.of(summary).as_dict()) == json.dumps(summary)


def test_fields_are_written_in_the_order_of_the_model_and_unknown_ones_are_kept() -> None:
    summary = Summary.of({"taps": {"type-1": {"asr": 1, "of_tomorrow": 2.0, "round": 3}}, "rounds": 2, "new": [1]})
    assert json.dumps(summary.as_dict()) == (
        '{"rounds": 2, "taps": {"type-1": {"round": 3, "asr": 1, "of_tomorrow": 2.0}}, "new": [1]}'
    )
    assert summary.taps["type-1"].value("of_tomorrow") == 2.0
    assert summary.taps["type-1"].value("of_yesterday") is None


def test_a_field_of_another_type_is_named() -> None:
    with pytest.raises(InputError, match=r"summary\.taps\.type-1\.verdict"):
        Summary.of({"taps": {"type-1": {"verdict": 3}}})


def test_every_rate_and_every_measure_has_its_fields() -> None:
    known = set(Tap.model_fields)
    assert {measure.name for measure in MEASURES} | set(fields_of()) <= known
    for rate in RATES:
        assert not rate.interval or {rate.low, rate.high} <= known
        assert not rate.bound or rate.bound in known
    assert {rate.excluded for rate in EXCLUDABLE} <= known
    assert len({rate.name for rate in RATES}) == len({rate.heading for rate in RATES}) == len(RATES)


@pytest.mark.parametrize("value", [-0.1, 1.1, 2])
def test_every_rate_is_a_share(value: float) -> None:
    fields = {*fields_of(), *(rate.bound for rate in RATES), *(rate.excluded for rate in EXCLUDABLE)} - {""}
    for field in fields | {end for rate in RATES if rate.interval for end in rate.ends}:
        with pytest.raises(InputError, match=rf"taps\.type-1\.{field}: got '{value}', expected at (least 0|most 1)"):
            Summary.of({"taps": {"type-1": {field: value}}})


def test_an_interval_needs_both_of_its_ends() -> None:
    assert Tap(asr=0.5, asr_low=0.25, asr_high=0.75).interval(ASR.name) == (0.5, 0.25, 0.75)
    assert Tap(asr=0.5, asr_low=0.25).interval(ASR.name) is None


ELSEWHERE = {
    # Modules below `measure` that read files, and types of a card, which the language wants as literals.
    *("storage/manifest.py", "storage/summary.py", "storage/rows_file.py", "leaderboard/card.py"),
    # A function of this name.
    *("cell/__init__.py", "cell/cell.py"),
    # They start without PyTorch, which the functions of the measures need.
    "core/words.py",
    # The conformance cases name the scores of other programs.
    *("conformance/batch_cases.py", "conformance/contract.py", "conformance/pictures.py", "conformance/pixel_cases.py"),
}


def test_names_of_rates_and_measures_are_literals_only_in_measure() -> None:
    rates = {ASR.name, ASR.baseline, ASR.bound, IDENTIFIED.name, IDENTIFIED.bound, RECOGNISED.name, RECOGNISED.baseline}
    names = "|".join(sorted(rates | {RMSE.name, RMSE.baseline}))
    package = ROOT / "leakbench"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(rf"[\"']({names})[\"']", path.read_text(encoding="utf-8"))
    }
    assert {path for path in found if not path.startswith("measure/")} == ELSEWHERE
