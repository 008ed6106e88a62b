"""A loaded data set: two splits of tensors, and the examples that may be victims."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.task import CLASSIFICATION, Heads
from leakbench.data.vocabulary import Vocabulary

__all__ = ["Dataset", "Feature", "Targets", "check_tokens", "everyone", "people_apart", "public_texts"]


@dataclass(frozen=True)
class Feature:
    """One number or category of a table.

    Args:
        start: First column of the inputs.
        stop: Column after the last one.
        values: The value of each column of a one-hot category; empty for a number.
        low: The number at 0, in the units of the source.
        high: The number at 1, in the units of the source.
    """

    name: str
    start: int
    stop: int
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Targets:
    """What networks are trained to answer instead of the class of an example.

    Args:
        train: (n, k), float32, the targets of the training examples, see `leakbench.core.task.Heads`.
        test: (m, k), those of the test examples.
        heads: Their parts.
    """

    train: Tensor
    test: Tensor
    heads: Heads


@dataclass(frozen=True)
class Dataset:
    """Real data, ready to be partitioned.

    The tokens of a text are whole numbers in float32, which is exact up to 2^24, so that NaN can mark a missing token.

    Args:
        train_inputs: (n, *s), float32; *s is (C, H, W) for pictures and (F,) for tables, both in [0, 1], and (T,) for texts, whose
            values are numbers of tokens.
        train_targets: (n,), int64 in [0, classes); for a multi-label task (n, classes), float32, each 0 or 1.
        test_inputs: (m, *s), float32, likewise.
        test_targets: (m,) or (m, classes), likewise.
        class_names: One name per class.
        victims: (v,) int64, the training examples that may be victims, and that give the threshold of success.
        content: sha256 that identifies the source's bytes.
        features: The features of a table; empty otherwise.
        public: (p,) int64, the test examples that an attacker may know; None for all of them.
        vocabulary: The tokens of texts; None otherwise, and for a data set with known sizes only.
        tokens: Number of tokens of the vocabulary; 0 for pictures and tables.
        sentences: The texts of the two splits, (train, test), from which the tokens are; empty for pictures and tables.
        places: Where the texts of the two splits are, such as `train.tsv: line 3`; empty without files.
        private_preparation: What was computed from the private training data to prepare the inputs, each the start of a sentence.
        groups: (n,), int64, the person that each training example is from, for clients of one person each; None if unknown.
        of_tokens: Whether networks answer with the next token instead of a class; all texts then have one class.
        targets: What networks answer instead of the class; None for the class. Partitions still use the classes.
        resized: How the pictures were resized, for readers; empty at their own size.
    """

    name: str
    kind: Literal["image", "tabular", "text"]
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    class_names: tuple[str, ...]
    victims: Tensor
    content: str
    features: tuple[Feature, ...] = ()
    public: Tensor | None = None
    vocabulary: Vocabulary | None = None
    tokens: int = 0
    sentences: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    places: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    of_tokens: bool = False
    targets: Targets | None = None
    resized: str = ""
    groups: Tensor | None = None
    private_preparation: tuple[str, ...] = ()

    @property
    def public_inputs(self) -> Tensor:
        """(p, *s), the public examples of an attacker, without victims."""
        return self.test_inputs if self.public is None else self.test_inputs[self.public]

    @property
    def public_targets(self) -> Tensor:
        """(p,), the labels of the public examples."""
        return self.test_targets if self.public is None else self.test_targets[self.public]

    @property
    def public_answers(self) -> Tensor | None:
        """(p, k), the targets of the public examples; None if networks answer with the class."""
        if self.targets is None:
            return None
        return self.targets.test if self.public is None else self.targets.test[self.public]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def outputs(self) -> int:
        """Number k of numbers of a target: the classes, or those of `targets`."""
        return self.classes if self.targets is None else self.targets.heads.size

    @property
    def heads(self) -> Heads:
        """The task of networks on this data, for texts without that of the next tokens."""
        return CLASSIFICATION if self.targets is None else self.targets.heads

    def answers_of(self, indices: Tensor) -> Tensor:
        """Return the targets (..., k) of training examples (...), one-hot for classes."""
        if self.targets is not None:
            return self.targets.train[indices]
        return torch.nn.functional.one_hot(self.train_targets[indices], self.classes).float()

    def to(self, device: torch.device) -> Dataset:
        """Return the data set with its examples on a device."""
        there = ("train_inputs", "train_targets", "test_inputs", "test_targets")
        moved = {name: getattr(self, name).to(device) for name in there}
        targets = self.targets
        if targets is not None:
            targets = dataclasses.replace(targets, train=targets.train.to(device), test=targets.test.to(device))
        return dataclasses.replace(self, **moved, targets=targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, *s."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def layout(self) -> tuple[int, ...]:
        """Shape of one input as networks are built for it: *s, and (T, tokens) for a text of T tokens."""
        return (*self.shape, self.tokens) if self.tokens else self.shape

    @property
    def padding(self) -> int:
        """Number of the token that fills up a text; 0 for pictures and tables, and for known sizes only."""
        return 0 if self.vocabulary is None else self.vocabulary.padding

    @property
    def has_examples(self) -> bool:
        """Whether the inputs have values; false for a data set with known sizes only."""
        return not self.train_inputs.is_meta

    def tokenised(self, vocabulary: Vocabulary) -> Dataset:
        """Return the texts in the tokens of another vocabulary, at the same length; the same object for the same vocabulary.

        A data set with known sizes only gets the vocabulary and its number of tokens.

        Raises:
            InputError: For a sentence without a token of the vocabulary, or if no public sentence is left.
        """
        if self.vocabulary is not None and self.vocabulary.content == vocabulary.content:
            return self
        changed = dataclasses.replace(self, vocabulary=vocabulary, tokens=vocabulary.size)
        if not self.has_examples:
            return changed
        train, test = (vocabulary.encode(texts, self.shape[0]) for texts in self.sentences)
        for split, texts, places in zip((train, test), self.sentences, self.places, strict=True):
            check_tokens(split, texts, places, vocabulary)
        public = public_texts(train, test, f"dataset {self.name!r}, in the tokens of the network")
        content = f"{self.content}, {vocabulary.content}"
        if not _same(public, self.public):
            # Earlier releases kept the public sentences of the former tokens under an identity without this note.
            content += ", public by these tokens"
        return dataclasses.replace(changed, train_inputs=train, test_inputs=test, content=content, public=public)

    def for_next_tokens(self) -> Dataset:
        """Return the texts without their classes, for networks that answer with the next token.

        Raises:
            InputError: For pictures and tables.
        """
        if self.kind != "text":
            raise InputError(f"loss: next_token takes texts, {self.name!r} has none; try --dataset reviews")
        train, test = (torch.zeros_like(targets) for targets in (self.train_targets, self.test_targets))
        return dataclasses.replace(self, train_targets=train, test_targets=test, class_names=("text",), of_tokens=True)

    @property
    def answers(self) -> Tensor:
        """What a network is asked on the test examples: their classes (m,), or the tokens after the first ones of all texts."""
        if not self.of_tokens:
            return self.test_targets
        later = self.test_inputs[:, 1:]
        return later[later != self.padding].long()

    def check(self, name: str) -> None:
        """Raise InputError for an empty split, or values or labels outside their range."""
        splits = (
            _Split("training", self.train_inputs, self.train_targets),
            _Split("test", self.test_inputs, self.test_targets),
        )
        for split in splits:
            if problem := _problem(split, self.shape, self.classes, self.tokens):
                raise InputError(f"dataset {name!r}: {problem}")


def public_texts(train: Tensor, test: Tensor, where: str) -> Tensor | None:
    """Return the test sentences that are not training sentences too, by their tokens: (p,) int64, None for all of them.

    A sentence that occurs twice may be in both splits, and an attacker must not know a victim.

    Args:
        train: (n, T), the tokens of the training sentences.
        test: (m, T), those of the test sentences.
        where: The source, for the message.

    Raises:
        InputError: If no sentence is left.
    """
    victims = {tuple(row) for row in train.tolist()}
    apart = [i for i, row in enumerate(test.tolist()) if tuple(row) not in victims]
    if not apart:
        raise InputError(
            f"{where}: every test sentence is a training sentence too, expected others, which an attacker may know; add some"
        )
    return None if len(apart) == len(test) else torch.tensor(apart, dtype=torch.int64)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def check_tokens(tokens: Tensor, texts: Sequence[str], places: Sequence[str], vocabulary: Vocabulary) -> None:
    """Raise InputError, which names the place, for the first sentence without a token.

    Args:
        tokens: (n, T), the tokens of the sentences.
        texts: The n sentences.
        places: Where they are; empty for their numbers.
        vocabulary: The tokens.
    """
    for i in vocabulary.is_empty(tokens).nonzero()[:, 0].tolist():
        place = places[i] if places else f"sentence {i + 1}"
        raise InputError(
            f"{place}: text: got {texts[i]!r}, which has no token but special ones such as padding; expected at least one"
            " other token; remove the line, or correct its text"
        )


@dataclass(frozen=True)
class _Split:
    name: str
    inputs: Tensor
    targets: Tensor


def _problem(split: _Split, shape: tuple[int, ...], classes: int, tokens: int) -> str:
    inputs, targets = split.inputs, split.targets
    if not len(inputs):
        return f"its {split.name} split is empty"
    if len(inputs) != len(targets):
        return f"its {split.name} split holds {len(inputs)} examples and {len(targets)} labels"
    if tuple(inputs.shape[1:]) != shape:
        return f"its {split.name} split holds examples of shape {tuple(inputs.shape[1:])}, expected {shape}"
    if not _allowed(inputs, tokens):
        expected = f"numbers of {tokens} tokens" if tokens else "in [0, 1]"
        return f"its {split.name} split holds values that are not {expected}"
    return _label_problem(split.name, targets, classes)


def _label_problem(name: str, targets: Tensor, classes: int) -> str:
    if targets.dim() == 2:
        if targets.shape[1] != classes:
            return f"its {name} split has {targets.shape[1]} labels for each example, expected {classes}"
        binary = bool(((targets == 0) | (targets == 1)).all())
        return "" if binary else f"its {name} split has labels that are not 0 or 1"
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        return f"its {name} split holds label {int(targets.max())}, expected 0 to {classes - 1}"
    return ""


def _allowed(inputs: Tensor, tokens: int) -> bool:
    if tokens:
        return bool(((inputs >= 0) & (inputs < tokens) & (inputs == inputs.round())).all())
    if not inputs.numel():
        return True
    least, largest = inputs.aminmax()  # NaN in both if there is one.
    return bool(least >= 0) and bool(largest <= 1)


def everyone(targets: Tensor) -> Tensor:
    """Return the indices (n,) of all training examples, for a set whose examples may all be victims."""
    return torch.arange(len(targets))


def people_apart(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return (the training examples that may be victims, the test examples that are public), of different people.

    If no person is in both splits, these are all training examples and all test examples. Otherwise every other person, by
    number, may be a victim, and only test examples of the other people are public: more examples of a victim would give the
    attacker much information.

    Args:
        train: (n,) int64, the person of each training example.
        test: (m,) int64, that of each test example.

    Returns:
        (v,) int64 and (p,) int64; None instead of the second one for all test examples.
    """
    if not bool(torch.isin(test, train).any()):
        return everyone(train), None
    people = torch.unique(torch.cat([train, test]))
    attacked = people[::2]
    return torch.isin(train, attacked).nonzero()[:, 0], (~torch.isin(test, attacked)).nonzero()[:, 0]
