"""Formats of texts: files of `text<TAB>label` lines, and the tokens of their sentences."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.data.cache import NO_CACHE, Cache, Warn
from leakbench.data.checks import AFile, Check, File, check_files, checked_bytes, identity, within
from leakbench.data.dataset import Dataset, check_tokens, everyone, public_texts
from leakbench.data.split import Split, SplitSeed, TestShare, split
from leakbench.data.vocabulary import Vocabulary, pieces

__all__ = ["TextTsv", "embedded_words", "text_dataset"]

Length = Annotated[
    Annotated[int, Field(ge=3)],
    Field(description="Number of tokens of an example. Shorter sentences are filled up, longer ones are cut."),
]


def embedded_words() -> tuple[str, ...]:
    """Return the 4,096 word pieces of the set `reviews`, which were learned from sentences that are not in it."""
    return tuple((files("leakbench.data") / "reviews" / "vocabulary.txt").read_text(encoding="utf-8").splitlines())


MISSING = ("", "nan")
"""Labels of a sentence without a class; programs write `nan` for a missing value."""

SHOWN = 5
"""Largest number of classes in a message."""


class _Row(NamedTuple):
    """A sentence, its class, and where it is."""

    text: str
    label: str
    place: str


@part("format.text_tsv")
class TextTsv:
    """Tab-separated lines with a sentence and its class in two of the columns, as SST-2, CoLA and Rotten Tomatoes publish them."""

    train: Annotated[AFile, Field(description="File of the training examples.")]
    test: Annotated[
        AFile | None,
        Field(description="File of the test examples; None to take `test_share` of the training file."),
    ] = None
    text: Annotated[int, Field(ge=0, description="Column of the sentence, counted from 0.")] = 0
    label: Annotated[int, Field(ge=0, description="Column of the class, counted from 0.")] = 1
    header: Annotated[bool, Field(description="Whether the first line has the names of the columns.")] = False
    quoted: Annotated[bool, Field(description='Whether fields may be in double quotes (`"`).')] = False
    vocabulary: Annotated[
        AFile | None,
        Field(description="File of word pieces, one a line, as BERT's `vocab.txt`; None for those of `reviews`."),
    ] = None
    lower: Annotated[bool, Field(description="Whether letters become lower case.")] = True
    length: Length = 32
    test_share: TestShare = 0.25
    seed: SplitSeed = 0

    @property
    def files(self) -> tuple[File, ...]:
        """All files of the set."""
        return tuple(f for f in (self.train, self.test, self.vocabulary) if f is not None)

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare every file with its checksum."""
        return check_files(folder, self.files)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a file that is missing, damaged or in another form, or a line that is wrong."""
        words, named = embedded_words(), "vocabulary"
        if self.vocabulary is not None:
            words = _lines(folder, self.vocabulary)
            named = f"vocabulary: {within(folder) / self.vocabulary.file}"
        rows = self._rows(folder, self.train)
        tested = [] if self.test is None else self._rows(folder, self.test)
        names = tuple(sorted({row.label for row in (*rows, *tested)}))
        if len(names) < 2:
            raise InputError(f"{within(folder) / self.train.file}: got {len(names)} class, expected two or more")
        everything = [*rows, *tested]
        targets = torch.tensor([names.index(row.label) for row in everything])
        if tested:
            parts = (torch.arange(len(rows)), torch.arange(len(rows), len(everything)))
        else:
            parts = split(targets, self.test_share, self.seed)
        vocabulary = Vocabulary.of_word_pieces(words, self.lower, named)
        texts, places = [row.text for row in everything], [row.place for row in everything]
        inputs = vocabulary.encode(texts, self.length)
        check_tokens(inputs, texts, places, vocabulary)
        _check_classes(everything, parts[0], cache.warn)
        # The files alone do not tell the columns, the length and the split that were read from them.
        read = b"".join(each.numpy().tobytes() for each in (inputs, targets, *parts))
        content = f"{identity(self.files)}, {vocabulary.content}, {hashlib.sha256(read).hexdigest()}"
        where = str(within(folder) / self.train.file)
        return text_dataset(inputs, targets, parts, names, vocabulary, texts, content, where, places)

    def _rows(self, folder: Path | None, file: File) -> list[_Row]:
        """Return the sentence and the class of each line of a file."""
        where = within(folder) / file.file
        rules: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        rows = []
        try:
            lines = io.StringIO(checked_bytes(folder, file).decode("utf-8-sig"), newline="")
            reader = csv.reader(lines, delimiter="\t", quoting=rules)
            number = 1
            columns = 0
            for line in reader:
                # A quoted field may have several lines; a sentence is named by the first of them.
                start, number = number, reader.line_num + 1
                if not line:
                    continue
                # A tab inside a sentence would make a part of it the label.
                columns = columns or len(line)
                if len(line) != columns:
                    raise InputError(
                        f"{where}: line {start} has {len(line)} columns, expected {columns} as in the first line; correct its tabs"
                    )
                if self.header and start == 1:
                    continue
                if len(line) <= max(self.text, self.label):
                    raise InputError(
                        f"{where}: line {start} has {len(line)} columns, expected at least {max(self.text, self.label) + 1}"
                    )
                rows.append(self._row(line, f"{where}: line {start}"))
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{where}: not tab-separated text in UTF-8: {error}") from None
        if not rows:
            raise InputError(f"{where}: holds no sentence")
        return rows

    def _row(self, line: list[str], place: str) -> _Row:
        """Return the sentence and the class of the columns of a line; raises InputError for a missing class."""
        label = line[self.label].strip()
        if label.lower() in MISSING:
            raise InputError(f"{place}: label: got {label!r}, expected a class; add it, or remove the line")
        return _Row(line[self.text].strip(), label, place)


def _check_classes(everything: Sequence[_Row], train: Tensor, warn: Warn) -> None:
    """Raise InputError for a class without training examples, and warn of classes with one.

    Args:
        everything: All sentences.
        train: Positions of the training sentences.
        warn: Called with the warning.
    """
    trained = [everything[i] for i in train.tolist()]
    counts = Counter(row.label for row in trained)
    for row in everything:
        if row.label not in counts:
            raise InputError(
                f"{row.place}: label: got {row.label!r}, which no training sentence has, expected one of"
                f" {', '.join(map(repr, sorted(counts)[:SHOWN]))}; correct it, or add training sentences of this class"
            )
    if single := [row for row in trained if counts[row.label] == 1]:
        more = "" if len(single) == 1 else f" (and {len(single) - 1} more classes)"
        warn(
            f"{single[0].place}: label: got one training sentence of the class {single[0].label!r}{more}, expected two or more;"
            " its label alone identifies it"
        )


def _lines(folder: Path | None, file: File) -> tuple[str, ...]:
    try:
        return pieces(checked_bytes(folder, file))
    except UnicodeDecodeError as error:
        raise InputError(f"{within(folder) / file.file}: not text in UTF-8: {error}") from None


def text_dataset(
    inputs: Tensor,
    targets: Tensor,
    parts: Split,
    class_names: tuple[str, ...],
    vocabulary: Vocabulary,
    texts: Sequence[str],
    content: str,
    where: str,
    places: Sequence[str] = (),
) -> Dataset:
    """Return the data set of sentences in two splits.

    Every training example may be a victim. Test sentences that are equal to one are not public.

    Args:
        inputs: (n, T), the tokens of the sentences.
        targets: (n,), their classes.
        parts: Positions of the training and of the test sentences.
        class_names: One name per class.
        vocabulary: The tokens.
        texts: The n sentences.
        content: Hash of the source.
        where: The source, for messages.
        places: Where the n sentences are, for messages; empty without files.

    Raises:
        InputError: If every test sentence is a training sentence too.
    """
    train, test = parts
    halves = (inputs[train], targets[train], inputs[test], targets[test])
    plain = Dataset("", "text", *halves, class_names, everyone(train), content)
    sentences = (tuple(texts[i] for i in train.tolist()), tuple(texts[i] for i in test.tolist()))
    lines = tuple(tuple(places[i] for i in part.tolist()) if places else () for part in parts)
    plain = dataclasses.replace(plain, sentences=sentences, places=(lines[0], lines[1]))
    public = public_texts(inputs[train], inputs[test], where)
    return dataclasses.replace(plain, vocabulary=vocabulary, tokens=vocabulary.size, public=public)
