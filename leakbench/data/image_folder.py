"""Format of a user's own pictures: one folder per class, as ImageNet and torchvision's `ImageFolder` have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Count, part
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import Check, within
from leakbench.data.dataset import Dataset
from leakbench.data.photographs import (
    PICTURES,
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
from leakbench.data.split import Split, SplitSeed, TestShare, split

__all__ = ["ImageFolder"]

TESTS = ("val", "test")
"""Names of the folder of test pictures next to `train`, in the order of the search."""


class _Album(NamedTuple):
    """Pictures by class.

    Args:
        paths: The n pictures.
        labels: (n,) int64.
        trained: Number of the first pictures that the folder `train` has; None without such a folder, or without test pictures.
    """

    root: Path
    names: tuple[str, ...]
    paths: list[Path]
    labels: Tensor
    trained: int | None


@part("format.image_folder")
class ImageFolder:
    """JPEGs and PNGs in one folder per class: `<class>/*.jpg`, or `train/<class>/*.jpg` and `val/<class>/*.jpg` (or `test`).

    The classes are the sorted names of the folders. Without a folder of test pictures, `test_share` of them are drawn; the only
    picture of a class is always a training picture. Hidden files, and files with other endings, are left out. Links are followed.
    """

    folder: Annotated[
        str, Field(description="Path of the folder, for a recipe without `origin`; empty for the folder of `origin`.")
    ] = ""
    side: Side = 64
    most_per_class: Annotated[
        Count | None, Field(description="Largest number of pictures of a class, the first ones by name; None for all.")
    ] = None
    sha256: Pinned = ""
    test_share: TestShare = 0.25
    seed: SplitSeed = 0

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare the listing of the pictures with the accepted one, as one row; without one, report it."""
        try:
            album = self._album(folder)
            got = listing_of(album.root, album.paths)
        except InputError as error:
            return (Check("pictures", (self.sha256 or "one folder per class",), str(error)),)
        number = f"{len(album.paths):,} pictures of {len(album.names):,} classes"
        return (Check(number, (self.sha256,) if self.sha256 else (), got),)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a picture that cannot be read, an empty class, or a split without pictures."""
        album = self._album(folder)
        listing = accepted_listing(album.root, album.paths, self.sha256)
        train, test = self._parts(album)
        labels = album.labels
        if missing := sorted(set(range(len(album.names))) - set(labels[train].tolist())):
            raise InputError(f"{album.root}: the class {album.names[missing[0]]!r} has no training picture; add some")
        pixels = squares(album.paths, self.side, cache, f"folder-v1-{listing[:32]}")
        content = read_content(listing, f"{self.side} x {self.side}", labels, train, test)
        halves = (pixels[train], pixels[test])
        return dataset_of(album.root, halves, (labels[train], labels[test]), album.names, content)

    def training_count(self) -> int:
        """Return the number of training pictures; raises InputError as a call does, but reads no picture."""
        return len(self._parts(self._album(None))[0])

    def _parts(self, album: _Album) -> Split:
        if album.trained is not None:
            return torch.arange(album.trained), torch.arange(album.trained, len(album.paths))
        several = torch.bincount(album.labels)[album.labels] > 1
        among = several.nonzero()[:, 0]
        if not len(among):
            raise InputError(
                f"{album.root}: every class has one picture, so none is left for the test; add pictures, or a folder 'val'"
                " next to a folder 'train'"
            )
        tested = among[split(album.labels[among], self.test_share, self.seed)[1]]
        is_test = torch.zeros(len(album.paths), dtype=torch.bool)
        is_test[tested] = True
        return (~is_test).nonzero()[:, 0], tested

    def _album(self, folder: Path | None) -> _Album:
        root = Path(self.folder).expanduser() if self.folder else within(folder)
        train, tests = root / "train", [root / name for name in TESTS if (root / name).is_dir()]
        if not any(each.is_dir() for each in (visible(train) if train.is_dir() else [])):
            classes = self._classes(root)
            return _album_of(root, tuple(classes), list(classes.values()), None)
        classes = self._classes(train)
        names = tuple(classes)
        trained = list(classes.values())
        if not tests:
            return _album_of(root, names, trained, None)
        tested = self._classes(tests[0], least=1)
        if unknown := sorted(set(tested) - set(names)):
            raise InputError(
                f"{tests[0] / unknown[0]}: not a class of {train}, expected the same names; rename or remove it"
            )
        # The test pictures come after all training pictures, so that one number separates them.
        return _album_of(root, names, [*trained, *(tested.get(name, []) for name in names)], sum(map(len, trained)))

    def _classes(self, root: Path, least: int = 2) -> dict[str, list[Path]]:
        """Return {name of a class: its pictures}."""
        albums = {each.name: pictures_in(each)[: self.most_per_class] for each in visible(root) if each.is_dir()}
        for name, paths in albums.items():
            if not paths:
                raise InputError(
                    f"{shown(root / name)}: got no picture, expected files that end in {', '.join(PICTURES)}; add some, or"
                    " remove the folder"
                )
        if len(albums) < least:
            raise InputError(f"{shown(root)}: got {len(albums)} folders, expected {least} or more, one for each class")
        return albums


def _album_of(root: Path, names: tuple[str, ...], albums: Sequence[Sequence[Path]], trained: int | None) -> _Album:
    labels = [i % len(names) for i, album in enumerate(albums) for _ in album]
    named = tuple(shown(name) for name in names)
    return _Album(root, named, [path for album in albums for path in album], torch.tensor(labels), trained)
