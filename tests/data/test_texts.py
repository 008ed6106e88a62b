"""Tab-separated texts: columns, splits, hashes of what was read, and one line for each mistake."""

import dataclasses
import hashlib
import re

import pytest

from leakbench.core.errors import InputError
from leakbench.data.cache import NO_CACHE
from leakbench.data.checks import File
from leakbench.data.texts import TextTsv
from leakbench.data.vocabulary import Vocabulary

LINES = ("a good film\tpos", "a bad film\tneg", "not good\tneg", "very good\tpos")


def text_of(folder, lines=LINES, name="t.tsv"):
    content = "".join(f"{line}\n" for line in lines).encode()
    (folder / name).write_bytes(content)
    return File(name, hashlib.sha256(content).hexdigest())


def test_sentences_classes_and_split(tmp_path):
    data = TextTsv(text_of(tmp_path), length=8, test_share=0.5)(tmp_path)
    assert data.class_names == ("neg", "pos") and data.layout == (8, 4096)
    assert sorted(data.sentences[0] + data.sentences[1]) == sorted(line.split("\t")[0] for line in LINES)
    assert data.vocabulary.decode(data.train_inputs) == list(data.sentences[0])


def test_the_content_is_what_was_read_and_not_the_file_alone(tmp_path):
    file = text_of(tmp_path)
    contents = [TextTsv(file, length=8, test_share=0.5)(tmp_path), TextTsv(file, length=4, test_share=0.5)(tmp_path)]
    contents += [TextTsv(file, length=8, test_share=0.25)(tmp_path)]
    assert len({data.content for data in contents}) == 3


def test_a_test_sentence_that_is_a_training_sentence_is_not_public(tmp_path):
    train, test = text_of(tmp_path), text_of(tmp_path, (LINES[0], "a film was bad\tneg"), "test.tsv")
    data = TextTsv(train, test, length=8)(tmp_path)
    assert data.vocabulary.decode(data.public_inputs) == ["a film was bad"]
    again = text_of(tmp_path, (LINES[0], LINES[1]), "again.tsv")
    with pytest.raises(InputError, match="every test sentence is a training sentence too"):
        TextTsv(train, again, length=8)(tmp_path)


