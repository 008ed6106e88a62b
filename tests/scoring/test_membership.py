"""Membership: how often a member is ranked above an absent example, as theory says, and inputs that give no evidence."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm
from torch import Tensor

from leakbench.core.answers import Ranking
from leakbench.core.rng import generator
from leakbench.measure.statistics import mean_interval, wilson
from leakbench.privacy.bounds import gaussian_robustness
from leakbench.scoring.scores import VictimTruth
from leakbench.scoring.scores_rankings import membership, score_rankings
from leakbench.storage.summary import Tap
from leakbench.summary.rankings import ranking_fields, ranking_notes

pytestmark = pytest.mark.usefixtures("with_pages")


def alone(scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return the membership scores for updates of single victims."""
    return membership(scores, own, torch.zeros(scores.shape, dtype=torch.bool))


def likelihoods(victims: int, k: int, std: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return (scores (V, k), own (V,), gradients (k, 6)) of victims behind noise, by -|y - g|^2."""
    rng = generator(seed, "membership")
    gradients = torch.randn(k, 6, generator=rng)
    own = torch.arange(victims) % k
    seen = gradients[own] + std * torch.randn(victims, 6, generator=rng)
    return 2 * seen @ gradients.T - gradients.square().sum(1), own, gradients


@pytest.mark.parametrize("std", [0.5, 2.0, 10.0])
def test_the_rate_for_two_candidates_equals_the_theory_of_the_noise(std: float) -> None:
    """Within one update: Phi(d / (2 s)), within the binomial's range of 1 in 10,000."""
    scores, own, gradients = likelihoods(4000, 2, std)
    distance = float((gradients[0] - gradients[1]).norm())
    low, high = binom.interval(0.9999, 4000, norm.cdf(distance / (2 * std)))
    assert low <= float(alone(scores, own)[0].sum()) <= high


def test_the_auc_equals_the_mean_over_all_pairs() -> None:
    """With k candidates, the mean over the others of the same Phi."""
    scores, own, gradients = likelihoods(20_000, 40, 2.0)
    pairs = norm.cdf(torch.cdist(gradients, gradients).numpy() / 4.0)
    expected = (pairs.sum(1) - 0.5) / 39
    above = alone(scores, own)[0]
    assert float(above.mean()) == pytest.approx(float(expected.mean()), abs=0.01)


def test_pure_noise_identifies_no_member() -> None:
    """AUC 1/2 and 1 % found, within the chance range of 5,000 victims and 1,000 candidates."""
    scores = torch.randn(5000, 1000, generator=generator(0, "noise"))
    above, found = alone(scores, torch.randint(1000, (5000,), generator=generator(0, "own")))
    assert float(above.mean()) == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / 5000))
    low, high = binom.interval(0.9999, 5000, 0.01)
    assert low <= float(found.sum()) <= high


