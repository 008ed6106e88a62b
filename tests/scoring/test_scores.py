"""From reconstructions to rows to the summary: correct matching, failures counted, verdicts against the baseline."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
from made_rows import make_rows
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.cell import Request, resolve_cell
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.limits.floor import Floor
from leakbench.limits.guards import Guard
from leakbench.limits.limits import Limits
from leakbench.limits.reference import Reference
from leakbench.measure.statistics import wilson
from leakbench.scoring.scores import RANKS_ONLY, VictimTruth, score
from leakbench.summary.summarise import summarise
from leakbench.summary.tap import tap_summary

SHAPE = (1, 12, 12)


def truth(victims: int, members: int, first: int = 0) -> VictimTruth:
    rng = torch.Generator().manual_seed(5)
    inputs = torch.rand(20, members, *SHAPE, generator=rng)[first : first + victims]
    labels = torch.arange(20 * members).reshape(20, members)[first : first + victims]
    lanes = torch.arange(first, first + victims)
    return VictimTruth(lanes, inputs, labels, labels + 100, lanes)


def answer(inputs: Tensor, labels: Tensor, iterates: Tensor | None = None) -> Reconstruction:
    victims, members = labels.shape
    zeros = torch.zeros(victims, dtype=torch.int64)
    steps = inputs[None] if iterates is None else iterates
    snapshots = tuple(range(1, len(steps) + 1))
    return Reconstruction(
        inputs,
        labels,
        torch.zeros(victims, members),
        torch.zeros(1, victims),
        zeros,
        zeros,
        steps,
        snapshots,
        20 * torch.tensor(snapshots)[:, None].expand(-1, victims),
    )


def ranked(scores: torch.Tensor, real: VictimTruth) -> dict[str, Ranking]:
    """Return the rankings with these candidate scores and equal class scores."""
    blind = torch.zeros(len(real.lanes), int(real.labels.max()) + 1)
    return {"identified": Ranking(scores), "label_ranked": Ranking(blind)}


def rows_of(real: VictimTruth, given: Reconstruction | None, total: int, eta: float = 0.1) -> pd.DataFrame:
    """Score with a baseline that guesses grey for every victim and a ranking that identifies only victim 0."""
    members = real.labels.shape[1]
    grey = torch.full((total * members, *SHAPE), 0.5)
    null = NullAttack({"public mean": grey}, {}, {}, "public mean", "public mean")
    scores = torch.zeros(len(real.lanes), 30)
    scores[:, 0] = 1.0
    return score("type-1", 0, given, ranked(scores, real), null, real, eta, "n/a: no weights")[0]


def test_a_batch_in_another_order_is_matched() -> None:
    """A 3-cycle of a perfect reconstruction scores 0 for every member, with the labels at their examples."""
    real = truth(2, 3)
    turned = torch.tensor([1, 2, 0])
    rows = rows_of(real, answer(real.inputs[:, turned], real.labels[:, turned]), total=2)
    assert rows["rmse"].max() < 1e-6
    assert (rows["label"] == rows["label_guess"]).all()
    assert rows["success"].all()


def test_scores_of_a_batch_use_the_matched_reconstruction() -> None:
    """A blurred reconstruction in another order has the same scores as in the right one, and is stored in the right one."""
    real = truth(2, 3)
    inputs, turned = 0.9 * real.inputs + 0.05, torch.tensor([1, 2, 0])
    plain, other = answer(inputs, real.labels), answer(inputs[:, turned], real.labels[:, turned])
    rows = rows_of(real, other, total=2)
    pd.testing.assert_frame_equal(rows, rows_of(real, plain, total=2))
    assert rows["identified"].tolist() == pytest.approx([1.0, np.nan, np.nan, 0.0, np.nan, np.nan], nan_ok=True)
    null = NullAttack({"grey": torch.full((6, *SHAPE), 0.5)}, {}, {}, "grey", "grey")
    assert torch.equal(score("type-1", 0, other, ranked(torch.zeros(2, 3), real), null, real, 0.1, "n/a")[1], inputs)


def test_success_is_within_eta_and_the_distance_is_the_attackers_own() -> None:
    """Off by .099 and by .101 at eta .1; a certainty of -2.5 is a distance of 2.5."""
    real = dataclasses.replace(truth(2, 1), inputs=torch.full((2, 1, *SHAPE), 0.5))
    given = answer(real.inputs + torch.tensor([0.099, 0.101])[:, None, None, None, None], real.labels)
    rows = rows_of(real, dataclasses.replace(given, certainty=torch.full((2, 1), -2.5)), total=2)
    assert rows["success"].tolist() == [True, False]
    assert rows["distance"].tolist() == [2.5, 2.5]


def test_an_rmse_of_eta_is_a_success() -> None:
    """Off by a quarter everywhere, which has no rounding: at most eta, and so is the baseline's grey."""
    real = dataclasses.replace(truth(1, 1), inputs=torch.full((1, 1, *SHAPE), 0.25))
    rows = rows_of(real, answer(real.inputs + 0.25, real.labels), total=1, eta=0.25)
    assert (rows["rmse"].item(), rows["success"].item(), rows["null_success"].item()) == (0.25, True, True)
    assert rows["iterations_to_success"].item() == 1


