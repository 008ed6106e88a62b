"""Scores of sentences, against a plain edit distance, known sentences and properties."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.tokenizers import DefaultTokenizer

from leakbench.core.rng import generator
from leakbench.data.find import load_dataset
from leakbench.data.texts import embedded_words
from leakbench.data.vocabulary import Vocabulary
from leakbench.measure.closeness import _threshold, closeness_of, eta_of
from leakbench.measure.metrics_texts import (
    Words,
    edit_distance,
    match_texts,
    pairwise_edit_distance,
    text_scores,
    without_special,
)

WORDS = Vocabulary.of_word_pieces(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "was", "not", "##s", "."]
)
LENGTH = 8


def encoded(*texts):
    return WORDS.encode(texts, LENGTH)


def plain_distance(a, b):
    """The edit distance by the textbook's recursion, row by row."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        next_row = [i]
        for j, right in enumerate(b, 1):
            next_row.append(min(row[j] + 1, next_row[-1] + 1, row[j - 1] + (left != right)))
        row = next_row
    return row[-1] / max(len(a), len(b)) if a or b else 1.0


sentences = st.lists(st.integers(5, 12), max_size=LENGTH - 2)


def as_tokens(rows):
    """[CLS] tokens [SEP], filled up with [PAD]."""
    out = torch.zeros(len(rows), LENGTH)
    for line, row in zip(out, rows, strict=True):
        line[: len(row) + 2] = torch.tensor([2.0, *map(float, row), 3.0])
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=5))
def test_the_edit_distance_is_the_textbooks(pairs):
    found = edit_distance(as_tokens([a for a, _ in pairs]), as_tokens([b for _, b in pairs]), WORDS)
    assert found.tolist() == pytest.approx([plain_distance(a, b) for a, b in pairs])


def test_distances_of_all_pairs_are_those_of_each_pair():
    some, others = encoded("a good film", "not bad ."), encoded("a bad film", "good", "a good film")
    whole = pairwise_edit_distance(some, others, WORDS)
    each = [[float(edit_distance(a[None], b[None], WORDS)[0]) for b in others] for a in some]
    assert whole.tolist() == each and whole[0, 2] == 0


def test_special_tokens_do_not_count():
    tokens, many = without_special(encoded("a film"), WORDS)
    assert tokens[0, :2].tolist() == [5, 8] and int(many[0]) == 2
    assert float(edit_distance(encoded("a film"), torch.tensor([[5.0, 8, 0, 0, 0, 0, 0, 0]]), WORDS)[0]) == 0


def test_scores_of_known_sentences():
    """Of 3 tokens, 2 are at their place; 2 of 3 words are common, but only one of two pairs of neighbours."""
    truth, answer = encoded("a good film")[None], encoded("a good was")[None]
    scores = text_scores(answer, truth, WORDS)
    assert float(scores.edit_distance) == pytest.approx(1 / 3)
    assert float(scores.rouge_1) == pytest.approx(2 / 3) and float(scores.rouge_2) == pytest.approx(1 / 2)
    assert float(scores.token_accuracy) == pytest.approx(2 / 3) and float(scores.exact_match) == 0


def test_order_counts_for_neighbours_and_not_for_words():
    scores = text_scores(encoded("film good a")[None], encoded("a good film")[None], WORDS)
    assert float(scores.rouge_1) == 1 and float(scores.rouge_2) == 0
    assert float(scores.token_recall) == float(scores.token_precision) == float(scores.length_right) == 1
    assert float(scores.token_accuracy) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A good_film, wasn't it? 2-3 times", ["a", "good", "film", "wasn", "t", "it", "2", "3", "times"]),
        ("Béart était là", ["béart", "était", "là"]),
        ("Хороший фильм", ["хороший", "фильм"]),
        ("हिन्दी फ़िल्म", ["हिन्दी", "फ़िल्म"]),
        ("好电影 was good", ["好", "电", "影", "was", "good"]),
        ("ที่ดี", ["ที่", "ดี"]),
        ("½ ... !", []),
    ],
)
def test_rouge_reads_the_words_of_any_script(text, words):
    assert Words().tokenize(text) == words


def test_rouge_of_sentences_of_reviews_is_that_of_the_librarys_own_words():
    texts = load_dataset("reviews")[2].sentences[0]
    plain = [text for text in texts if text.isascii()]
    assert len(plain) > 900
    assert [Words().tokenize(text) for text in plain] == [DefaultTokenizer().tokenize(text) for text in plain]


def test_a_sentence_in_another_script_has_scores():
    words = Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "хорошо", "плохо", "фильм"])
    truth, answer = (words.encode([text], 5)[None] for text in ("хорошо фильм", "плохо фильм"))
    assert float(text_scores(truth, truth, words).rouge_2) == 1
    assert float(text_scores(answer, truth, words).rouge_1) == pytest.approx(1 / 2)


def test_a_repeated_token_counts_as_often_as_it_occurs():
    scores = text_scores(encoded("good good good")[None], encoded("good film")[None], WORDS)
    assert float(scores.token_recall) == 1 / 2 and float(scores.token_precision) == pytest.approx(1 / 3)
    assert float(scores.length_right) == 0