@given(seed=st.integers(0, 1000), k=st.integers(2, 140), levels=st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_results_equal_a_slow_count(seed: int, k: int, levels: int) -> None:
    """The slow reference, with ties and other batch members among the candidates."""
    rng = generator(seed, "slow")
    scores = torch.randint(levels, (3, k), generator=rng).float()
    own, members = torch.randint(k, (3,), generator=rng), torch.rand(3, k, generator=rng) < 0.1
    above, found = membership(scores, own, members)
    for v in range(3):
        mine = float(scores[v, own[v]])
        others = [float(scores[v, c]) for c in range(k) if c != own[v] and not members[v, c]]
        if not others:
            assert above[v].isnan()
            continue
        assert float(above[v]) == pytest.approx(np.mean([(s < mine) + 0.5 * (s == mine) for s in others]))
        if len(others) < 100:
            assert found[v].isnan()
        else:
            chance = (1 + sum(s >= mine for s in others)) / (1 + len(others))
            assert float(found[v]) == (chance <= 0.01)


@given(k=st.integers(100, 400))
@settings(max_examples=20, deadline=None)
def test_at_most_one_in_a_hundred_absent_examples_is_found(k: int) -> None:
    """Each of k + 1 candidates with random scores takes the victim's place in turn."""
    scores = torch.arange(float(k + 1)).expand(k + 1, k + 1)
    found = alone(scores, torch.arange(k + 1))[1]
    assert float(found.mean()) <= 0.01
    assert float(found.sum()) == (k + 1) // 100


def test_scores_that_are_not_finite_are_the_lowest() -> None:
    """If all are, no candidate is distinguished; if only the own score is, it is last; if another's is, it is below the own."""
    nan, inf = torch.nan, torch.inf
    scores = torch.tensor([[nan, nan, nan], [nan, 0.0, 1.0], [0.0, nan, inf], [0.0, 0.0, -1.0]])
    assert alone(scores, torch.zeros(4, dtype=torch.int64))[0].tolist() == [0.5, 0.0, 1.0, 0.75]


def test_another_batch_member_is_not_a_false_positive() -> None:
    """Examples 7 and 9 are in the update; 9, which scores higher than the victim 7, is left out."""
    labels = torch.zeros(1, 2, dtype=torch.int64)
    truth = VictimTruth(torch.zeros(1), torch.zeros(1, 2, 3), labels, torch.tensor([[7, 9]]), torch.tensor([1]))
    ranking, shown = Ranking(torch.tensor([[0.0, 1.0, 2.0, -1.0]])), torch.tensor([3, 7, 9, 4])
    classes, public = Ranking(torch.zeros(1, 2)), torch.tensor([0, 1])
    answers = {"identified": ranking, "label_ranked": classes}
    rows = score_rankings(answers, shown, public, truth)
    assert rows["member_above"].tolist() == pytest.approx([1.0, np.nan], nan_ok=True)
    without = score_rankings(answers, torch.tensor([3, 7, 5, 4]), public, truth)
    assert without["member_above"][0] == pytest.approx(2 / 3)


def test_the_summary_is_over_victims() -> None:
    above, found = [0.25, np.nan, 0.75, np.nan], [0.0, np.nan, 1.0, np.nan]
    fields = ranking_fields(pd.DataFrame({"member_above": above, "member_found": found, "network": 0}))
    assert (fields["member_auc"], fields["member_auc_low"], fields["member_auc_high"]) == mean_interval([0.25, 0.75])
    assert (fields["member_tpr"], fields["member_tpr_low"], fields["member_tpr_high"]) == (0.5, *wilson(1, 2))
    assert ranking_notes("t", Tap.model_validate(fields)).keys() == {"taps.t.label_counts", "taps.t.null_label_counts"}
    few = ranking_fields(pd.DataFrame({"member_above": above, "member_found": np.nan, "network": 0}))
    assert few["member_tpr"] is few["member_tpr_low"] is None
    assert ranking_notes("t", Tap.model_validate(few))["taps.t.member_tpr"].startswith(
        "fewer than 100 candidates that are not members"
    )


def test_the_interval_of_a_mean() -> None:
    """Student's for .4, .6, .4, .6; Wilson's for equal values, which have no spread; everything for no values."""
    half = 3.182446 * 0.115470 / 2
    assert mean_interval([0.4, 0.6, 0.4, 0.6]) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-5)
    assert mean_interval([1.0] * 5) == (1.0, *wilson(5, 5))
    assert mean_interval([0.0, 0.0, 1.0])[1:] == (0.0, 1.0)
    assert mean_interval([0.3])[0] == 0.3
    assert mean_interval([])[1:] == (0.0, 1.0)


@pytest.mark.slow
def test_every_run_reports_membership(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With an attack that searches, at strong noise; the bound starts from 1 %; few candidates give no rate."""
    recipe = tmp_path / "flat.yaml"
    recipe.write_text(
        "title: t\ncite: c\nunit: example\n"
        "example: [{clip_whole: {norm: 4.0}}, {gaussian_noise: {multiplier: 1.0, to: each}}]\n"
    )
    options = "run --dataset digits --attack cpl --iterations 1 --train-rounds 0 --victims 30 --taps type-2,type-1 --networks 1"
    more = ["--leak-batch", "3", "--json", "--quiet", "--defense", str(recipe)]
    folder = tmp_path / "run"
    code, out, _ = called(monkeypatch, capsys, *options.split(), *more, "--out", str(folder))
    assert code == 0
    summary = json.loads(out)
    alone, batch = summary["taps"]["type-2"], summary["taps"]["type-1"]
    rows = pd.read_parquet(folder / "rows.parquet")
    above = rows[rows["tap"] == "type-1"]["member_above"].to_numpy()
    assert np.isnan(above.reshape(30, 3)[:, 1:]).all()
    assert batch["member_auc"] == pytest.approx(above.reshape(30, 3)[:, 0].mean())
    assert 0.5 < alone["member_auc_low"] < alone["member_auc"] < 1
    assert alone["member_tpr_bound"] == pytest.approx(float(gaussian_robustness(0.01, 1.0)))
    assert summary["violations"] == []
    page = (folder / "report.html").read_text()
    assert "member AUC" in page
    assert f"{alone['member_auc']:.2f} [{alone['member_auc_low']:.2f}, {alone['member_auc_high']:.2f}]" in page
    few = [*options.replace("--victims 30", "--victims 2").split(), *more, "--candidates", "60"]
    code, out, _ = called(monkeypatch, capsys, *few, "--out", str(tmp_path / "few"))
    assert code == 0
    summary = json.loads(out)
    assert summary["taps"]["type-2"]["member_tpr"] is None
    assert "taps.type-2.member_tpr" in summary["notes"]
    code, out, _ = called(monkeypatch, capsys, "report", str(tmp_path / "few"))
    assert "member_tpr" not in out
    assert "member found at example gradient (type-2)" in (tmp_path / "few" / "report.html").read_text()