def test_rows_know_their_victim_in_a_later_chunk() -> None:
    """The second chunk's victims keep their numbers, examples, baseline guesses and identification."""
    real = truth(3, 1, first=4)
    rows = rows_of(real, answer(real.inputs, real.labels), total=20)
    assert rows["victim"].tolist() == [4, 5, 6]
    assert rows["example"].tolist() == [104, 105, 106]
    expected = (real.inputs - 0.5).square().flatten(1).mean(1).sqrt()
    np.testing.assert_allclose(rows["null_rmse"], expected, rtol=1e-5)
    assert rows["identified"].tolist() == [0.0, 0.0, 0.0]
    first = truth(2, 1)
    assert rows_of(first, answer(first.inputs, first.labels), total=20)["identified"].tolist() == [1.0, 0.0]


def test_a_missing_reconstruction_counts_as_a_failure() -> None:
    """One of four victims without a reconstruction: ASR .75 of 4, not 1.0 of 3; the median counts it as the worst."""
    real = truth(4, 1)
    inputs = real.inputs.clone()
    inputs[2] = torch.nan
    rows = rows_of(real, answer(inputs, real.labels), total=4)
    assert rows["failure"].tolist() == [False, False, True, False]
    assert rows["failure_reason"].str.len().tolist()[2] > 0
    tap = tap_summary(rows, 0.0)
    assert tap.failures == 1
    assert (tap.asr, tap.asr_low, tap.asr_high) == pytest.approx((0.75, *wilson(3, 4)))
    rows.loc[[0, 1], "rmse"] = np.nan
    assert tap_summary(rows, 0.0).rmse is None


def test_iterations_to_success_count_until_it_stays_within_eta() -> None:
    """Within eta at 1, outside at 2, within at 3 and 4: 3. A reconstruction outside eta in the end is not a success."""
    real = truth(2, 1)
    near, far = (real.inputs * 0.9 + 0.05), 1 - real.inputs
    first = torch.cat([near[:1], near[1:]])
    steps = torch.stack([first, torch.cat([far[:1], near[1:]]), near, torch.cat([near[:1], far[1:]])])
    rows = rows_of(real, answer(steps[-1], real.labels, steps), total=2)
    assert rows["success"].tolist() == [True, False]
    assert rows["iterations_to_success"].iloc[0] == 3
    assert rows[["iterations_to_success", "evaluations_to_success"]].iloc[1].isna().all()


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


