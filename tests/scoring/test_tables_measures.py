"""Measures of a reconstructed table: categories by their largest column, numbers within 0.319 deviations, whole records."""

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from small_table import FEATURES, dataset, layout, records
from torch import Tensor

from leakbench.attack.null.pictures import null_attack
from leakbench.attack.null.tables import best_guesser, random_records
from leakbench.core.errors import InputError
from leakbench.data.columns import Columns, columns_of
from leakbench.data.dataset import Feature
from leakbench.data.find import load_dataset
from leakbench.measure.metrics_tables import TOLERANCE, match_features, table_scores
from leakbench.scoring.scores import RANKS_ONLY, VictimTruth
from leakbench.scoring.scores_tables import TABLE_COLUMNS, TableJudge, score_table, table_judge
from leakbench.storage.summary import Tap
from leakbench.summary.tables import table_fields, table_notes

COLUMNS = layout()


def batches(victims: int, members: int, seed: int = 0) -> Tensor:
    return records(victims * members, seed).reshape(victims, members, 7)


def slow_right(answer: Tensor, truth: Tensor, columns: Columns) -> list[bool]:
    """Return whether each known feature of one record is right."""
    right = []
    for f in columns.features:
        given_, true = answer[f.start : f.stop].tolist(), truth[f.start : f.stop].tolist()
        if not f.values:
            right.append(abs(min(1.0, max(0.0, given_[0])) - true[0]) <= 0.319 * float(columns.deviation[f.start]))
        elif max(true) > 0:
            right.append(given_.index(max(given_)) == true.index(max(true)))
    return right


def test_the_tolerance_is_a_quarter_of_a_gaussian() -> None:
    """TabLeak's 0.319: a Gaussian number is that close to its mean with probability .25."""
    assert 2 * norm.cdf(TOLERANCE) - 1 == pytest.approx(0.25, abs=3e-4)


def test_one_wrong_feature_of_four() -> None:
    """A perfect record scores 1 and 1; with another category, or a number just beyond its tolerance, 3/4 and 0."""
    truth = torch.tensor([[[0.5, 0, 1, 0, 0.5, 1, 0]]])
    tolerance = TOLERANCE * float(COLUMNS.deviation[0])
    within, beyond = (truth + torch.eye(7)[0] * tolerance * factor for factor in (0.99, 1.01))
    other = torch.tensor([[[0.5, 0.1, 0.2, 0.3, 0.5, 1, 0]]])
    for answer, accuracy, match in ((truth, 1, 1), (within, 1, 1), (beyond, 0.75, 0), (other, 0.75, 0)):
        found = table_scores(answer, truth, COLUMNS)
        assert found.feature_accuracy.tolist() == [[accuracy]]
        assert found.record_match.tolist() == [[match]]


def test_the_largest_column_counts_not_its_size() -> None:
    """(.02, .03, .01) is the category in the middle."""
    truth = torch.tensor([[[0.5, 0, 1, 0, 0.5, 1, 0]]])
    soft = torch.tensor([[[0.5, 0.02, 0.03, 0.01, 0.5, -3.0, -4.0]]])
    assert table_scores(soft, truth, COLUMNS).record_match.tolist() == [[1.0]]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_order_of_a_batch_is_found(order: tuple[int, ...]) -> None:
    """All permutations of a perfect reconstruction, two 3-cycles among them, are matched, and all is right."""
    truth = torch.tensor(
        [[[0.1, 1, 0, 0, 0.1, 1, 0], [0.5, 0, 1, 0, 0.9, 1, 0], [0.9, 0, 0, 1, 0.5, 0, 1]]], dtype=torch.float32
    )
    answer = truth[:, list(order)]
    found = match_features(answer, truth, COLUMNS)[0]
    assert torch.equal(answer[0][found], truth[0])
    assert table_scores(answer, truth, COLUMNS).record_match.tolist() == [[1.0, 1.0, 1.0]]


