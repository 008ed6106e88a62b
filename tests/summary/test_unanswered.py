"""Reasons for missing reconstructions: a key in rows and summary, a sentence under the table."""

import pandas as pd
import pytest
import torch
from command_line import called

from leakbench.measure import unanswered as keys
from leakbench.measure.unanswered import explained
from leakbench.report.words import UNANSWERED, batches, why_unanswered
from leakbench.storage.store import read_manifest
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.tap import unanswered

pytestmark = pytest.mark.usefixtures("with_pages")

SPOKEN = torch.zeros(3, dtype=torch.bool)


def table(reasons: list[list[str]], labels: list[list[int]]) -> pd.DataFrame:
    """Return rows of V victims with M examples each; an empty reason means a reconstruction."""
    flat = [
        (v, why, label)
        for v, (some, own) in enumerate(zip(reasons, labels, strict=True))
        for why, label in zip(some, own, strict=True)
    ]
    return pd.DataFrame(
        {"victim": v, "failure": why != "", "failure_reason": why, "label": label} for v, why, label in flat
    )


def reasons(
    rows: pd.DataFrame, silent: torch.Tensor = SPOKEN, refuses: bool = False, fished: int | None = None
) -> list[list[str]]:
    found = explained(rows, silent, refuses, fished)["failure_reason"]
    return found.to_numpy().reshape(len(silent), -1).tolist()


NONE = keys.NONE_GIVEN
FISHED = table([["", NONE], [NONE, NONE], [NONE, NONE]], [[4, 1], [1, 4], [1, 1]])


def test_reasons_of_a_fishing_server():
    assert reasons(FISHED, fished=4) == [
        ["", "not_isolated"],
        ["not_caught", "not_caught"],
        ["class_absent", "class_absent"],
    ]
    assert reasons(FISHED) == [["", NONE], [NONE, NONE], [NONE, NONE]]


def test_a_reconstruction_that_is_not_finite_is_not_missing():
    broken = table([[keys.NOT_FINITE, NONE]], [[4, 1]])
    assert reasons(broken, SPOKEN[:1], fished=4) == [["not_finite", "not_isolated"]]


@pytest.mark.parametrize(("refuses", "why"), [(True, "refused"), (False, "silent")])
def test_an_update_of_zeros_means_that_the_client_refused(refuses, why):
    silent = torch.tensor([False, True, True])
    assert reasons(FISHED, silent, refuses) == [["", NONE], [why, why], [why, why]]
    assert reasons(FISHED, silent, refuses, fished=4)[1:] == [[why, why], [why, why]]


def test_existing_reasons_of_reconstructions_and_rankings_are_kept():
    ranked = table([["", "the attack ranks"]], [[0, 0]])
    assert reasons(ranked, ~SPOKEN[:1], True) == [["", "the attack ranks"]]


def test_every_reason_has_a_sentence_with_a_count():
    named = [getattr(keys, name) for name in keys.__all__ if name.isupper()]
    assert sorted(named) == sorted(UNANSWERED)
    assert all(key.isidentifier() for key in named)
    tap = Tap(victims=9, unanswered={key: {"examples": 7, "victims": 5} for key in named})
    for key in named:
        said = why_unanswered(Summary(fished=3), tap, key)
        assert "{" not in said and ("7" in said or "5 of 9" in said)
        assert ("class 3" in said) == (key in ("class_absent", "not_caught"))
    assert why_unanswered(Summary(), Tap(), "no finite answer") == "no finite answer"


def test_examples_and_victims_are_counted_with_the_commonest_first():
    rows = table([["a", "b", "b"], ["", "b", "b"]], [[0] * 3] * 2)
    assert list(unanswered(rows).items()) == [
        ("b", {"examples": 4, "victims": 2}),
        ("a", {"examples": 1, "victims": 1}),
    ]


@pytest.mark.parametrize(
    ("threat", "failures", "said"),
    [
        ("honest", 0, None),
        ("honest", 2, "precision 0.50 (4 of 8 reconstructions right)"),
        ("malicious parameters", 0, "precision 0.50 (5 of 10 reconstructions right)"),
    ],
)
def test_precision_is_printed_if_it_differs_from_the_asr(threat, failures, said):
    tap = Tap(victims=5, batch=2, failures=failures, precision=0.5, eta=0.1, candidates=9)
    line = batches(Summary(threat=threat, taps={"type-1": tap}))
    assert (said in line) if said else ("precision" not in line)


def test_a_run_without_any_reconstruction():
    tap = Tap(victims=5, batch=2, failures=10, eta=0.1, candidates=9)
    assert "precision" not in batches(Summary(threat="honest", taps={"type-1": tap}))


FISHING = "run --attack fishing --leak-batch 8 --victims 10 --iterations 2 --train-rounds 0 --taps type-1 --candidates 10 --quiet"


@pytest.mark.slow
def test_table_and_page_show_reasons_from_the_command_line(tmp_path, monkeypatch, capsys):
    """Of ten batches of eight digits two have no zero (seed 0); the others have a reconstruction of one example each."""
    code, out, err = called(
        monkeypatch, capsys, *FISHING.split(), "-v", "--dataset", "digits", "--out", str(tmp_path / "run")
    )
    assert (code, err) == (0, "")
    out, summary = " ".join(out.split()), read_manifest(tmp_path / "run")["summary"]
    rows = pd.read_parquet(tmp_path / "run" / "rows.parquet")
    without = rows.groupby("victim")["label"].agg(lambda labels: 0 not in set(labels))
    assert without.sum() == 2
    assert summary["fished"] == 0
    assert summary["taps"]["type-1"]["unanswered"] == {
        "not_isolated": {"examples": 56, "victims": 8},
        "class_absent": {"examples": 16, "victims": 2},
    }
    said = "class 0, for which the server fishes, is not in 2 of 10 batches"
    assert said in out
    assert "ASR at most 1 / 8 by construction" in out
    page = " ".join((tmp_path / "run" / "report.html").read_text().split())
    assert said in page
    assert "ASR at most 1 / 8 by construction" in page
    for word in ("threat A to H", "by construction", "percentile", "D-SNR"):
        assert f"<dt>{word}</dt>" in page
    assert "<dt>alone in its bin</dt>" not in page


def test_a_class_without_possible_victims_is_refused_at_once(tmp_path, monkeypatch, capsys):
    """All faces that may be attacked have class 1."""
    words = [*FISHING.split(), "--dataset", "faces", "--out", str(tmp_path / "run")]
    code, _, err = called(monkeypatch, capsys, *words)
    assert code == 2
    assert err.count("\n") == 1
    assert "fishes for class 0, and 'faces' has no example of it to attack; expected one of 1" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_client_that_refused_is_reported(tmp_path, monkeypatch, capsys):
    asked = "--dataset cancer --attack imprint --leak-model mlp --leak-batch 8 --victims 3 --train-rounds 0 --taps type-1 --quiet"
    for defense, said in (("refuse_conspicuous", "clients refused to send 3 of 3 updates"), ("none", "")):
        folder = tmp_path / defense
        code, out, err = called(monkeypatch, capsys, "run", "--defense", defense, *asked.split(), "--out", str(folder))
        assert (code, err) == (0, "")
        assert said in " ".join(out.split())
        found = read_manifest(folder)["summary"]["taps"]["type-1"]["unanswered"]
        assert ("refused" in found) == bool(said)
    page = (tmp_path / "none" / "report.html").read_text()
    for word in ("alone in its bin", "verbatim", "percentile"):
        assert f"<dt>{word}</dt>" in page