def test_a_byte_order_mark_is_not_part_of_the_first_sentence(tmp_path):
    data = TextTsv(text_of(tmp_path, ("\ufeffa good film\tpos", *LINES[1:])), length=8, test_share=0.5)(tmp_path)
    assert "a good film" in data.sentences[0] + data.sentences[1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("a good film",), "line 1 has 1 columns, expected at least 2"),
        (("\tpos", "b\tneg"), r"t\.tsv: line 1: text: got '', which has no token but special ones"),
        (("a\tpos", "", "\u200b\tneg"), r"t\.tsv: line 3: text: got '\\u200b'"),
        (("a\tpos", "b \ufeff\tneg", "\ufeff\tneg"), r"t\.tsv: line 3: text: got '\\ufeff'"),
        (("a\tpos", "[SEP]\tneg"), r"t\.tsv: line 2: text: got '\[SEP\]'"),
        (("a\tpos", "[PAD] [PAD]\tneg"), r"t\.tsv: line 2: text: got '\[PAD\] \[PAD\]'"),
        (("a\tpos", "b\t"), "line 2: label: got '', expected a class"),
        (("a\tpos", "b\tnan", "c\tneg"), "line 2: label: got 'nan', expected a class"),
        (("a\tpos", "NaN\tNaN", "c\tneg"), "line 2: label: got 'NaN', expected a class"),
        (("a\tpos", "b\tc\tneg"), "line 2 has 3 columns, expected 2 as in the first line"),
        (("b\tc\tneg", "a\tpos"), "line 2 has 2 columns, expected 3 as in the first line"),
        (("a\tpos", "b\tpos"), "got 1 class, expected two or more"),
        ((), "holds no sentence"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        TextTsv(text_of(tmp_path, lines), length=8, test_share=0.5)(tmp_path)


def test_more_columns_in_every_line_are_those_of_the_format(tmp_path):
    lines = [f"gj04\t1\t*\t{line}" for line in LINES]
    data = TextTsv(text_of(tmp_path, lines), text=3, label=4, length=8, test_share=0.5)(tmp_path)
    assert data.class_names == ("neg", "pos")
    head = text_of(tmp_path, ("sentence\tlabel", *LINES, "a\tb\tpos"), "head.tsv")
    with pytest.raises(InputError, match=r"head\.tsv: line 6 has 3 columns, expected 2 as in the first line"):
        TextTsv(head, header=True, length=8)(tmp_path)


def test_a_class_of_the_test_file_alone_is_refused(tmp_path):
    train, test = text_of(tmp_path), text_of(tmp_path, ("so so\tneg", "so\tso so"), "test.tsv")
    message = r"test\.tsv: line 2: label: got 'so so', which no training sentence has, expected one of 'neg', 'pos'"
    with pytest.raises(InputError, match=message):
        TextTsv(train, test, length=8)(tmp_path)


@pytest.mark.parametrize(("extra", "more"), [((), ""), (("so what\twhat",), r" \(and 1 more classes\)")])
def test_a_class_with_one_training_sentence_is_reported(extra, more, tmp_path):
    train = text_of(tmp_path, (*LINES, "so so\tso", *extra))
    test = text_of(tmp_path, ("it was so\tso", "it was\tpos"), "test.tsv")
    lines = []
    TextTsv(train, test, length=8)(tmp_path, dataclasses.replace(NO_CACHE, warn=lines.append))
    message = rf"t\.tsv: line 5: label: got one training sentence of the class 'so'{more}, expected two or more"
    assert len(lines) == 1 and re.search(message, lines[0])
    TextTsv(text_of(tmp_path), length=8)(tmp_path, dataclasses.replace(NO_CACHE, warn=lines.append))


def test_a_sentence_without_a_token_is_named_by_its_own_file_and_line(tmp_path):
    train, test = text_of(tmp_path), text_of(tmp_path, ("so so\tpos", "\tneg"), "test.tsv")
    with pytest.raises(InputError, match=r"test\.tsv: line 2: text: got ''"):
        TextTsv(train, test, length=8)(tmp_path)


def test_the_line_of_a_sentence_counts_the_lines_of_quoted_fields(tmp_path):
    file = text_of(tmp_path, ("text\tlabel", '"a good\nfilm"\tpos', "[SEP]\tneg"))
    with pytest.raises(InputError, match=r"t\.tsv: line 4: text"):
        TextTsv(file, header=True, quoted=True, length=8, test_share=0.5)(tmp_path)


def test_a_sentence_without_a_token_of_another_vocabulary_is_named_by_its_line(tmp_path):
    data = TextTsv(text_of(tmp_path, ("[x]\tpos", *LINES)), length=8, test_share=0.5)(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "film", "good"]
    tokenizer = Vocabulary.of_word_pieces(words).tokenizer
    tokenizer.add_special_tokens(["[x]"])
    with pytest.raises(InputError, match=r"t\.tsv: line 1: text: got '\[x\]', which has no token but special ones"):
        data.tokenised(Vocabulary(tokenizer.to_str()))


def test_public_sentences_are_chosen_again_by_other_tokens(tmp_path):
    """Without upper case, and with two words alone, more test sentences equal a training sentence."""
    train = text_of(tmp_path, ("a Good film\tpos", "a Bad film\tneg"))
    test = text_of(
        tmp_path, ("a good film\tpos", "a weird film\tneg", "film a film\tneg", "a Good film\tpos"), "test.tsv"
    )
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film", "Good", "Bad", "good", "weird"]
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words))
    own = File("words.txt", hashlib.sha256((tmp_path / "words.txt").read_bytes()).hexdigest())
    data = TextTsv(train, test, vocabulary=own, lower=False, length=8)(tmp_path)
    assert data.public.tolist() == [0, 1, 2]
    fewer = Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film", "good"])
    assert data.tokenised(fewer).public.tolist() == [2]
    cut = dataclasses.replace(data, train_inputs=data.train_inputs[:, :3], test_inputs=data.test_inputs[:, :3])
    with pytest.raises(
        InputError, match="in the tokens of the network: every test sentence is a training sentence too"
    ):
        cut.tokenised(Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    assert data.tokenised(fewer).content.endswith(", public by these tokens")
    same = Vocabulary.of_word_pieces([*words, "new"], lower=False)
    assert data.tokenised(same).content == f"{data.content}, {same.content}"


def test_a_vocabulary_needs_its_special_tokens_once():
    with pytest.raises(InputError, match=r"lacks \[SEP\]"):
        Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "a"])
    with pytest.raises(InputError, match=r"^vocabulary: has the word piece 'a' in lines 5 and 7, expected each once"):
        Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "a"])


@pytest.mark.parametrize(
    ("content", "says"),
    [("", r"lacks \[PAD\], \[UNK\]"), ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\na\n", "'a' in lines 5 and 6")],
)
def test_a_wrong_vocabulary_is_named_by_its_file(tmp_path, content, says):
    path = tmp_path / "words.txt"
    path.write_text(content)
    own = File("words.txt", hashlib.sha256(content.encode()).hexdigest())
    message = f"^vocabulary: {re.escape(str(path))}: .*{says}"
    with pytest.raises(InputError, match=message):
        Vocabulary.of_file(path)
    with pytest.raises(InputError, match=message):
        TextTsv(text_of(tmp_path), vocabulary=own, length=8, test_share=0.5)(tmp_path)


def test_the_first_token_that_differs_is_named():
    one = Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"])
    other = Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "c", "d"])
    more = Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "d"], lower=False)
    assert one.first_other(one) is None
    assert one.first_other(other) == (5, "b", "c") and other.first_other(one) == (5, "c", "b")
    assert one.first_other(more) == (6, "", "d") and more.first_other(one) == (6, "d", "")


def test_a_long_sentence_keeps_its_end():
    words = Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"])
    assert words.encode(["a b a b"], 4).tolist() == [[2.0, 4.0, 5.0, 3.0]]
    assert words.encode(["a"], 4).tolist() == [[2.0, 4.0, 3.0, 0.0]]


def test_an_unknown_word_is_part_of_a_sentence():
    words = Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"])
    assert words.special == {0, 2, 3}