@given(seed=st.integers(0, 10_000), members=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_scores_equal_a_slow_count_over_all_orders(seed: int, members: int) -> None:
    """Slow reference: every permutation and every feature, with unknown categories among them."""
    truth = records(members, seed, unknown=0.4)[None]
    noise = torch.rand(1, members, 7, generator=torch.Generator().manual_seed(seed))
    answer = 0.5 * truth[:, torch.randperm(members, generator=torch.Generator().manual_seed(seed))] + 0.5 * noise
    best = 0.0
    for order in itertools.permutations(range(members)):
        shares = [np.mean(slow_right(answer[0, a], truth[0, m], COLUMNS)) for m, a in enumerate(order)]
        best = max(best, float(np.mean(shares)))
    found = table_scores(answer, truth, COLUMNS)
    assert float(found.feature_accuracy.mean()) == pytest.approx(best)
    matched = answer[0][match_features(answer, truth, COLUMNS)[0]]
    whole = [float(all(slow_right(a, t, COLUMNS))) for a, t in zip(matched, truth[0], strict=True)]
    assert found.record_match[0].tolist() == whole


def test_lanes_do_not_mix() -> None:
    """Five batches together have the same scores as each alone."""
    truth, answer = batches(5, 3), batches(5, 3, seed=9)
    together = table_scores(answer, truth, COLUMNS)
    alone = [table_scores(answer[v : v + 1], truth[v : v + 1], COLUMNS) for v in range(5)]
    assert torch.equal(together.feature_accuracy, torch.cat([a.feature_accuracy for a in alone]))
    assert torch.equal(together.record_match, torch.cat([a.record_match for a in alone]))


def test_an_unknown_category_of_the_record_is_not_counted() -> None:
    """A record without a known work has three features; any guess for the work is neither right nor wrong."""
    truth = torch.tensor([[[0.5, 0, 0, 0, 0.5, 1, 0]]], dtype=torch.float32)
    for work in torch.eye(3):
        answer = truth.clone()
        answer[0, 0, 1:4] = work
        assert table_scores(answer, truth, COLUMNS).record_match.tolist() == [[1.0]]
        answer[0, 0, 5:] = torch.tensor([0.0, 1.0])
        assert table_scores(answer, truth, COLUMNS).feature_accuracy.item() == pytest.approx(2 / 3)


def test_a_missing_reconstruction_is_nan_and_gets_the_worst_truth() -> None:
    """A NaN among three reconstructions does not change the match of the other two."""
    truth = batches(1, 3, seed=3)
    answer = truth[:, [2, 0, 1]].clone()
    answer[0, 1, 2] = torch.nan  # The reconstruction of truth 0.
    found = table_scores(answer, truth, COLUMNS)
    assert found.feature_accuracy[0].isnan().tolist() == [True, False, False]
    assert found.record_match[0, 1:].tolist() == [1.0, 1.0]


def test_a_missing_reconstruction_does_not_influence_its_match() -> None:
    """Its NaN categories would be read as the first value; the record must go to the truth with two wrong features, not three."""
    truth = torch.tensor([[[0.0, 1, 0, 0, 0, 1, 0], [1.0, 0, 1, 0, 1, 0, 1]]])
    answer = torch.stack([torch.full((7,), torch.nan), torch.tensor([0.5, 1, 0, 0, 1, 1, 0])])[None]
    assert match_features(answer, truth, COLUMNS).tolist() == [[1, 0]]
    assert table_scores(answer, truth, COLUMNS).feature_accuracy[0, 0] == 0.5


def test_shapes_that_do_not_fit_are_refused() -> None:
    """A different number of columns or members does not match this truth."""
    truth = batches(2, 3)
    for answer in (truth[:, :2], truth[..., :6], truth[0]):
        with pytest.raises(ValueError, match="answer: got shape"):
            match_features(answer, truth, COLUMNS)


def test_columns_of_pictures_and_of_invalid_layouts() -> None:
    """Pictures have none; a column that is missing, shared, or not one for each value is refused."""
    assert columns_of(load_dataset("digits", None)[2]) is None
    data = dataset()
    for features, message in (
        (FEATURES[:-1], "expected each of 0 to 6 once"),
        ((*FEATURES, Feature("age", 0, 1)), "expected each of 0 to 6 once"),
        ((*FEATURES[:-1], Feature("sex", 5, 7, ("a", "b", "c"))), "expected one a value"),
    ):
        with pytest.raises(InputError, match=message):
            columns_of(dataclasses.replace(data, features=features))


def test_columns_of_the_embedded_table() -> None:
    """Cancer: 30 numbers, no category; means and deviations over the public records, as numpy has them."""
    data = load_dataset("cancer", None)[2]
    columns = columns_of(data)
    assert columns is not None
    assert (columns.width, len(columns.categories)) == (30, 0)
    assert columns.numbers.tolist() == list(range(30))
    public = data.test_inputs.numpy().astype(np.float64)
    np.testing.assert_allclose(columns.mean, public.mean(0))
    np.testing.assert_allclose(columns.deviation, public.std(0, ddof=1))


def test_moments_do_not_include_victims() -> None:
    """Other training records change neither a mean nor a deviation, and so not the tolerance."""
    data = dataset()
    others = columns_of(dataclasses.replace(data, train_inputs=1 - data.train_inputs))
    assert others is not None
    assert torch.equal(others.mean, COLUMNS.mean)
    assert torch.equal(others.deviation, COLUMNS.deviation)


@pytest.mark.parametrize("n", [1, 40])
def test_a_category_missing_in_public_has_the_deviation_of_a_single_record(n: int) -> None:
    """For 0 and for 1 of n the deviation is n^-1/2, so a constant column has little weight."""
    data = dataset(n)
    public = data.test_inputs.clone()
    public[:, 1:4] = torch.tensor([0.0, 0.0, 1.0])
    none = columns_of(dataclasses.replace(data, test_inputs=public))
    public = public.clone()
    public[0, 1:4] = torch.tensor([0.0, 1.0, 0.0])
    one = columns_of(dataclasses.replace(data, test_inputs=public))
    assert none is not None
    assert one is not None
    assert float(none.deviation[1]) == pytest.approx(n**-0.5)
    assert float(one.deviation[2]) == pytest.approx(n**-0.5)


def test_hardened_records_have_one_1_in_each_category() -> None:
    """The largest column becomes the 1, numbers are clamped, NaN stays."""
    soft = torch.tensor([[1.5, 0.2, 0.5, 0.3, -1.0, 2.0, 3.0], [0.5, torch.nan, 0, 0, 0.5, 1, 0]])
    assert COLUMNS.hardened(soft)[0].tolist() == [1, 0, 1, 0, 0, 0, 1]
    assert COLUMNS.hardened(soft)[1].isnan().tolist() == [False, True, True, True, False, False, False]


def test_the_random_baseline_draws_from_the_marginals() -> None:
    """Each category as often as in the public records, numbers among theirs, features independent of each other."""
    public = records(400, seed=4)
    public[:, 1:4] = torch.tensor([0.0, 0.0, 1.0])
    public[:300, 5:] = torch.tensor([1.0, 0.0])
    public[300:, 5:] = torch.tensor([0.0, 1.0])
    public[:, 0] = public[:, 5]  # The age determines the sex; independent draws agree only by chance.
    drawn = random_records(public, COLUMNS, (50, 100), torch.Generator().manual_seed(0))
    assert drawn.shape == (50, 100, 7)
    assert (drawn[..., 3] == 1).all()
    share = float(public[:, 5].mean())
    assert float(drawn[..., 5].mean()) == pytest.approx(share, abs=0.03)
    assert (drawn[..., 5] + drawn[..., 6] == 1).all()
    assert torch.isin(drawn[..., 4], public[:, 4]).all()
    agree = float((drawn[..., 0] == drawn[..., 5]).double().mean())
    assert agree == pytest.approx(share**2 + (1 - share) ** 2, abs=0.03)
    with pytest.raises(ValueError, match="expected at least one"):
        random_records(public[:0], COLUMNS, (1,), torch.Generator())


def test_the_random_baseline_never_draws_an_unknown_category() -> None:
    """If half of the public records have no known work, it is drawn from the others; if all have none, it stays unknown."""
    public = records(400, seed=4)
    public[:200, 1:4] = 0.0
    public[200:, 1:4] = torch.tensor([0.0, 1.0, 0.0])
    drawn = random_records(public, COLUMNS, (1000,), torch.Generator().manual_seed(0))
    assert torch.equal(drawn[:, 1:4], torch.tensor([0.0, 1.0, 0.0]).expand(1000, 3))
    assert float((drawn[:, 5] - public[:, 5].mean()).mean()) == pytest.approx(0, abs=0.05)  # Out of 400.
    public[:, 1:4] = 0.0
    assert not random_records(public, COLUMNS, (10,), torch.Generator())[:, 1:4].any()


def test_unknown_public_categories_do_not_lower_the_random_baseline() -> None:
    """All records have the same work, half of them unknown in public: the work is right in every draw."""
    public = records(2000, seed=5)
    public[:, 1:4] = torch.tensor([0.0, 1.0, 0.0])
    truth = public[:1000, None].clone()
    told = random_records(public, COLUMNS, (1000, 1), torch.Generator().manual_seed(1))
    public[::2, 1:4] = 0.0
    drawn = random_records(public, COLUMNS, (1000, 1), torch.Generator().manual_seed(2))
    found, whole = (float(table_scores(d, truth, COLUMNS).feature_accuracy.mean()) for d in (drawn, told))
    assert found == pytest.approx(whole, abs=0.03)


def test_the_random_baseline_has_its_closed_form() -> None:
    """At batch 1 it gets a category right with probability sum of squared frequencies; with more members matching helps."""
    public = records(2000, seed=5)
    truth = public[:1000, None]
    drawn = random_records(public, COLUMNS, (1000, 1), torch.Generator().manual_seed(1))
    numbers = [
        float(((public[:, c, None] - public[None, :, c]).abs() <= TOLERANCE * COLUMNS.deviation[c]).double().mean())
        for c in (0, 4)
    ]
    categories = [float(public[:, f.start : f.stop].mean(0).square().sum()) for f in COLUMNS.categories]
    alone = float(table_scores(drawn, truth, COLUMNS).feature_accuracy.mean())
    assert alone == pytest.approx(np.mean(numbers + categories), abs=0.03)
    together = table_scores(drawn.reshape(125, 8, 7), truth.reshape(125, 8, 7), COLUMNS)
    assert float(together.feature_accuracy.mean()) > alone + 0.1


def test_the_best_guesser_is_chosen_on_public_records() -> None:
    """If the class determines everything, the class mean is chosen; if the labels give no information, another."""
    data = dataset(200)
    public, labels = data.test_inputs.clone(), data.test_targets
    public[:, :] = torch.where(labels[:, None] == 1, records(1, 7), records(1, 8))
    rng = torch.Generator().manual_seed(0)
    known = torch.tensor([0, 1, 1, 0])
    null = null_attack(public, labels, 4, known, 0.01, rng)
    assert best_guesser(null, public, labels, known, COLUMNS) == "class mean"
    assert best_guesser(null_attack(public, labels, 4, None, 0.01, rng), public, labels, known, COLUMNS) != "class mean"


def scored(answer: Tensor, members: int = 2) -> pd.DataFrame:
    data = dataset()
    victims = len(answer)
    examples = torch.arange(victims * members).reshape(victims, members)
    labels = data.train_targets[examples]
    lanes = torch.arange(victims)
    null = null_attack(data.test_inputs, data.test_targets, labels.numel(), labels.flatten(), 0.1, torch.Generator())
    judge = table_judge(data, null, labels.flatten())
    assert judge is not None
    rngs = tuple(torch.Generator().manual_seed(v) for v in range(victims))
    rows = score_table(answer, VictimTruth(lanes, data.train_inputs[examples], labels, examples, lanes), judge, rngs)
    return rows.assign(batch=np.repeat(np.arange(victims), members), network=0, failure_reason="")


def test_rows_and_summary_of_a_perfect_answer() -> None:
    """All right, above both baselines; a missing reconstruction counts as wrong, not as absent."""
    truth = dataset().train_inputs[:12].reshape(6, 2, 7)
    rows = scored(truth.flip(1))
    assert tuple(rows.columns[:6]) == TABLE_COLUMNS
    found = table_fields(rows)
    assert (found["feature_accuracy"], found["record_match"]) == (1.0, 1.0)
    assert 0.2 < found["random_feature_accuracy"] < 0.8  # type: ignore[operator]
    assert 0.2 < found["null_feature_accuracy"] < 0.9  # type: ignore[operator]
    assert found["random_record_match"] < 0.2  # type: ignore[operator]
    missing = truth.clone()
    missing[:3] = torch.nan
    half = table_fields(scored(missing))
    assert (half["feature_accuracy"], half["record_match"]) == (0.5, 0.5)
    low, high = half["feature_accuracy_low"], half["feature_accuracy_high"]
    assert low == pytest.approx(max(0, 0.5 - 2.5706 * math.sqrt(0.3) / math.sqrt(6)), abs=1e-3)
    assert high == pytest.approx(min(1, 0.5 + 2.5706 * math.sqrt(0.3) / math.sqrt(6)), abs=1e-3)


def test_each_victim_is_paired_with_its_baseline_guess() -> None:
    """Victims 3 to 5 of six: a guess equal to each truth is right for them, and only at their positions."""
    data = dataset()
    examples = torch.arange(12).reshape(6, 2)
    everyone = data.train_inputs[examples]
    lanes = torch.tensor([3, 4, 5])
    real = VictimTruth(lanes, everyone[lanes], data.train_targets[examples][lanes], examples[lanes], lanes)
    rngs = tuple(torch.Generator().manual_seed(v) for v in range(3))
    for guess, right in ((everyone, True), (everyone.roll(1, 0), False)):
        judge = TableJudge(COLUMNS, data.test_inputs, guess.flatten(0, 1))
        rows = score_table(everyone[lanes], real, judge, rngs)
        assert (rows["null_record_match"] == 1).all() == right


def test_the_random_guess_is_the_mean_of_its_draws() -> None:
    """Twenty draws from the victim's own generator, each scored alone; not the best of them."""
    data = dataset()
    truth = data.train_inputs[:2].reshape(1, 2, 7)
    drawn = random_records(data.public_inputs, COLUMNS, (20, 2), torch.Generator().manual_seed(0))
    each = [table_scores(batch[None], truth, COLUMNS) for batch in drawn]
    rows = scored(truth)
    for name in ("feature_accuracy", "record_match"):
        expected = torch.cat([getattr(found, name) for found in each]).mean(0)
        np.testing.assert_allclose(rows[f"random_{name}"], expected)


def test_pictures_and_rankings_explain_missing_measures() -> None:
    """Pictures have none of the fields; a ranking has the baselines, and no reconstruction."""
    pictures = table_fields(pd.DataFrame({"rmse": [0.1], "failure_reason": [""]}))
    assert set(pictures.values()) == {None}
    assert set(table_notes("type-1", Tap.model_validate(pictures)).values()) == {"n/a: pictures"}
    rows = scored(dataset().train_inputs[:12].reshape(6, 2, 7) * torch.nan)
    ranked = table_fields(rows.assign(failure_reason=RANKS_ONLY))
    assert ranked["feature_accuracy"] is None
    assert ranked["null_feature_accuracy"] is not None
    assert set(table_notes("type-1", Tap.model_validate(ranked)).values()) == {RANKS_ONLY}


def batches_of_two(feature_accuracy: list[float], record_match: float) -> pd.DataFrame:
    """Return rows of a batch of two for each feature accuracy, with baselines that have nothing right."""
    rows = pd.DataFrame(dict.fromkeys(TABLE_COLUMNS, 0.0), index=range(2 * len(feature_accuracy)))
    batch = np.repeat(np.arange(len(feature_accuracy)), 2)
    return rows.assign(
        batch=batch,
        network=0,
        failure_reason="",
        record_match=record_match,
        feature_accuracy=np.repeat(feature_accuracy, 2),
    )


def test_a_record_match_is_bounded_by_batches() -> None:
    """With 0 records of five batches of two: Wilson's limit for five trials, z^2 / (5 + z^2), not for ten."""
    found = table_fields(batches_of_two([0.5] * 5, 0.0))
    assert (found["record_match"], found["record_match_low"]) == (0.0, 0.0)
    assert found["record_match_high"] == pytest.approx(1.96**2 / (5 + 1.96**2), abs=1e-4)


def test_the_interval_of_feature_accuracy_is_students() -> None:
    """Batches at .4, .6, .4, .6: s = .115470, t with 3 degrees of freedom 3.182446, so .5 +- 3.182446 * .115470 / 2."""
    found = table_fields(batches_of_two([0.4, 0.6, 0.4, 0.6], 0.0))
    half = 3.182446 * 0.115470 / 2
    assert found["feature_accuracy_low"] == pytest.approx(0.5 - half, abs=1e-5)
    assert found["feature_accuracy_high"] == pytest.approx(0.5 + half, abs=1e-5)
