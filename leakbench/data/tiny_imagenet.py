"""Format of TinyImageNet: training pictures in one folder per class, and a table with the classes of the validation pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Count, part
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import Check, lines_of, within
from leakbench.data.dataset import Dataset
from leakbench.data.photographs import (
    Pinned,
    Side,
    accepted_listing,
    dataset_of,
    listing_of,
    pictures_in,
    read_content,
    shown,
    squares,
    visible,
)

__all__ = ["TinyImageNet"]

ANNOTATIONS = "val_annotations.txt"


class _Listed(NamedTuple):
    """The pictures of the two splits, (training, validation): paths, and labels (n,) int64."""

    paths: tuple[list[Path], list[Path]]
    labels: tuple[Tensor, Tensor]
    classes: list[str]


@part("format.tiny_imagenet")
class TinyImageNet:
    """`train/<class>/images/*.JPEG`, `val/images/*.JPEG` with `val/val_annotations.txt`, and the names in `words.txt`.

    The validation pictures are the test split, since the labels of the test pictures are not published. The source publishes no
    checksum, so the numbers of pictures are checked.
    """

    train: Annotated[Count, Field(description="Number of training pictures.")]
    test: Annotated[Count, Field(description="Number of validation pictures.")]
    side: Side = 64
    sha256: Pinned = ""

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare the numbers of pictures, and the listing of the pictures with the accepted one, if the recipe has one."""
        root = within(folder)
        try:
            listed = _listed(root)
        except InputError as error:
            return (Check("train and val", (f"{self.train} and {self.test} pictures",), str(error)),)
        numbers = zip(("train", "val"), (self.train, self.test), listed.paths, strict=True)
        rows = [Check(f"{name}: number of pictures", (str(n),), str(len(paths))) for name, n, paths in numbers]
        if self.sha256:
            try:
                got = listing_of(root, [*listed.paths[0], *listed.paths[1]])
            except InputError as error:
                got = str(error)
            rows.append(Check("all pictures", (self.sha256,), got))
        return tuple(rows)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for another number of pictures, or a picture that cannot be read."""
        root = within(folder)
        listed = _listed(root)
        for name, expected, paths in zip(("train", "val"), (self.train, self.test), listed.paths, strict=True):
            if len(paths) != expected:
                raise InputError(
                    f"{root / name}: got {len(paths):,} pictures, expected {expected:,}; fetch the set again"
                )
        paths = [*listed.paths[0], *listed.paths[1]]
        listing = accepted_listing(root, paths, self.sha256)
        pixels = squares(paths, self.side, cache, f"tiny-imagenet-v1-{listing[:32]}")
        content = read_content(listing, f"{self.side} x {self.side}", *listed.labels)
        halves = (pixels[: self.train], pixels[self.train :])
        return dataset_of(root, halves, listed.labels, _names(root, listed.classes), content)


def _listed(root: Path) -> _Listed:
    classes = [each.name for each in visible(root / "train") if each.is_dir()]
    if not classes:
        raise InputError(f"{root / 'train'}: got no folder, expected one for each class")
    albums = [pictures_in(root / "train" / name / "images") for name in classes]
    labels = torch.tensor([label for label, album in enumerate(albums) for _ in album], dtype=torch.int64)
    numbers = {name: number for number, name in enumerate(classes)}
    table = root / "val" / ANNOTATIONS
    tested, answers = [], []
    for number, line in enumerate(_lines(table), 1):
        columns = line.split("\t")
        if len(columns) < 2 or columns[1] not in numbers or Path(columns[0]).name != columns[0]:
            raise InputError(f"{table}: line {number}: got {line[:60]!r}, expected a file, a tab, and a class of train")
        tested.append(root / "val" / "images" / columns[0])
        answers.append(numbers[columns[1]])
    if len(set(tested)) < len(tested):
        raise InputError(f"{table}: a picture appears twice; fetch the set again")
    train = [path for album in albums for path in album]
    return _Listed((train, [path for path in tested if path.is_file()]), (labels, torch.tensor(answers)), classes)


def _names(root: Path, classes: list[str]) -> tuple[str, ...]:
    """Return the number and the first word of each class, as `n01443537 goldfish`."""
    words = dict(line.split("\t", 1) for line in _lines(root / "words.txt") if "\t" in line)
    return tuple(shown(f"{name} {words.get(name, '').split(',')[0]}".strip()) for name in classes)


def _lines(path: Path) -> list[str]:
    try:
        return lines_of(path.read_bytes(), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