def test_each_victim_is_paired_with_its_baseline_guess() -> None:
    """Guesses that contain their example's number: victims 4 to 6 of 20, two examples each."""
    real = truth(3, 2, first=4)
    guesses = (torch.arange(40) / 40).reshape(40, 1, 1, 1).expand(40, *SHAPE)
    null = NullAttack({"own": guesses}, {}, {}, "own", "own")
    given = answer(real.inputs, real.labels)
    rows = score("type-1", 0, given, ranked(torch.zeros(3, 30), real), null, real, 0.1, "n/a")[0]
    own = (torch.arange(8, 14) / 40).reshape(3, 2, 1, 1, 1)
    expected = (real.inputs - own).square().flatten(2).mean(2).sqrt().flatten()
    np.testing.assert_allclose(rows["null_rmse"], expected, rtol=1e-5)


def test_verdicts() -> None:
    """Perfect ones reconstruct; all-white ones and ones as good as grey do not; 20 victims are inconclusive otherwise."""
    real = truth(20, 1)
    assert tap_summary(rows_of(real, answer(real.inputs, real.labels), total=20), 0.0).verdict == "reconstructs"
    white = torch.ones_like(real.inputs)
    assert tap_summary(rows_of(real, answer(white, real.labels), total=20), 0.0).verdict == "inconclusive"
    slightly = real.inputs.clone()
    slightly[:9] = 0.5 + 0.9 * (real.inputs[:9] - 0.5)
    slightly[9:] = 1 - real.inputs[9:]
    found = tap_summary(rows_of(real, answer(slightly, real.labels), total=20, eta=1e-9), 0.0)
    assert found.verdict == "inconclusive"
    nearly = 0.5 + 0.1 * (real.inputs - 0.5)
    assert tap_summary(rows_of(real, answer(nearly, real.labels), total=20, eta=1e-9), 0.0).verdict == "reconstructs"


def test_identification_without_information_is_chance() -> None:
    """Equal scores identify the victim with probability 1 / k; without a finite score, nothing was ranked."""
    real = truth(2, 1)
    null = NullAttack({"public mean": torch.full((2, *SHAPE), 0.5)}, {}, {}, "public mean", "public mean")
    for scores, expected in ((torch.zeros(2, 8), 1 / 8), (torch.full((2, 8), torch.nan), math.nan)):
        rows = score("type-2", 0, answer(real.inputs, real.labels), ranked(scores, real), null, real, 0.1, "n/a")[0]
        assert rows["identified"].tolist() == pytest.approx([expected, expected], nan_ok=True)
    one = torch.tensor([[1.0, torch.nan, 0.0], [0.0, torch.nan, 1.0]])  # One of three candidates has no score.
    rows = score("type-2", 0, answer(real.inputs, real.labels), ranked(one, real), null, real, 0.1, "n/a")[0]
    assert rows["identified"].tolist() == [1.0, 0.0]


def test_other_examples_of_a_batch_do_not_count_as_candidates() -> None:
    real = dataclasses.replace(truth(2, 2), shown=torch.tensor([100, 102, 101, 7]))
    null = NullAttack({"public mean": torch.full((4, *SHAPE), 0.5)}, {}, {}, "public mean", "public mean")
    given = answer(real.inputs, real.labels)
    rows = score("type-2", 0, given, ranked(torch.zeros(2, 4), real), null, real, 0.1, "n/a")[0]
    assert rows["candidates"].tolist() == [3, 3, 4, 4]


def test_an_attack_without_reconstructions_failed() -> None:
    """If every reconstruction is missing, the verdict is that the attack failed."""
    real = truth(4, 1)
    rows = rows_of(real, answer(real.inputs * torch.nan, real.labels), total=4)
    assert tap_summary(rows, 0.0).verdict == "attack failed"


