"""Fields of texts in a leakage point's summary: medians, means, failures, rankings, and rows of earlier versions."""

from __future__ import annotations

import pandas as pd
import pytest

from leakbench.measure.measures import EDIT_DISTANCE, RMSE
from leakbench.measure.rates import EXACT, LENGTH, OF_TEXTS, ROUGE_1
from leakbench.measure.statistics import mean_interval, proportion
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.scoring.scores_texts import NEAREST
from leakbench.storage.summary import Tap
from leakbench.summary.targets import target_notes
from leakbench.summary.texts import distance_of, text_fields, text_notes

NAN = float("nan")
BATCH, NETWORK = [0, 0, 1, 2, 3], ["a", "a", "a", "b", "b"]
DISTANCE = [0.1, 0.2, 0.3, 0.9, NAN]
RATE = [0.5, 1.0, 0.0, 0.25, NAN]
EXACTLY = [1.0, 1.0, 0.0, 0.0, NAN]
GUESS = [0.3, 0.4, 0.5, 0.6, 1.0]
"""The median is .5 and the mean .56."""


def rows(networks: bool = False) -> pd.DataFrame:
    """Return five sentences of four batches; the last one has no reconstruction."""
    found = {"batch": BATCH, "failure_reason": ["", "", "", "", "none given"], EDIT_DISTANCE.name: DISTANCE}
    found |= {rate.column: EXACTLY if rate in (EXACT, LENGTH) else RATE for rate in OF_TEXTS}
    found |= dict.fromkeys((EDIT_DISTANCE.baseline, *NEAREST, *(rate.baseline for rate in OF_TEXTS)), GUESS)
    return pd.DataFrame(found | {"network": NETWORK if networks else "a"})


def test_distances_are_medians_and_a_failed_sentence_counts_as_the_worst() -> None:
    """The distances are .1, .2, .3, .9 and 1; of guesses, rates are means."""
    found = text_fields(rows())
    assert found[EDIT_DISTANCE.name] == 0.3
    assert found[EDIT_DISTANCE.baseline] == found["nearest_edit_distance"] == 0.5
    for name in ("nearest_rouge_l", *(rate.baseline for rate in OF_TEXTS)):
        assert found[name] == pytest.approx(0.56)
    worse = rows().assign(**{EDIT_DISTANCE.name: [0.1, 0.2, NAN, NAN, NAN]})
    assert text_fields(worse)[EDIT_DISTANCE.name] == 1.0


@pytest.mark.parametrize("networks", [False, True])
def test_rates_are_means_with_intervals_and_a_failed_sentence_counts_as_0(networks: bool) -> None:
    """Shares of sentences are over sentences, means of scores over the four batches."""
    found = text_fields(rows(networks))
    each, of = (NETWORK, ["a", "a", "b", "b"]) if networks else (None, None)
    assert [found[name] for name in ROUGE_1.ends] == pytest.approx(mean_interval([0.75, 0, 0.25, 0], network=of))
    share = proportion([1, 1, 0, 0, 0], BATCH, network=each)
    for rate in (EXACT, LENGTH):
        assert [found[name] for name in rate.ends] == pytest.approx(share)
    assert found["rouge_1"] == pytest.approx(0.25) and found["exact_match"] == pytest.approx(0.4)


def test_networks_count_in_both_kinds_of_intervals() -> None:
    """So that the test above compares numbers that differ."""
    without, within = text_fields(rows()), text_fields(rows(True))
    for rate in (ROUGE_1, EXACT):
        assert without[rate.high] != pytest.approx(within[rate.high])


def test_only_a_ranking_of_all_rows_has_no_value_of_its_own() -> None:
    some = rows().assign(failure_reason=["", "", "", "", RANKS_ONLY])
    assert text_fields(some)[EDIT_DISTANCE.name] == 0.3
    found = text_fields(rows().assign(failure_reason=RANKS_ONLY))
    own = {EDIT_DISTANCE.name, *(name for rate in OF_TEXTS for name in rate.ends)}
    assert {name for name, value in found.items() if value is None} == own
    assert found[EDIT_DISTANCE.baseline] == 0.5


def test_notes_and_the_distance_of_success_of_texts_and_of_other_data() -> None:
    texts, ranking = (Tap(null_edit_distance=0.5, edit_distance=each) for each in (0.1, None))
    assert distance_of(texts) is EDIT_DISTANCE and distance_of(Tap()) is RMSE
    assert text_notes("type-1", Tap()) == {}
    notes = text_notes("type-1", ranking)
    assert notes["taps.type-1.edit_distance"] == notes["taps.type-1.rouge_1"] == RANKS_ONLY
    assert "taps.type-1.null_edit_distance" not in notes
    for name in ("label_accuracy", "label_ranked"):
        assert "no label leaks" in target_notes("type-1", ranking, "next_token")[f"taps.type-1.{name}"]
        assert target_notes("type-1", texts, "class") == {}
