"""A data set as everything else sees it: two splits of tensors in [0, 1], and which examples may be victims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leakbench.errors import InputError

__all__ = ["Dataset", "Feature"]


@dataclass(frozen=True)
class Feature:
    """One column of a table as a person would name it.

    Args:
        start: Its columns of the inputs.
        stop: Its columns of the inputs.
        values: What each column stands for if the feature is a one-hot category, else empty.
        low: For a number, what 0 and 1 stand for in the units of the source.
        high: For a number, what 0 and 1 stand for in the units of the source.
    """

    name: str
    start: int
    stop: int
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Dataset:
    """Real data, ready to be partitioned.

    train_inputs (n, *s) and test_inputs (m, *s): float32 in [0, 1]; pictures are (C, H, W), tables (F,). train_targets (n,) and
    test_targets (m,): int64 in [0, classes).

    Args:
        class_names: One a class.
        victims: (v,) int64, the training examples that an attack may be scored on, and on which the threshold of success is
            measured.
        content: sha256 that identifies the source's bytes.
        features: For tables, which columns make up which feature.
        public: (p,) int64, the test examples that an attacker may know; None for all of them.
    """

    name: str
    kind: Literal["image", "tabular"]
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    class_names: tuple[str, ...]
    victims: Tensor
    content: str
    features: tuple[Feature, ...] = ()
    public: Tensor | None = None

    @property
    def public_inputs(self) -> Tensor:
        """(p, *s), what an attacker may know beside what leaks; nobody in it is a victim."""
        return self.test_inputs if self.public is None else self.test_inputs[self.public]

    @property
    def public_targets(self) -> Tensor:
        """(p,), their labels."""
        return self.test_targets if self.public is None else self.test_targets[self.public]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, *s."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def has_examples(self) -> bool:
        """Whether the inputs have values; False for a data set of which only the sizes are known."""
        return not self.train_inputs.is_meta

    def check(self, name: str) -> None:
        """Raise InputError for data that cannot be what they claim to be, however they were read."""
        splits = (
            _Split("training", self.train_inputs, self.train_targets),
            _Split("test", self.test_inputs, self.test_targets),
        )
        for split in splits:
            if problem := _problem(split, self.shape, self.classes):
                raise InputError(f"dataset {name!r}: {problem}")


@dataclass(frozen=True)
class _Split:
    name: str
    inputs: Tensor
    targets: Tensor


def _problem(split: _Split, shape: tuple[int, ...], classes: int) -> str:
    inputs, targets = split.inputs, split.targets
    if not len(inputs):
        return f"its {split.name} split is empty"
    if len(inputs) != len(targets):
        return f"its {split.name} split holds {len(inputs)} examples and {len(targets)} labels"
    if tuple(inputs.shape[1:]) != shape:
        return f"its {split.name} split holds examples of shape {tuple(inputs.shape[1:])}, expected {shape}"
    if not bool(((inputs >= 0) & (inputs <= 1)).all()):
        return f"its {split.name} split holds values that are not in [0, 1]"
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        return f"its {split.name} split holds label {int(targets.max())}, expected 0 to {classes - 1}"
    return ""


def everyone(targets: Tensor) -> Tensor:
    """Return the indices of all of `targets` (n,): where any training example may be a victim."""
    return torch.arange(len(targets))