def test_equal_sentences_have_the_best_scores():
    truth = encoded("a film was not bad .", "good films")[None]
    scores = text_scores(truth.clone(), truth, WORDS)
    for name, each in vars(scores).items():
        assert (each == (0 if name == "edit_distance" else 1)).all(), name


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, -1.0, -1e30])
def test_a_sentence_with_a_token_that_is_no_number_counts_as_missing(wrong):
    truth = encoded("a good film", "was good")[None]
    answer = truth.clone()
    answer[0, 0, 2] = wrong
    scores = text_scores(answer, truth, WORDS)
    assert all(each[0].isnan().tolist() == [True, False] for each in vars(scores).values())
    assert edit_distance(answer[0], truth[0], WORDS).isnan().tolist() == [True, False]
    assert WORDS.decode(answer[0]) == ["a film", "was good"]


def test_a_number_beyond_the_vocabulary_is_a_wrong_token():
    truth = encoded("a good film")[None]
    for beyond in (len(WORDS.tokenizer.get_vocab()), 1e30):
        answer = truth.clone()
        answer[0, 0, 2] = beyond
        scores = text_scores(answer, truth, WORDS)
        assert float(scores.token_recall) == pytest.approx(2 / 3) and float(scores.exact_match) == 0
    assert WORDS.names([5, -1, 99, 2**40]) == ["a", "", "", ""]


def test_a_special_token_at_a_wrong_place_does_not_change_the_length():
    truth = as_tokens([[5, 6, 7]])[None]
    answer = truth.clone()
    answer[0, 0, 2] = 3.0
    scores = text_scores(answer, truth, WORDS)
    assert float(scores.length_right) == 1 and float(scores.token_recall) == pytest.approx(2 / 3)


def test_an_original_without_tokens_is_never_a_success():
    truth = torch.stack([as_tokens([[]])[0], torch.zeros(LENGTH)])[None]
    answer = torch.stack([as_tokens([[]])[0], as_tokens([[5]])[0]])[None]
    scores = text_scores(answer, truth, WORDS)
    for name, each in vars(scores).items():
        assert (each == (1 if name == "edit_distance" else 0)).all(), name
    assert pairwise_edit_distance(answer[0], truth[0], WORDS).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_no_answer_has_no_score_and_goes_to_no_truth_that_another_fits():
    truth = encoded("a film", "was good")[None]
    answer = torch.stack([torch.full((LENGTH,), torch.nan), encoded("a film")[0]])[None]
    order = match_texts(answer, truth, WORDS)
    assert order.tolist() == [[1, 0]]
    scores = text_scores(answer.gather(1, order[..., None].expand_as(answer)), truth, WORDS)
    assert scores.exact_match[0, 0] == 1 and scores.rouge_1[0, 1].isnan() and scores.edit_distance[0, 1].isnan()


def test_a_batch_is_matched_the_right_way_round():
    """A cycle of three is not its own inverse."""
    truth = encoded("a film", "was good", "not bad .")[None]
    cycle = torch.tensor([1, 2, 0])
    order = match_texts(truth[:, cycle], truth, WORDS)
    assert torch.equal(truth[:, cycle][0, order[0]], truth[0])


@pytest.fixture(scope="module")
def reviews():
    from leakbench.data.find import load_dataset  # noqa: PLC0415

    return load_dataset("reviews")[2]


def test_two_different_sentences_are_within_eta_at_most_once_in_a_thousand(reviews):
    """The threshold of a sample of sentences holds for other pairs: 1 in 1,000, here within a factor of 3."""
    eta = eta_of(reviews, 0, None)
    assert 0.5 < eta < 1
    apart = closeness_of(reviews).pairwise(reviews.train_inputs[:300], reviews.test_inputs[:300])
    assert 0 < float((apart[apart > 0] <= eta).double().mean()) < 0.003


def test_a_threshold_of_the_user_is_taken_as_it_is(reviews):
    assert eta_of(reviews, 0, 0.25) == 0.25


def test_the_vocabulary_of_reviews_has_no_token_for_padding_but_the_first():
    assert embedded_words()[0] == "[PAD]" and len(set(embedded_words())) == 4096


def test_another_form_of_a_word_is_another_word():
    """Rouge without stemming: `films` is not `film`."""
    scores = text_scores(encoded("good film")[None], encoded("good films")[None], WORDS)
    assert float(scores.rouge_1) == pytest.approx(0.5) and float(scores.rouge_2) == 0


def test_a_threshold_is_below_the_distance_at_which_more_pairs_than_allowed_begin():
    """Of 28 pairs the one of sentences that differ in special tokens alone has distance 0; all others have 1/2 or 1."""
    rows = as_tokens([[5, n] for n in (6, 7, 8, 9, 10, 11)])
    same = rows[:1].clone()
    same[0, 0] = 4.0  # [MASK] for [CLS].
    apart = lambda a, b: pairwise_edit_distance(a, b, WORDS)  # noqa: E731
    assert _threshold(torch.cat([rows, same]), apart) == 0.25


@pytest.mark.parametrize("name", ["reviews", "digits"])
def test_only_possible_victims_count_for_the_threshold(name):
    """All other examples differ a little from the first one."""
    data = load_dataset(name)[2]
    victims = torch.arange(100, 400)
    inputs = data.train_inputs[:1].expand_as(data.train_inputs).clone()
    step = 1e-4 if name == "digits" else 1
    inputs[:, ..., -1] += step * (5 + torch.arange(len(inputs))).reshape(-1, *[1] * (inputs.dim() - 2))
    inputs[victims] = data.train_inputs[victims]
    some = dataclasses.replace(data, train_inputs=inputs, victims=victims)
    alone = closeness_of(data).threshold(data.train_inputs[victims], torch.arange(300), generator(0, "eta"))
    assert eta_of(some, 0, None) == pytest.approx(alone, rel=1e-9)
    assert closeness_of(data).threshold(inputs, torch.arange(len(inputs)), generator(0, "eta")) < alone / 2
