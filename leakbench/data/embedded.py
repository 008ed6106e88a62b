"""Real data that come with leakbench, scikit-image and scikit-learn, for use without a download."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import Check, Sha256
from leakbench.data.dataset import Dataset
from leakbench.data.formats import SCALED_BY_TRAINING
from leakbench.data.split import SplitSeed, TestShare, split
from leakbench.data.tables import assemble, scaled
from leakbench.data.texts import embedded_words, text_dataset
from leakbench.data.vocabulary import Vocabulary

__all__ = ["Embedded"]

REVIEW = 32
"""Number of tokens of an example of `reviews`."""


class LibraryData(NamedTuple):
    """The data of a library: inputs (n, *s) float64, targets (n,) int64, names of classes and columns, vocabulary, texts."""

    inputs: Tensor
    targets: Tensor
    class_names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    vocabulary: Vocabulary | None = None
    texts: tuple[str, ...] = ()


@part("format.embedded")
class Embedded:
    """A data set that comes with a library that leakbench requires."""

    set: Annotated[
        Literal["faces", "digits", "cancer", "reviews"],
        Field(
            description=(
                "Name of the set. `faces`: 100 faces and 100 other patches of LFW photographs, 25 x 25 grey, without names; the "
                "task is face or not, and only faces may be victims. `digits`: 1,797 digits of 8 x 8. `cancer`: 569 records of 30 "
                "numbers, scaled to [0, 1] by the training split's range. `reviews`: 2,000 sentences of movie reviews, half with a "
                "positive and half with a negative score, of at most 32 tokens."
            )
        ),
    ]
    sha256: Annotated[
        Sha256, Field(description="Hash of the inputs as little-endian float64, followed by the targets as int64.")
    ]
    test_share: TestShare = 0.25
    seed: SplitSeed = 0

    @property
    def private_preparation(self) -> str:
        """What it computes from the private training data, see `Format`."""
        return SCALED_BY_TRAINING if self.set == "cancer" else ""

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare the library's copy with its checksum."""
        return (Check(f"{self.set} (inside an installed library)", (self.sha256,), _digest(SOURCES[self.set]())),)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Return the set; raises InputError if the library has another copy."""
        source = SOURCES[self.set]()
        got = _digest(source)
        if got != self.sha256:
            raise InputError(
                f"{self.set}: the installed library's copy has sha256 {got}, expected {self.sha256};"
                " install another version of scikit-image, scikit-learn or (for reviews) tokenizers"
            )
        parts = split(source.targets, self.test_share, self.seed)
        if source.vocabulary is not None:
            inputs, names = source.inputs.float(), source.class_names
            return text_dataset(inputs, source.targets, parts, names, source.vocabulary, source.texts, got, self.set)
        if source.columns:
            inputs, features = scaled(source.inputs, source.columns, parts)
        else:
            inputs, features = source.inputs.float(), []
        kind: Literal["image", "tabular"] = "tabular" if features else "image"
        names, columns = source.class_names, tuple(features)
        data = assemble(kind, inputs, source.targets, parts, class_names=names, content=got, features=columns)
        if self.set == "faces":
            return dataclasses.replace(data, victims=torch.nonzero(data.train_targets == 1).flatten())
        return data


def _digest(source: LibraryData) -> str:
    inputs, targets = source.inputs.numpy().astype("<f8"), source.targets.numpy().astype("<i8")
    return hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest()


def _faces() -> LibraryData:
    from skimage.data import lfw_subset  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # scikit-image leaves the file open.
        patches = np.asarray(lfw_subset(), dtype=np.float64)  # type: ignore[no-untyped-call]
    targets = torch.cat([torch.ones(100), torch.zeros(100)]).long()  # The first 100 are the faces.
    return LibraryData(torch.from_numpy(patches).unsqueeze(1), targets, ("not a face", "face"))


def _digits() -> LibraryData:
    from sklearn.datasets import load_digits  # noqa: PLC0415

    raw = load_digits()
    inputs = torch.from_numpy(raw.images).unsqueeze(1) / 16
    return LibraryData(inputs, torch.from_numpy(raw.target).long(), tuple(str(n) for n in raw.target_names))


def _cancer() -> LibraryData:
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    raw = load_breast_cancer()
    columns = tuple(str(n) for n in raw.feature_names)
    names = tuple(str(n) for n in raw.target_names)
    return LibraryData(torch.from_numpy(raw.data), torch.from_numpy(raw.target).long(), names, columns)


def _reviews() -> LibraryData:
    lines = (files("leakbench.data") / "reviews" / "sentences.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    vocabulary = Vocabulary.of_word_pieces(embedded_words())
    texts = tuple(text for text, _ in rows)
    inputs = vocabulary.encode(texts, REVIEW).double()
    targets = torch.tensor([int(label) for _, label in rows])
    return LibraryData(inputs, targets, ("negative", "positive"), vocabulary=vocabulary, texts=texts)


SOURCES: dict[str, Callable[[], LibraryData]] = {
    "faces": _faces,
    "digits": _digits,
    "cancer": _cancer,
    "reviews": _reviews,
}