def test_a_batch_is_one_trial() -> None:
    """Three equal members in each batch: the interval is that of the batches, not of three times as many."""
    real = truth(8, 3)
    inputs = real.inputs.clone()
    inputs[4:] = 1 - inputs[4:]
    tap = tap_summary(rows_of(real, answer(inputs, real.labels), total=8), 0.0)
    low, high = wilson(4, 8)
    assert tap.asr == 0.5
    assert tap.asr_low <= low + 0.03
    assert tap.asr_high >= high - 0.03


def table(**changes: object) -> pd.DataFrame:
    """Return rows of 20 victims far from the truth and never identified; the baseline is closer for half of them."""
    return make_rows(20, **{"tap": "type-2", "rmse": 0.3, "null_rmse": [0.2] * 10 + [0.4] * 10, **changes})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"rmse": 0.5}, "inconclusive"),
        # Closer than the baseline's median, but not for more than half of the victims.
        ({"rmse": 0.25}, "inconclusive"),
        ({"rmse": 0.5, "success": [True] * 12 + [False] * 8}, "reconstructs"),  # By ASR alone.
        ({"rmse": 0.15}, "reconstructs"),  # By RMSE alone.
        ({"rmse": 0.5, "success": [True] * 3 + [False] * 17}, "inconclusive"),  # Within the baseline's interval.
        ({"rmse": 0.5, "identified": 1.0}, "identifies"),
        ({"rmse": np.nan, "failure": True}, "attack failed"),
        ({"rmse": np.nan, "failure": True, "identified": 1.0}, "identifies"),
        ({"rmse": 0.5, "identified": [1.0] * 2 + [0.0] * 18}, "identifies"),  # By chance once in 5,000 times.
        ({"rmse": 0.5, "identified": [1.0] + [0.0] * 19}, "inconclusive"),  # Once in 50.
        ({"rmse": [0.2] * 10 + [0.4] * 10}, "inconclusive"),  # As close as the baseline is not closer.
        ({"rmse": [0.1] * 2 + [0.5] * 8 + [0.31] * 10}, "inconclusive"),  # 12 of 20 closer is not significant.
        # 1.0 is above the baseline's interval [0.64, 0.95], but its own begins at 0.84, below the baseline's 0.85.
        ({"rmse": 0.5, "success": True, "null_success": [True] * 17 + [False] * 3}, "inconclusive"),
    ],
)
def test_each_clause_of_the_verdict(changes: dict[str, object], verdict: str) -> None:
    """One clause at a time decides."""
    assert tap_summary(table(**changes), 0.0).verdict == verdict


def test_members_of_a_batch_are_not_independent() -> None:
    """Eight batches of three, equal within each: intervals of 8 trials; 6 of 8 closer than the baseline are not significant."""
    batches = np.repeat(np.arange(8), 3)
    rows = pd.DataFrame({**table(), "null_rmse": 0.4}).iloc[0:1].loc[[0] * 24].reset_index(drop=True)
    rows = rows.assign(victim=batches, batch=batches, member=[0, 1, 2] * 8, identified=[1.0, np.nan, np.nan] * 8)
    rows = rows.assign(null_success=batches < 4, label_guess=[0, 0, 0, 1] * 6, rmse=np.where(batches < 6, 0.3, 0.5))
    tap = tap_summary(rows, 0.0)
    assert (tap.victims, tap.batch, tap.label_accuracy) == (8, 3, 0.75)
    low, high = wilson(4, 8)
    assert tap.null_asr == 0.5
    assert tap.null_asr_low <= low + 0.03
    assert tap.null_asr_high >= high - 0.03
    assert (tap.identified, tap.identified_low, tap.identified_high) == (1.0, *wilson(8, 8))
    assert tap_summary(rows.assign(identified=[0.0, np.nan, np.nan] * 8), 0.0).verdict == "inconclusive"


