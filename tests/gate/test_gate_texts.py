"""`leakbench gate` on texts: sentences that come closer fail it, each measure next to the baseline guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import called
from transformers import GPT2Config

import leakbench
from leakbench.core.errors import InputError
from leakbench.core.hashes import content_hash
from leakbench.gate.baseline import baseline_of, kept_of
from leakbench.gate.gate import GateLimits, gate
from leakbench.storage.rows_file import read_rows
from leakbench.storage.store import finished_run

MEASURES = ("edit_distance", "exact_match", "rouge_1")

KEPT = (*MEASURES, *(f"null_{name}" for name in MEASURES))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of ten sentences on a small network, all of which are reconstructed."""
    home = tmp_path_factory.mktemp("texts")
    none: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    GPT2Config(vocab_size=4096, n_positions=32, n_embd=64, n_layer=2, n_head=2, **none).save_pretrained(home / "net")
    small = {"leak_batch": 1, "train_rounds": 0, "candidates": 20, "victims": 10, "networks": 1, "taps": ("type-1",)}
    names = {"model": f"hf:{home / 'net'}", "leak_model": f"hf:{home / 'net'}", "attack": "token_likelihood"}
    leakbench.run(dataset="reviews", **names, **small, out=home / "run", quiet=True)
    return home / "run"


def with_scores(run: Path, **scores: Any) -> None:
    """Write other scores into the rows of a run."""
    with finished_run(run) as found:
        found.write_rows("rows.parquet", found.read_rows("rows.parquet").assign(**scores))


def written(run: Path, **changes: Any) -> Path:
    """Write a baseline file of a run with changed columns."""
    kept = baseline_of(run)
    del kept["checksum"]
    kept["rows"] |= changes
    path = run.parent / "kept.json"
    path.write_text(json.dumps({**kept, "checksum": content_hash(kept)}), encoding="utf-8")
    return path


def test_sentences_that_come_closer_fail(run: Path, monkeypatch: Any, capsys: Any) -> None:
    kept = written(run, edit_distance=0.8, exact_match=0.0, rouge_1=[0.4] * 6 + [1.0] * 4)
    code, out, err = called(
        monkeypatch, capsys, "gate", str(run), "--baseline", str(kept), "--markdown", str(run) + ".md"
    )
    assert (code, err) == (1, "")
    guesses = read_rows(run / "rows.parquet")[[f"null_{name}" for name in MEASURES]].mean()
    for name, then, now in (("edit_distance", 0.8, 0.0), ("exact_match", 0.0, 1.0)):
        start = f"FAILED  client update (type-1) {name}: {then:.2f} before, {now:.2f} now"
        (line,) = [line for line in out.splitlines() if line.startswith(start)]
        assert (
            f"; baseline guess {guesses[f'null_{name}']:.2f}; victims that broke: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in line
        )
    (line,) = [line for line in out.splitlines() if " rouge_1: " in line]
    assert (
        line.startswith("ok ") and "0.64 before, 1.00 now" in line and f"guess {guesses['null_rouge_1']:.2f};" in line
    )
    assert "more than before, but not by enough victims to tell it from chance (7 of 10" in line
    assert "| **failed** | client update (type-1) exact_match | 0.00 before, 1.00 now" in Path(f"{run}.md").read_text()


def test_victims_that_broke_are_closer_than_before_alone(run: Path) -> None:
    """One victim is equally close; one had no reconstruction, which counts as 0, and one has none before and now."""
    kept = written(run, rouge_1=[1.0, None, *[0.4] * 7, None], null_rouge_1=0.25)
    scores = [1.0] * 9 + [float("nan")]
    before = read_rows(run / "rows.parquet")["rouge_1"]
    with_scores(run, rouge_1=scores)
    try:
        (check,) = [c for c in gate(run, kept, GateLimits()) if "rouge_1" in c.name]
    finally:
        with_scores(run, rouge_1=before)
    assert check.victims == (1, 2, 3, 4, 5, 6, 7, 8)
    guess = read_rows(run / "rows.parquet")["null_rouge_1"].mean()
    assert f"baseline guess {guess:.2f}" in check.said and "baseline guess 0.25" not in check.said


def test_worse_sentences_pass(run: Path) -> None:
    checks = gate(run, written(run, edit_distance=0.0, exact_match=1.0, rouge_1=1.0), GateLimits())
    assert all(check.holds for check in checks) and {c.name.partition(" ")[2] for c in checks} >= set(MEASURES)


@pytest.mark.parametrize(("name", "value"), [("rouge_1", 1.5), ("exact_match", "x"), ("null_rouge_1", [1])])
def test_a_share_of_another_kind_is_refused(run: Path, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"rows\.{name}: got"):
        kept_of(written(run, **{name: value}))


def test_an_unchanged_run_differs_from_its_own_file_by_nothing(run: Path) -> None:
    """Two thirds for every victim: the rounding of the file would otherwise make each of them closer."""
    rows = read_rows(run / "rows.parquet")
    try:
        with_scores(run, edit_distance=2 / 3, rouge_1=1 / 7)
        checks = gate(run, written(run), GateLimits())
    finally:
        with_scores(run, **{name: rows[name] for name in ("edit_distance", "rouge_1")})
    assert all(check.holds for check in checks)
    assert {c.said.partition(" now")[0] for c in checks if "edit" in c.name} == {"0.67 before, 0.67"}
