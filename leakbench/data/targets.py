"""Slot `targets` of a data set: what networks are trained to answer instead of the class."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError, nearest
from leakbench.core.part import Fraction, Text, part
from leakbench.core.recipe import Slot
from leakbench.core.task import Head, Heads
from leakbench.data.dataset import Dataset, Feature, Targets

__all__ = ["TARGETS", "Columns", "Foreground", "LabelsOfClasses", "Retarget", "with_class_head", "with_label_head"]

MULTI_LABEL, REGRESSION, SEGMENTATION, SEVERAL = "multi_label", "regression", "segmentation", "several heads"
"""Names of the tasks in reports."""


@runtime_checkable
class Retarget(Protocol):
    """Gives a data set other targets than classes."""

    def __call__(self, data: Dataset) -> Dataset:
        """Return the data set with targets; raises InputError for data that do not have them."""


@part("targets.labels_of_classes")
class LabelsOfClasses:
    """Labels that do not exclude each other, as properties of the classes, such as an animal that flies.

    A network has one output for each label, with the binary cross-entropy.
    """

    labels: Annotated[
        dict[Text, tuple[Text, ...]],
        Field(min_length=1, description="The labels, each with the names of the classes that have it."),
    ]

    def __call__(self, data: Dataset) -> Dataset:
        """Return the data set with targets (n, labels) of zeros and ones; raises InputError for an unknown class."""
        table = torch.zeros(data.classes, len(self.labels))
        for column, (label, classes) in enumerate(self.labels.items()):
            for name in classes:
                if name not in data.class_names:
                    raise InputError(
                        f"targets: label {label!r}: unknown class {name!r}{nearest(name, list(data.class_names))}"
                    )
                table[data.class_names.index(name), column] = 1
        heads = Heads((Head("labels", "labels", len(self.labels)),), name=MULTI_LABEL)
        return _with(data, table[data.train_targets], table[data.test_targets], heads)


@part("targets.columns")
class Columns:
    """Columns of a table, which leave the inputs: a number by squared error, a category by cross-entropy.

    Several numbers are one head, and each category has its own. An unknown category has equal shares of all values.
    """

    columns: Annotated[tuple[Text, ...], Field(min_length=1, description="Names of the columns.")]

    def __call__(self, data: Dataset) -> Dataset:
        """Return the data set without these columns and with their targets; raises InputError for an unknown column."""
        by_name = {feature.name: feature for feature in data.features}
        for name in self.columns:
            if name not in by_name:
                raise InputError(f"targets: unknown column {name!r}{nearest(name, list(by_name))}")
        asked = [by_name[name] for name in self.columns]
        numbers, categories = [f for f in asked if not f.values], [f for f in asked if f.values]
        left = [f for f in data.features if f.name not in self.columns]
        if not left:
            raise InputError("targets: got all columns of the table, expected at least one column to be left")
        train, test = (_columns(x, numbers, categories) for x in (data.train_inputs, data.test_inputs))
        # Attackers start at the center, so that it is not that of the victims' split.
        center = tuple(test[:, : len(numbers)].mean(0).tolist())
        heads = [Head(f.name, "classes", len(f.values)) for f in categories]
        if numbers:
            heads.insert(0, Head(", ".join(f.name for f in numbers), "numbers", len(numbers), center=center))
        name = SEVERAL if len(heads) > 1 else REGRESSION if numbers else heads[0].name
        places = torch.cat([torch.arange(f.start, f.stop) for f in left])
        features, reached = [], 0
        for f in left:
            features.append(dataclasses.replace(f, start=reached, stop=reached + f.stop - f.start))
            reached = features[-1].stop
        train_inputs, test_inputs = data.train_inputs[:, places], data.test_inputs[:, places]
        changed = dataclasses.replace(
            data, train_inputs=train_inputs, test_inputs=test_inputs, features=tuple(features)
        )
        return _with(changed, train, test, Heads(tuple(heads), name=name))


def _columns(inputs: Tensor, numbers: list[Feature], categories: list[Feature]) -> Tensor:
    """Return the targets (n, k) of records: the numbers, then the shares of each category's values."""
    parts = [inputs[:, f.start : f.stop] for f in numbers]
    for f in categories:
        values = inputs[:, f.start : f.stop]
        known = values.sum(1, keepdim=True)
        parts.append(torch.where(known > 0, values / known.clamp_min(1), 1 / values.shape[1]))
    return torch.cat(parts, 1)


@part("targets.foreground")
class Foreground:
    """A mask of the pixels of a picture that are brighter than a threshold, with or without the class.

    A network has an output for each pixel, with the binary cross-entropy, and with `classes` another head for the class.
    """

    above: Annotated[Fraction, Field(description="Brightness in [0, 1] above which a pixel is foreground.")] = 0.5
    classes: Annotated[bool, Field(description="Whether a second head names the class.")] = False

    def __call__(self, data: Dataset) -> Dataset:
        """Return the data set with masks; raises InputError for other data than pictures."""
        if data.kind != "image":
            raise InputError(f"targets: foreground takes pictures, {data.name!r} holds none")
        heads = [Head("mask", "labels", 1, data.shape[1:])]
        several = []
        for x, y in ((data.train_inputs, data.train_targets), (data.test_inputs, data.test_targets)):
            mask = (x.mean(1) > self.above).float().flatten(1)
            named = torch.nn.functional.one_hot(y, data.classes).float()
            several.append(torch.cat([mask, named], 1) if self.classes else mask)
        if self.classes:
            heads.append(Head("class", "classes", data.classes))
        name = SEVERAL if self.classes else SEGMENTATION
        return _with(data, several[0], several[1], Heads(tuple(heads), name=name))


def with_class_head(data: Dataset) -> Dataset:
    """Return the data set with its classes as one-hot targets, for other losses than the cross-entropy of the class."""
    train, test = (
        torch.nn.functional.one_hot(y, data.classes).float() for y in (data.train_targets, data.test_targets)
    )
    heads = Heads((Head("class", "classes", data.classes),))
    return dataclasses.replace(data, targets=Targets(train, test, heads))


def with_label_head(data: Dataset) -> Dataset:
    """Return a data set whose targets (n, k) are labels that do not exclude each other, as CelebA's attributes, with one class."""
    heads = Heads((Head("labels", "labels", data.classes),), name=MULTI_LABEL)
    plain = dataclasses.replace(
        data,
        train_targets=torch.zeros(len(data.train_targets), dtype=torch.int64),
        test_targets=torch.zeros(len(data.test_targets), dtype=torch.int64),
        class_names=("example",),
    )
    return _with(plain, data.train_targets.float(), data.test_targets.float(), heads)


def _with(data: Dataset, train: Tensor, test: Tensor, heads: Heads) -> Dataset:
    digest = hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in (train, test))).hexdigest()
    content = f"{data.content}, targets {[(h.name, h.kind, h.width, h.places) for h in heads.heads]} {digest}"
    return dataclasses.replace(data, targets=Targets(train, test, heads), content=content)


TARGETS = Slot("targets", ("leakbench.data",))
