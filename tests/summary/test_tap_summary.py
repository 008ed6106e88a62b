"""Each number of a leakage point's summary, on synthetic rows that can be checked by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_rows import make_rows

from leakbench.attack import doubts as attack_doubts
from leakbench.cell import Request, resolve_cell
from leakbench.measure.statistics import wilson
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.storage.summary import Tap
from leakbench.summary.tap import tap_summary
from leakbench.summary.warnings import WORDS, warnings


@pytest.mark.parametrize(
    ("right", "guessed", "above"),
    [(3, 2, 0.5), (4, 2, 1.0), (2, 2, 0.0), (1, 2, -0.5), (3, 0, 0.75), (4, 4, None)],
)
def test_asr_above_baseline_is_relative_to_the_remaining_share(right: int, guessed: int, above: float | None) -> None:
    """For four: (asr - baseline) / (1 - baseline), as a kappa; no value if the baseline has 1."""
    rows = make_rows(4, success=np.arange(4) < right, null_success=np.arange(4) < guessed)
    assert tap_summary(rows, 0.0).asr_above_null == (None if above is None else pytest.approx(above))


def test_precision_counts_existing_reconstructions() -> None:
    """One right of two reconstructions, two missing: precision .5 and ASR .25. Without a reconstruction, no precision."""
    rows = make_rows(4, success=[True, False, False, False], failure=[False, False, True, True])
    found = tap_summary(rows, 0.0)
    assert (found.precision, found.asr) == (0.5, 0.25)
    assert tap_summary(make_rows(4, failure=True, rmse=np.nan), 0.0).precision is None


def test_the_exact_interval_counts_batches() -> None:
    """Zero or only successes in five batches of four: Clopper and Pearson's limits for five trials."""
    edge = 0.025 ** (1 / 5)
    none, all_ = (tap_summary(make_rows(5, 4, success=success), 0.0) for success in (False, True))
    assert (none.asr_exact_low, none.asr_exact_high) == pytest.approx((0.0, 1 - edge))
    assert (all_.asr_exact_low, all_.asr_exact_high) == pytest.approx((edge, 1.0))


def test_label_accuracy_is_over_all_examples() -> None:
    """A label without an input counts, and a wrong label of a failed search too: two of four, and not two of two."""
    lost = np.array([False, False, True, True])
    assert tap_summary(make_rows(4, failure=lost, label_guess=lost.astype(int)), 0.0).label_accuracy == 0.5
    assert tap_summary(make_rows(4, failure=lost, label_guess=(~lost).astype(int)), 0.0).label_accuracy == 0.5


def test_identification_below_chance_is_not_a_leak() -> None:
    """None of 40 if half are expected: far from chance, but on the harmless side."""
    assert tap_summary(make_rows(40, candidates=2), 0.0).verdict == "inconclusive"
    assert tap_summary(make_rows(40, candidates=2, identified=1.0), 0.0).verdict == "identifies"


def test_labels_are_ranked_among_the_victims_whose_class_is_public() -> None:
    """Right for 1 of 2; two others have classes missing in public data: .5 of two. Without any, value and interval are missing."""
    found = tap_summary(make_rows(4, label_ranked=[1.0, 0.0, np.nan, np.nan]), 0.0)
    assert (found.label_ranked, found.label_ranked_low, found.label_ranked_high) == (0.5, *wilson(1, 2))
    none = tap_summary(make_rows(4, label_ranked=np.nan), 0.0)
    assert {none.value(f"label_ranked{end}") for end in ("", "_low", "_high")} == {None}


