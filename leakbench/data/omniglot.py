"""Format of Omniglot: grey pictures of handwritten characters, in one folder for each character of an alphabet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import Check, within
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
from leakbench.data.split import SplitSeed, TestShare, split

__all__ = ["Omniglot"]


class _Drawings(NamedTuple):
    """The pictures of some alphabets: paths, labels (n,) int64, and the names of the characters."""

    paths: list[Path]
    labels: Tensor
    names: tuple[str, ...]


@part("format.omniglot")
class Omniglot:
    """`<alphabet>/<character>/*.png`: black strokes on white, grey. A class is a character, such as `Korean/character01`.

    Both splits have drawings of each character. They also have the same people, since each person drew a whole alphabet once.
    """

    alphabets: Annotated[
        tuple[str, ...], Field(description="Names of the alphabets; empty for all that the folder has.")
    ] = ()
    side: Side = 28
    sha256: Pinned = ""
    test_share: TestShare = 0.25
    seed: SplitSeed = 0

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare the listing of the pictures with the accepted one, as one row; without one, report it."""
        root = within(folder)
        try:
            drawings = self._drawings(root)
            got = listing_of(root, drawings.paths)
        except InputError as error:
            return (Check("pictures", (self.sha256 or "<alphabet>/<character>/*.png",), str(error)),)
        number = f"{len(drawings.paths):,} pictures of {len(drawings.names):,} characters"
        return (Check(number, (self.sha256,) if self.sha256 else (), got),)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a missing alphabet, a picture that cannot be read, or other content."""
        root = within(folder)
        drawings = self._drawings(root)
        listing = accepted_listing(root, drawings.paths, self.sha256)
        # The three colours of a grey picture are equal.
        pixels = squares(drawings.paths, self.side, cache, f"omniglot-v1-{listing[:32]}")[:, :1]
        train, test = split(drawings.labels, self.test_share, self.seed)
        labels = drawings.labels
        content = read_content(listing, f"{self.side} x {self.side}", labels, train, test)
        halves = (pixels[train], pixels[test])
        return dataset_of(root, halves, (labels[train], labels[test]), drawings.names, content)

    def _drawings(self, root: Path) -> _Drawings:
        alphabets = self.alphabets or tuple(each.name for each in visible(root) if each.is_dir())
        characters = [each for name in alphabets for each in visible(root / name) if each.is_dir()]
        albums = [pictures_in(each) for each in characters]
        if len(albums) < 2 or not all(albums):
            empty = next((each for each, album in zip(characters, albums, strict=True) if not album), root)
            raise InputError(f"{shown(empty)}: expected pictures in <alphabet>/<character>; fetch the set again")
        labels = torch.tensor([label for label, album in enumerate(albums) for _ in album], dtype=torch.int64)
        names = tuple(shown(each.relative_to(root).as_posix()) for each in characters)
        return _Drawings([path for album in albums for path in album], labels, names)
