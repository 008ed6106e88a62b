"""Labels of a batch counted by the expected shares: rounded to whole examples, scored against the public shares."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.core.answers import Ranking
from leakbench.core.rng import generator
from leakbench.measure.statistics import mean_interval
from leakbench.scoring.scores import VictimTruth
from leakbench.scoring.scores_rankings import counted, score_rankings
from leakbench.storage.summary import Tap
from leakbench.summary.rankings import ranking_fields, ranking_notes

pytestmark = pytest.mark.usefixtures("with_pages")


def largest_remainder(shares: list[float], many: int) -> list[int]:
    """Apply Hamilton's rule step by step."""
    wanted = [many * share for share in shares]
    counts = [int(w) for w in wanted]
    order = sorted(range(len(wanted)), key=lambda c: counts[c] - wanted[c])
    for c in order[: many - sum(counts)]:
        counts[c] += 1
    return counts


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 12), many=st.integers(2, 30))
@settings(max_examples=80, deadline=None)
def test_counts_equal_those_by_hand(seed: int, classes: int, many: int) -> None:
    rng = generator(seed, "shares")
    shares = torch.rand(1, classes, generator=rng, dtype=torch.float64)
    shares /= shares.sum()
    labels = torch.randint(classes, (1, many), generator=rng)
    guess = largest_remainder(shares[0].tolist(), many)
    true = torch.bincount(labels[0], minlength=classes).tolist()
    overlap = sum(min(g, t) for g, t in zip(guess, true, strict=True)) / many
    assert float(counted(shares, labels)) == pytest.approx(overlap)
    assert float(counted(3 * shares, labels)) == pytest.approx(overlap)


def test_invalid_shares_count_nothing() -> None:
    """Shares that are not finite have nothing right; a class without a share gets no example; values below 0 count as 0."""
    labels = torch.tensor([[0, 0, 1]])
    nan, inf = torch.nan, torch.inf
    for shares, right in (
        ([nan, nan, nan], 0.0), ([2 / 3, nan, 1 / 3], 0.0), ([inf, 0.0, 0.0], 0.0),
        ([2 / 3, 1 / 3, -inf], 1.0), ([1.0, -inf, 0.0], 2 / 3), ([-inf, 0.0, 1.0], 0.0), ([1.3, 0.0, -0.3], 2 / 3),
    ):  # fmt: skip
        assert float(counted(torch.tensor([shares]), labels)) == pytest.approx(right)


def test_true_shares_are_all_right_and_are_in_the_first_row_of_a_batch() -> None:
    """Compared with public labels of one class; for a single example nothing is counted."""
    labels = torch.tensor([[0, 2], [1, 1]])
    truth = VictimTruth(
        torch.arange(2), torch.zeros(2, 2, 3), labels, torch.arange(4).reshape(2, 2), torch.tensor([0, 1])
    )
    shares = torch.nn.functional.one_hot(labels, 3).float().mean(1)
    answers = {"identified": Ranking(torch.zeros(2, 3)), "label_ranked": Ranking(shares)}
    rows = score_rankings(answers, torch.tensor([0, 2, 9]), torch.tensor([0] * 5), truth)
    assert rows["label_counts"].tolist() == pytest.approx([1.0, np.nan, 1.0, np.nan], nan_ok=True)
    assert rows["null_label_counts"].tolist() == pytest.approx([0.5, np.nan, 0.0, np.nan], nan_ok=True)
    fields = ranking_fields(rows.assign(network=0))
    assert (fields["label_counts"], fields["label_counts_low"]) == mean_interval([1.0, 1.0])[:2]
    assert fields["null_label_counts"] == 0.25
    one = VictimTruth(
        *(t[:, :1] if t.dim() > 1 else t for t in (truth.lanes, truth.inputs, labels, truth.examples, truth.own))
    )
    rows = score_rankings(answers, torch.tensor([0, 2, 9]), torch.tensor([0] * 5), one)
    assert rows["label_counts"].isna().all()
    fields = ranking_fields(rows.assign(network=0))
    assert fields["label_counts"] is fields["label_counts_high"] is fields["null_label_counts"] is None
    assert ranking_notes("t", Tap.model_validate(fields))["taps.t.label_counts"].startswith(
        "the update is of one example"
    )


@pytest.mark.slow
def test_a_run_counts_the_labels_of_its_batches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a defense nearly all of five are counted right; at very strong noise as many as without the leak."""
    recipe = tmp_path / "flat.yaml"
    recipe.write_text(
        "title: t\ncite: c\nunit: example\n"
        "example: [{clip_whole: {norm: 1.0}}, {gaussian_noise: {multiplier: 300.0, to: each}}]\n"
    )
    options = "run --dataset digits --attack identification --train-rounds 0 --victims 40 --taps type-1 --leak-batch 5"
    taps = {}
    for name, defense in (("bare", "none"), ("hidden", str(recipe))):
        more = ["--candidates", "50", "--json", "--quiet", "--defense", defense, "--out", str(tmp_path / name)]
        code, out, _ = called(monkeypatch, capsys, *options.split(), *more)
        assert code == 0
        taps[name] = json.loads(out)["taps"]["type-1"]
    bare, hidden = taps["bare"], taps["hidden"]
    assert bare["label_counts_low"] > 0.8
    assert bare["null_label_counts"] == hidden["null_label_counts"] < 0.5
    assert hidden["label_counts_low"] < hidden["null_label_counts"] + 0.05
    rows = pd.read_parquet(tmp_path / "bare" / "rows.parquet")
    assert bare["label_counts"] == pytest.approx(rows["label_counts"].mean())
    assert "labels counted" in (tmp_path / "bare" / "report.html").read_text()
