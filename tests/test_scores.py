"""From answers to rows to the summary: matched the right way round, failures counted, verdicts against the null attacker."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from leakbench.attack.null import NullAttack
from leakbench.scores import Truth, score
from leakbench.statistics import wilson
from leakbench.summary import _tap
from leakbench.types import Ranking, Reconstruction

SHAPE = (1, 12, 12)


def truth(victims: int, members: int, first: int = 0) -> Truth:
    rng = torch.Generator().manual_seed(5)
    inputs = torch.rand(20, members, *SHAPE, generator=rng)[first : first + victims]
    labels = torch.arange(20 * members).reshape(20, members)[first : first + victims]
    lanes = torch.arange(first, first + victims)
    return Truth(lanes, inputs, labels, labels + 100, lanes)


def answer(inputs: Tensor, labels: Tensor, iterates: Tensor | None = None) -> Reconstruction:
    victims, members = labels.shape
    zeros = torch.zeros(victims, dtype=torch.int64)
    steps = inputs[None] if iterates is None else iterates
    snapshots = tuple(range(1, len(steps) + 1))
    return Reconstruction(
        inputs, labels, torch.zeros(victims, members), torch.zeros(1, victims), zeros, zeros, steps, snapshots
    )


def rows_of(real: Truth, given: Reconstruction, total: int, eta: float = 0.1) -> pd.DataFrame:
    """Score with a null attacker who guesses grey for everyone and a ranking that finds nobody but victim 0."""
    members = real.labels.shape[1]
    grey = torch.full((total * members, *SHAPE), 0.5)
    null = NullAttack({"public mean": grey}, {}, {}, "public mean", "public mean")
    scores = torch.zeros(len(real.lanes), 30)
    scores[:, 0] = 1.0
    return score("type-1", 0, given, Ranking(scores), null, real, eta, "n/a: no weights")[0]


def test_a_batch_in_another_order_is_matched() -> None:
    """A 3-cycle of a perfect answer scores 0 for every member, with the labels at their examples."""
    real = truth(2, 3)
    turned = torch.tensor([1, 2, 0])
    rows = rows_of(real, answer(real.inputs[:, turned], real.labels[:, turned]), total=2)
    assert rows["rmse"].max() < 1e-6
    assert (rows["label"] == rows["label_guess"]).all()
    assert rows["success"].all()


def test_rows_know_their_victim_in_a_later_chunk() -> None:
    """The second chunk's victims keep their numbers, examples, null guesses and identification."""
    real = truth(3, 1, first=4)
    rows = rows_of(real, answer(real.inputs, real.labels), total=20)
    assert rows["victim"].tolist() == [4, 5, 6]
    assert rows["example"].tolist() == [104, 105, 106]
    expected = (real.inputs - 0.5).square().flatten(1).mean(1).sqrt()
    np.testing.assert_allclose(rows["null_rmse"], expected, rtol=1e-5)
    assert rows["identified"].tolist() == [0.0, 0.0, 0.0]
    first = truth(2, 1)
    assert rows_of(first, answer(first.inputs, first.labels), total=20)["identified"].tolist() == [1.0, 0.0]


def test_no_answer_is_a_failure_that_counts() -> None:
    """One of four victims without an answer: ASR .75 of 4, not 1.0 of 3; the median takes it as the worst."""
    real = truth(4, 1)
    inputs = real.inputs.clone()
    inputs[2] = torch.nan
    rows = rows_of(real, answer(inputs, real.labels), total=4)
    assert rows["failure"].tolist() == [False, False, True, False]
    assert rows["failure_reason"].str.len().tolist()[2] > 0
    tap = _tap(rows, 0.0)
    assert tap["failures"] == 1
    assert (tap["asr"], tap["asr_low"], tap["asr_high"]) == pytest.approx((0.75, *wilson(3, 4)))
    rows.loc[[0, 1], "rmse"] = np.nan
    assert _tap(rows, 0.0)["rmse"] is None


def test_iterations_to_success_is_the_first_within_eta() -> None:
    """Off by .5, then by .05, then exact, at eta .1: the second iteration; never within: NaN."""
    real = truth(2, 1)
    close = (real.inputs * 0.8 + 0.1).clamp(0.1, 0.9)
    off = [close + 0.0, close.clone(), real.inputs]
    off[0] = 1 - real.inputs
    far = torch.stack([o[1:] * 0 for o in off])
    steps = torch.stack([torch.cat([o[:1], f]) for o, f in zip(off, far, strict=True)])
    rows = rows_of(real, answer(steps[-1], real.labels, steps), total=2)
    assert rows["iterations_to_success"].iloc[0] == 2
    assert np.isnan(rows["iterations_to_success"].iloc[1])


def test_verdicts() -> None:
    """Perfect answers leak, all-white ones are protected, a guess as good as grey is neither significantly."""
    real = truth(20, 1)
    assert _tap(rows_of(real, answer(real.inputs, real.labels), total=20), 0.0)["verdict"] == "leaks"
    white = torch.ones_like(real.inputs)
    assert _tap(rows_of(real, answer(white, real.labels), total=20), 0.0)["verdict"] == "protected"
    slightly = real.inputs.clone()
    slightly[:9] = 0.5 + 0.9 * (real.inputs[:9] - 0.5)
    slightly[9:] = 1 - real.inputs[9:]
    found = _tap(rows_of(real, answer(slightly, real.labels), total=20, eta=1e-9), 0.0)
    assert found["verdict"] in ("unclear", "protected")
    nearly = 0.5 + 0.1 * (real.inputs - 0.5)
    assert _tap(rows_of(real, answer(nearly, real.labels), total=20, eta=1e-9), 0.0)["verdict"] == "leaks"