def test_medians_take_failures_as_the_worst() -> None:
    """11 of 20 without a value: no median; the baseline's RMSE is its median; iterations need half of the victims."""
    tap = tap_summary(table(psnr=[np.nan] * 11 + [50.0] * 9, ssim=[np.nan] * 11 + [0.9] * 9), 0.0)
    assert (tap.psnr, tap.ssim) == (None, None)
    assert tap.null_rmse == pytest.approx(0.3)
    assert tap_summary(table(null_rmse=[0.2] * 15 + [0.4] * 5), 0.0).null_rmse == pytest.approx(0.2)
    failed = [np.nan] * 8 + [float(n) for n in range(1, 13)]
    tap = tap_summary(table(rmse=failed, lpips=failed, psnr=failed, ssim=failed), 0.0)
    assert (tap.rmse, tap.lpips, tap.psnr, tap.ssim) == (10.5, 10.5, 2.5, 2.5)
    assert tap_summary(table(iterations_to_success=[3.0] * 8 + [np.nan] * 12), 0.0).iterations is None
    assert tap_summary(table(iterations_to_success=[3.0] * 12 + [np.nan] * 8), 0.0).iterations == 3.0


def test_each_baseline_column_has_its_own_guess() -> None:
    """The guess that is best for ASR is not the one that is best for RMSE."""
    real = truth(2, 1)
    null = NullAttack({"a": real.inputs[:, 0], "b": torch.zeros(2, *SHAPE)}, {}, {}, "a", "b")
    rows = score(
        "type-2", 0, answer(real.inputs, real.labels), ranked(torch.zeros(2, 8), real), null, real, 0.1, "n/a"
    )[0]
    assert rows["null_success"].all()
    assert (rows["null_rmse"] > 0.4).all()


def test_iterates_of_a_batch_are_matched_too() -> None:
    """An iterate in another order than the truth is a success."""
    real = truth(1, 3)
    turned = real.inputs[:, torch.tensor([1, 2, 0])]
    rows = rows_of(real, answer(turned, real.labels, turned[None]), total=1)
    assert rows["iterations_to_success"].tolist() == [1.0, 1.0, 1.0]


def test_a_summary_describes_the_trained_model_and_the_attack() -> None:
    """The last round's accuracy, not the best; the attacker's RMSE, not the baseline's, is compared with a printed one."""
    plain = resolve_cell(Request(train_rounds=2), None)
    printed = {"accuracy": {"faces": 0.9}, "rmse type-2": {"faces": 0.6}}
    some = dataclasses.replace(plain, defense=dataclasses.replace(plain.defense, printed=printed))
    rounds = pd.DataFrame({"round": [0, 1], "accuracy": [0.9, 0.5], "loss": [1.0, 1.0], "update_scale": [1.0, 1.0]})
    epsilon = {"claimed": None, "claimed_formula": "none", "valid": None, "reason": "none"}
    guard = Guard(sigma=None, reason="none: no noise", unit="example", before=(), commonest=0.5, related="")
    nothing = Reference(None, "none: no bins", None, None, "none: no noise")
    limits = {"type-2": Limits(guard, Floor(None, None, "none: no noise"), nothing)}
    found = summarise(some, table(rmse=0.15), rounds, epsilon, limits, {"attack type-2": 7.0}, "runs/one")
    assert (found.accuracy, found.rounds, found.taps["type-2"].seconds) == (0.5, 2, 7.0)
    assert [(c.what, c.claimed, c.measured) for c in found.claims] == [
        ("accuracy", 0.9, 0.5),
        ("rmse type-2", 0.6, 0.15),
    ]
    assert "not better than a guess" in found.claims[1].comment


def test_a_reconstruction_without_iterations_counts() -> None:
    """A closed form that found nothing failed; only an attack that ranks has no reconstructions to count."""
    real = truth(2, 3)
    blank = torch.full_like(real.inputs, torch.nan)
    empty = dataclasses.replace(answer(blank, real.labels), trajectory=torch.zeros(0, 2))
    assert set(rows_of(real, empty, 2)["failure_reason"]) == {"not_finite"}
    assert set(rows_of(real, None, 2)["failure_reason"]) == {RANKS_ONLY}
