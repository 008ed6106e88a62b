"""Texts from reconstructions to rows, the summary and the tokens on the page."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch

from leakbench.attack.null.pictures import NullAttack
from leakbench.attack.null.texts import null_texts
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.errors import InputError
from leakbench.data.dataset import Dataset
from leakbench.data.vocabulary import Vocabulary
from leakbench.data.words import WORDS, words_in, words_of
from leakbench.measure.closeness import closeness_of
from leakbench.measure.metrics_texts import text_scores
from leakbench.measure.truth import VictimTruth
from leakbench.report.columns import columns, core_columns
from leakbench.report.gallery import galleries
from leakbench.scoring import scores_texts
from leakbench.scoring.scores import score
from leakbench.scoring.scores_texts import TEXT_COLUMNS, TextJudge, score_text, text_judge
from leakbench.storage.summary import Summary
from leakbench.summary.tap import tap_summary
from leakbench.summary.targets import target_notes
from leakbench.summary.texts import text_notes

VOCABULARY = Vocabulary.of_word_pieces(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "was", "not", "##s", "."]
)
LENGTH = 8
PUBLIC = VOCABULARY.encode(("a film was bad .", "a film was good .", "not a good film", "bad films"), LENGTH)
TRUE = VOCABULARY.encode(("a good film", "the film was not bad ."), LENGTH)
ETA = 0.4


def dataset() -> Dataset:
    targets = torch.tensor([0, 1])
    return Dataset(
        "mine",
        "text",
        TRUE,
        targets,
        PUBLIC,
        torch.tensor([0, 1, 1, 0]),
        ("bad", "good"),
        torch.arange(2),
        "",
        vocabulary=VOCABULARY,
        tokens=VOCABULARY.size,
    )


def rows_of(answers: torch.Tensor | None) -> pd.DataFrame:
    """Score two victims of one sentence each; both are identified."""
    data, lanes = dataset(), torch.arange(2)
    truth = VictimTruth(lanes, TRUE[:, None], data.train_targets[:, None], lanes[:, None], lanes)
    null = null_texts(PUBLIC, 2, ETA, VOCABULARY, torch.Generator().manual_seed(0))
    given = None
    if answers is not None:
        once = torch.ones(2, dtype=torch.int64)
        inputs = answers[:, None]
        given = Reconstruction(
            inputs,
            data.train_targets[:, None],
            torch.zeros(2, 1),
            torch.zeros(1, 2),
            once,
            once,
            inputs[None],
            (1,),
            once[None],
        )
    ranked = {"identified": Ranking(torch.eye(2)), "label_ranked": Ranking(torch.eye(2))}
    rows, ordered = score("type-1", 0, given, ranked, null, truth, ETA, "n/a", 0, closeness_of(data))
    judge = TextJudge(VOCABULARY, PUBLIC, null.guesses[null.best_for_rmse])
    return rows.join(score_text(ordered, truth, judge))


def test_an_exact_and_a_failed_sentence():
    answers = TRUE.clone()
    answers[1] = torch.nan
    rows = rows_of(answers)
    assert rows["success"].tolist() == [True, False] and rows["failure"].tolist() == [False, True]
    assert rows["edit_distance"].iloc[0] == 0 and np.isnan(rows["edit_distance"].iloc[1])
    assert rows["rmse"].isna().all() and rows["null_rmse"].isna().all(), "tokens have no pixels"
    assert set(TEXT_COLUMNS) | {"null_edit_distance"} <= set(rows.columns)
    tap = tap_summary(rows, 1.0)
    assert (tap.asr, tap.exact_match, tap.rouge_1, tap.edit_distance) == (0.5, 0.5, 0.5, 0.5)
    assert tap.rmse is None and tap.null_rouge_1 is not None and tap.nearest_rouge_l is not None


def test_the_nearest_public_sentence_is_nearer_than_the_baseline_guess():
    """It is chosen with the truth, the guess without."""
    rows = rows_of(TRUE.clone())
    assert (rows["nearest_edit_distance"] <= rows["null_edit_distance"]).all()
    assert (rows["nearest_edit_distance"] > 0).all()


def test_each_victim_is_compared_with_the_guess_of_its_lane():
    """Two victims of two sentences each are scored in the order 2, 0, after a third one was left out."""
    lanes = torch.tensor([2, 0])
    true = torch.stack([TRUE, TRUE.flip(0)])
    guesses = torch.cat([PUBLIC, TRUE.flip(0)])  # The guesses of victim 2 are the sentences of the other order.
    truth = VictimTruth(lanes, true, torch.zeros(2, 2), torch.zeros(2, 2), lanes)
    rows = score_text(true, truth, TextJudge(VOCABULARY, PUBLIC, guesses))
    expected = text_scores(torch.stack([guesses[4:6], guesses[:2]]), true, VOCABULARY)
    assert rows["null_rouge_1"].tolist() == expected.rouge_1.flatten().tolist()
    assert rows["null_exact_match"].tolist() == [0.0] * 4
    flipped = VictimTruth(lanes.flip(0), true.flip(0), torch.zeros(2, 2), torch.zeros(2, 2), lanes)
    again = score_text(true, flipped, TextJudge(VOCABULARY, PUBLIC, torch.cat([PUBLIC, TRUE])))
    assert again["null_exact_match"].tolist() == [0.0] * 2 + [1.0] * 2
    assert rows["exact_match"].tolist() == [1.0] * 4 and again["exact_match"].tolist() == [0.0] * 4


def test_the_nearest_public_sentence_is_that_of_the_truth():
    """The nearest sentences have the words of the truths in another order; the guess is far from both."""
    lanes, far = torch.arange(2), PUBLIC[3:]
    truth = VictimTruth(lanes, TRUE[:, None], torch.zeros(2, 1), torch.zeros(2, 1), lanes)
    near = VOCABULARY.encode(("good a film", "was film not bad ."), LENGTH)
    judge = TextJudge(VOCABULARY, torch.cat([far, near.flip(0)]), far.expand(2, -1))
    rows = score_text(far.expand(2, 1, -1), truth, judge)
    close = text_scores(near[:, None], TRUE[:, None], VOCABULARY)
    assert rows["nearest_edit_distance"].tolist() == close.edit_distance.flatten().tolist()
    assert rows["nearest_rouge_l"].tolist() == close.rouge_l.flatten().tolist()
    assert (close.rouge_l < close.rouge_1).all()


def test_the_judge_has_the_guess_of_the_least_mean_distance_and_a_share_of_the_public_sentences(monkeypatch):
    """A success rate may choose another guess."""
    monkeypatch.setattr(scores_texts, "PUBLIC", 3)
    guesses = {"a": PUBLIC[:1], "b": PUBLIC[1:2]}
    judge = text_judge(dataset(), NullAttack(guesses, {}, {}, best_for_success="a", best_for_rmse="b"))
    assert torch.equal(judge.guess, PUBLIC[1:2]) and torch.equal(judge.public, PUBLIC[:3])
    assert judge.vocabulary is VOCABULARY
    assert text_judge(dataclasses.replace(dataset(), vocabulary=None), None) is None


def test_the_baseline_guess_knows_only_public_sentences():
    null = null_texts(PUBLIC, 3, ETA, VOCABULARY, torch.Generator().manual_seed(0))
    assert null.guesses["commonest tokens"].shape == (3, LENGTH)
    guess = null.guesses["single example"][0]
    assert any(torch.equal(guess, sentence) for sentence in PUBLIC)
    with pytest.raises(ValueError, match="at least two"):
        null_texts(PUBLIC[:1], 3, ETA, VOCABULARY, torch.Generator())


def test_an_attack_that_only_ranks_has_guesses_and_reasons():
    tap = tap_summary(rows_of(None), 1.0)
    assert tap.rouge_1 is None and tap.null_rouge_1 is not None and tap.identified == 1
    notes = text_notes("type-1", tap)
    assert notes["taps.type-1.rouge_1"] == "the attack ranks, it does not reconstruct"
    assert "taps.type-1.label_accuracy" not in notes
    assert "no label leaks" in target_notes("type-1", tap, "next_token")["taps.type-1.label_accuracy"]


def test_the_columns_of_texts():
    summary = Summary.of({"taps": {"type-1": tap_summary(rows_of(TRUE.clone()), 1.0).as_dict()}})
    headings = [column.heading for column in columns(summary)]
    assert {"ROUGE-1", "ROUGE-2", "ROUGE-L", "exact [95% CI]" if "exact [95% CI]" in headings else "exact"} <= set(
        headings
    )
    assert "RMSE" not in headings and "ROUGE-1" in [column.heading for column in core_columns(summary)]


def arrays(answer: torch.Tensor) -> dict[str, np.ndarray]:
    held = {"type-1.round0.truth": TRUE[:, None], "type-1.round0.reconstruction": answer[:, None]}
    found = {name: each.numpy() for name, each in held.items()}
    return {**found, WORDS: words_of(VOCABULARY, held).numpy()}


def test_tokens_on_the_page_are_coloured_by_the_original():
    answer = TRUE.clone()
    answer[0] = VOCABULARY.encode(("a film bad",), LENGTH)[0]
    answer[1] = torch.nan
    (gallery,) = galleries(arrays(answer), rows_of(answer))
    first = gallery.rows[1][0][0][0]
    assert gallery.texts and first.tokens == (("a", "right"), ("film", "moved"), ("bad", "wrong"))
    assert first.caption.startswith("edit distance 0.667") and not first.source
    assert gallery.rows[0][0][0][0].tokens == (("a", ""), ("good", ""), ("film", ""))
    assert gallery.rows[1][1][0][0].caption == "no answer"


def test_a_token_twice_in_the_reconstruction_is_in_the_original_once():
    answer = TRUE.clone()
    answer[0] = VOCABULARY.encode(("good good good",), LENGTH)[0]
    (gallery,) = galleries(arrays(answer), rows_of(answer))
    assert [kind for _, kind in gallery.rows[1][0][0][0].tokens] == ["wrong", "right", "wrong"]


def test_damaged_tokens_are_one_line():
    broken = {**arrays(TRUE.clone()), WORDS: np.frombuffer(json.dumps(["x"]).encode(), np.uint8)}
    with pytest.raises(InputError, match="tokens: cannot be read"):
        words_in(broken)