def test_identification_by_nothing_is_chance() -> None:
    """Equal scores name the victim with probability 1 / k; scores that are not finite never do."""
    real = truth(2, 1)
    null = NullAttack({"public mean": torch.full((2, *SHAPE), 0.5)}, {}, {}, "public mean", "public mean")
    for scores, expected in ((torch.zeros(2, 8), 1 / 8), (torch.full((2, 8), torch.nan), 0.0)):
        rows = score("type-2", 0, answer(real.inputs, real.labels), Ranking(scores), null, real, 0.1, "n/a")[0]
        assert rows["identified"].tolist() == [expected, expected]


def test_an_attack_that_gave_nothing_protects_nobody() -> None:
    """Where every answer is missing the verdict is that the attack failed."""
    real = truth(4, 1)
    rows = rows_of(real, answer(real.inputs * torch.nan, real.labels), total=4)
    assert _tap(rows, 0.0)["verdict"] == "attack failed"


def test_a_batch_is_one_trial() -> None:
    """Three members of each batch all alike: the interval is that of the batches, not of three times as many."""
    real = truth(8, 3)
    inputs = real.inputs.clone()
    inputs[4:] = 1 - inputs[4:]
    tap = _tap(rows_of(real, answer(inputs, real.labels), total=8), 0.0)
    low, high = wilson(4, 8)
    assert tap["asr"] == 0.5
    assert tap["asr_low"] <= low + 0.03
    assert tap["asr_high"] >= high - 0.03


def table(**changes: object) -> pd.DataFrame:
    """20 victims far from the truth, whom nobody identifies; the null attacker is closer to half of them."""
    n = 20
    plain = {
        "tap": "type-2", "round": 0, "victim": range(n), "batch": range(n), "member": 0, "label": 0, "label_guess": 1,
        "failure": False, "failure_reason": "", "rmse": 0.3, "psnr": 10.0, "ssim": 0.1, "lpips": np.nan, "success": False,
        "eta": 0.1, "null_rmse": [0.2] * 10 + [0.4] * 10, "null_success": False, "identified": 0.0, "candidates": 1000,
        "iterations": 9, "iterations_to_success": np.nan, "evaluations": 9,
    }  # fmt: skip
    return pd.DataFrame({**plain, **changes})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"rmse": 0.5}, "protected"),
        ({"rmse": 0.25}, "unclear"),  # closer than the null's median guess, but not to more than half of the victims
        ({"rmse": 0.5, "success": [True] * 12 + [False] * 8}, "leaks"),  # by ASR alone
        ({"rmse": 0.15}, "leaks"),  # by RMSE alone
        ({"rmse": 0.5, "success": [True] * 3 + [False] * 17}, "protected"),  # within the null attacker's interval
        ({"rmse": 0.5, "identified": 1.0}, "identifies"),
        ({"rmse": np.nan, "failure": True}, "attack failed"),
    ],
)
def test_each_clause_of_the_verdict(changes: dict[str, object], verdict: str) -> None:
    """One clause at a time decides."""
    assert _tap(table(**changes), 0.0)["verdict"] == verdict


def test_few_victims_prove_no_protection() -> None:
    """Of five failed attacks nothing follows."""
    assert _tap(table(rmse=0.5)[:5], 0.0)["verdict"] == "unclear"


def test_medians_take_failures_as_the_worst() -> None:
    """11 of 20 without a value: no median; the null's RMSE is its median; iterations need half of the victims."""
    tap = _tap(table(psnr=[np.nan] * 11 + [50.0] * 9, ssim=[np.nan] * 11 + [0.9] * 9), 0.0)
    assert (tap["psnr"], tap["ssim"]) == (None, None)
    assert tap["null_rmse"] == pytest.approx(0.3)
    assert _tap(table(iterations_to_success=[3.0] * 8 + [np.nan] * 12), 0.0)["iterations"] is None
    assert _tap(table(iterations_to_success=[3.0] * 12 + [np.nan] * 8), 0.0)["iterations"] == 3.0


def test_each_null_column_has_its_own_guesser() -> None:
    """The guess that is best for ASR is not the one that is best for RMSE."""
    real = truth(2, 1)
    null = NullAttack({"a": real.inputs[:, 0], "b": torch.zeros(2, *SHAPE)}, {}, {}, "a", "b")
    rows = score("type-2", 0, answer(real.inputs, real.labels), Ranking(torch.zeros(2, 8)), null, real, 0.1, "n/a")[0]
    assert rows["null_success"].all()
    assert (rows["null_rmse"] > 0.4).all()


def test_iterates_of_a_batch_are_matched_too() -> None:
    """An iterate in another order than the truth is a success."""
    real = truth(1, 3)
    turned = real.inputs[:, torch.tensor([1, 2, 0])]
    rows = rows_of(real, answer(turned, real.labels, turned[None]), total=1)
    assert rows["iterations_to_success"].tolist() == [1.0, 1.0, 1.0]