def of_people(victims: int, members: int = 1, **changes: Any) -> pd.DataFrame:
    """Return rows far from the truth by RMSE, with features as right as the baseline's; a random guess is worse."""
    guessed = {"feature_accuracy": 0.6, "null_feature_accuracy": 0.6, "random_feature_accuracy": 0.5}
    none = dict.fromkeys(("record_match", "null_record_match", "random_record_match"), 0.0)
    return make_rows(victims, members, **{**guessed, **none, **changes})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "inconclusive"),
        ({"record_match": [1.0] * 8 + [0.0] * 12}, "reconstructs"),
        ({"record_match": [1.0] * 2 + [0.0] * 18}, "inconclusive"),  # The baseline's interval for 20 reaches .16.
        ({"record_match": [1.0] * 8 + [0.0] * 12, "null_record_match": [1.0] * 8 + [0.0] * 12}, "inconclusive"),
        ({"record_match": [1.0] * 8 + [0.0] * 12, "random_record_match": 0.4}, "inconclusive"),
        ({"record_match": [1.0] * 8 + [0.0] * 12, "random_record_match": 0.3}, "inconclusive"),  # 8 of 20 may be 22 %.
        ({"feature_accuracy": 0.9}, "reconstructs"),
        ({"feature_accuracy": 0.55}, "inconclusive"),  # Above the random guess alone.
        ({"feature_accuracy": 0.9, "random_feature_accuracy": 0.9}, "inconclusive"),  # Above the baseline alone.
        ({"feature_accuracy": [0.9, 0.4] * 10}, "inconclusive"),  # Above both, by chance.
        # t is 1.78, between the quantiles of .95 and .975.
        ({"feature_accuracy": [0.9] * 12 + [0.4] * 8}, "inconclusive"),
        ({"feature_accuracy": np.nan}, "inconclusive"),  # A failed example has no feature right.
        ({"feature_accuracy": 0.9, "failure_reason": RANKS_ONLY}, "inconclusive"),
    ],
)
def test_a_table_with_high_feature_accuracy_is_reconstructed(changes: dict[str, Any], verdict: str) -> None:
    """Records or features significantly above both guesses are a leak at any RMSE; above one of the guesses is not enough."""
    assert tap_summary(of_people(20, **changes), 0.0).verdict == verdict


def test_right_features_are_counted_by_batch() -> None:
    """Fourteen batches of ten with equal outcomes: for 140 independent records the gain would be significant."""
    gains = np.repeat([0.9, 0.4], 70)
    assert tap_summary(of_people(14, 10, feature_accuracy=gains), 0.0).verdict == "inconclusive"
    assert tap_summary(of_people(140, feature_accuracy=gains), 0.0).verdict == "reconstructs"
    assert tap_summary(of_people(1, 10, feature_accuracy=0.9), 0.0).verdict == "inconclusive"


def test_few_batches_need_the_wider_quantile_of_student() -> None:
    """Five records that gain .3, .3, .3, .3 and -.2: t is 2, above the normal 1.96, below the 2.78 of four degrees of freedom."""
    assert tap_summary(of_people(5, feature_accuracy=[0.9] * 4 + [0.4]), 0.0).verdict == "inconclusive"


def test_a_lost_record_is_wrong_within_its_batch() -> None:
    """In each batch of two one is at .9 and one is lost: .45 on average, below the guesses; not the .9 of the survivors."""
    halves = of_people(20, 2, feature_accuracy=np.tile([0.9, np.nan], 20))
    assert tap_summary(halves, 0.0).verdict == "inconclusive"


def test_right_records_are_counted_by_batch() -> None:
    """Twenty batches of eight, equal within each: intervals of 20 trials on both sides, not of 160."""
    four, two = (np.repeat(np.arange(20) < many, 8).astype(float) for many in (4, 2))
    rows = of_people(20, 8, record_match=four, random_record_match=0.1)  # 4 of 20 may be 8 %, 32 of 160 not.
    assert tap_summary(rows, 0.0).verdict == "inconclusive"
    assert tap_summary(of_people(20, 8, record_match=four), 0.0).verdict == "reconstructs"
    # The baseline's 0 of 20 may be 16 %, 0 of 160 only 2.
    assert tap_summary(of_people(20, 8, record_match=two), 0.0).verdict == "inconclusive"


def test_each_doubt_is_counted() -> None:
    """Two doubts, of 20 and of 19 of 40 victims; a victim with several counts for one of them."""
    doubts = np.where(np.arange(40) < 1, "a", np.where(np.arange(40) < 20, "a; b", ""))
    assert tap_summary(make_rows(40, doubts=doubts), 0.0).doubts == {"a": 20, "b": 19}


def test_a_doubt_is_a_key_in_rows_and_a_sentence_in_a_warning() -> None:
    """Every key has a sentence, warnings have the order of the table, and an unknown doubt is printed unchanged."""
    keys = {getattr(attack_doubts, name) for name in attack_doubts.__all__ if name.isupper()}
    assert keys == set(WORDS)
    assert all(key.isidentifier() for key in keys)
    found = tap_summary(make_rows(4, candidates=2, identified=0.0, doubts="unchecked; of mine; stuck"), 0.0).doubts
    assert list(found.items()) == [("stuck", 4), ("unchecked", 4), ("of mine", 4)]
    some = resolve_cell(Request(attack="autoleak", dataset="digits", taps=("type-2",)), None)
    said = warnings(some, {"type-2": Tap(doubts=found, victims=4)}, pd.DataFrame({"round": [0], "loss": [0.5]}))
    assert said == [
        "type-2: for 4 of 4 victims, a search never came closer than its start: its gradients may vanish",
        "type-2: for 4 of 4 victims, too few public examples to try the same searches without any defense",
        "type-2: for 4 of 4 victims, of mine",
    ]


def test_only_two_doubts_of_an_attack_alone_are_warnings() -> None:
    some = resolve_cell(Request(attack="inverting_gradients", dataset="digits", taps=("type-2",)), None)
    found = {attack_doubts.BUDGET: 1, attack_doubts.STUCK: 4, attack_doubts.RANK: 2}
    said = warnings(some, {"type-2": Tap(doubts=found, victims=4)}, pd.DataFrame({"round": [0], "loss": [0.5]}))
    assert said == [
        f"type-2: for {found[why]} of 4 victims, {WORDS[why]}" for why in (attack_doubts.BUDGET, attack_doubts.RANK)
    ]


@pytest.mark.parametrize(
    ("asked", "ranked", "said"),
    [
        (99999, 1336, ["candidates: got 99999, but digits has only 1336 to rank; expected at most these"]),
        (1200, 1200, []),
        (None, 900, []),
    ],
)
def test_fewer_candidates_than_the_user_asked_for_are_a_warning(
    asked: int | None, ranked: int, said: list[str]
) -> None:
    some = resolve_cell(Request(attack="cpl", dataset="digits", taps=("type-2",), candidates=asked), None)
    assert (
        warnings(
            some,
            {"type-2": Tap(candidates=ranked), "type-1": Tap(candidates=asked)},
            pd.DataFrame({"round": [0], "loss": [0.5]}),
        )
        == said
    )


NETWORK_RATES = (
    *("asr", "asr_exact", "verbatim", "recognised", "identified", "label_ranked"),
    *("identified_by_likelihood", "member_auc", "feature_accuracy", "record_match"),
)


@pytest.mark.parametrize("name", NETWORK_RATES)
def test_the_interval_of_each_rate_covers_other_networks(name: str) -> None:
    """On two of five networks every victim is a success, on the others none: 100 victims tell as little as five networks."""
    network = np.arange(100) % 5
    right = (network < 2).astype(float)
    columns = (
        "identified",
        "label_ranked",
        "identified_by_likelihood",
        "member_above",
        "recognised",
        "feature_accuracy",
    )
    found = tap_summary(
        of_people(
            100,
            **dict.fromkeys((*columns, "record_match"), right),
            success=right == 1,
            rmse=np.where(right == 1, 0.0, 0.5),
            network=network,
            null_recognised=0.0,
            gallery=9,
        ),
        0.0,
    )
    low, high = (found.value(f"{name}_{end}") for end in ("low", "high"))
    assert low < 0.1 < wilson(40, 100)[0]
    assert high > 0.8 > wilson(40, 100)[1]
