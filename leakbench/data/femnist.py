"""Format of FEMNIST as LEAF writes it: JSON files of handwritten characters, listed by writer."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Count, part
from leakbench.data.cache import NO_CACHE, Arrays, Cache
from leakbench.data.checks import Check, within
from leakbench.data.dataset import Dataset, people_apart
from leakbench.data.photographs import Pinned, accepted_listing, listing_of, read_content, shown, visible
from leakbench.data.pictures import Pixels, unit
from leakbench.data.split import SplitSeed, TestShare, split

__all__ = ["Femnist"]

SIDE = 28
NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""The 62 characters in the order of their numbers."""

FOLDERS = {"leaf": ("train", "test"), "writer": ("all_data",), "example": ("all_data",)}
"""{split: the folders that it reads}."""


class _Images(NamedTuple):
    """Characters of several writers.

    Args:
        pixels: (n, 784), 8 bits.
        labels: (n,) int64.
        writers: (n,) int64, positions among all names of writers.
        names: The names of the writers, sorted.
        first: Number of the images in the first folder.
    """

    pixels: Pixels
    labels: Tensor
    writers: Tensor
    names: list[str]
    first: int


@part("format.femnist")
class Femnist:
    """LEAF's `all_data/*.json`, or its `train/*.json` and `test/*.json`: 28 x 28 grey characters of 62 classes, by writer.

    A file has `users`, a list of writers, and `user_data`, {writer: {x: lists of 784 numbers in [0, 1], y: numbers of classes}}.
    The numbers are rounded to 8 bits, which the scanned images have. A writer is the group of each image.

    If a writer is in both splits, every other writer may be a victim, and only test images of the other writers are public.
    """

    split: Annotated[
        Literal["writer", "example", "leaf"],
        Field(
            description=(
                "Split: writer (test_share of the writers), example (test_share of each writer's images), or leaf (the folders "
                "train and test that LEAF has written)."
            )
        ),
    ] = "writer"
    most_writers: Annotated[
        Count | None, Field(description="Largest number of writers, the first ones by name; None for all.")
    ] = None
    sha256: Pinned = ""
    test_share: TestShare = 0.1
    seed: SplitSeed = 0

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare the listing of the files with the accepted one, as one row; without one, report it."""
        name = " and ".join(f"{each}/*.json" for each in FOLDERS[self.split])
        try:
            paths = [path for each in self._files(within(folder)) for path in each]
            got = listing_of(within(folder), paths)
        except InputError as error:
            return (Check(name, (self.sha256 or "JSON files of LEAF",), str(error)),)
        return (Check(f"{name}: {len(paths)} files", (self.sha256,) if self.sha256 else (), got),)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a file that is missing or has another form."""
        root = within(folder)
        files = self._files(root)
        listing = accepted_listing(root, [path for each in files for path in each], self.sha256)
        read = self._read(files, cache, f"femnist-v1-{listing[:32]}-{self.split}-{self.most_writers or 'all'}")
        train, test = self._parts(read)
        for name, chosen in (("training", train), ("test", test)):
            if not len(chosen):
                raise InputError(
                    f"{root}: the {name} split has no image; change `split` or `test_share`, or add writers"
                )
        pixels = read.pixels.reshape(-1, 1, SIDE, SIDE)
        halves = (unit(pixels[train]), read.labels[train], unit(pixels[test]), read.labels[test])
        victims, public = people_apart(read.writers[train], read.writers[test])
        content = read_content(listing, f"split by {self.split}", read.labels, read.writers, train, test)
        return Dataset("", "image", *halves, NAMES, victims, content, public=public, groups=read.writers[train])

    def _parts(self, read: _Images) -> tuple[Tensor, Tensor]:
        everything = torch.arange(len(read.labels))
        if self.split == "leaf":
            return everything[: read.first], everything[read.first :]
        if self.split == "example":
            return split(read.writers, self.test_share, self.seed)
        order = np.random.Generator(np.random.PCG64(self.seed)).permutation(len(read.names))
        tested = torch.from_numpy(order[: int(np.ceil(self.test_share * len(order)))])
        is_test = torch.isin(read.writers, tested)
        return everything[~is_test], everything[is_test]

    def _files(self, root: Path) -> list[list[Path]]:
        """Return the files of each folder; raises InputError for a folder without files."""
        files = [[path for path in visible(root / name) if path.suffix == ".json"] for name in FOLDERS[self.split]]
        for name, paths in zip(FOLDERS[self.split], files, strict=True):
            if not paths:
                raise InputError(f"{root / name}: got no .json file, expected those of LEAF's preprocess.sh")
        return files

    def _read(self, files: list[list[Path]], cache: Cache, key: str) -> _Images:
        arrays = cache(key, lambda: _decoded(files, self.most_writers))
        names = [str(name) for name in arrays["names"]]
        labels, writers = (torch.from_numpy(arrays[name]) for name in ("labels", "writers"))
        return _Images(arrays["pixels"], labels, writers, names, int(arrays["first"][0]))


def _decoded(folders: list[list[Path]], most_writers: int | None) -> Arrays:
    """Return the images of the first writers by name, those of the first folder first."""
    # A file of 100 writers takes some hundred megabytes as Python's numbers, so each is converted before the next is read.
    read = [[_file(path) for path in paths] for paths in folders]
    names = sorted({name for files in read for file in files for name in file})[:most_writers]
    number = {name: i for i, name in enumerate(names)}
    chosen = [
        [(number[name], *images) for file in files for name, images in file.items() if name in number] for files in read
    ]
    images = [each for folder in chosen for each in folder]
    return {
        "pixels": np.concatenate([pixels for _, pixels, _ in images]),
        "labels": np.concatenate([labels for _, _, labels in images]).astype(np.int64),
        "writers": np.concatenate([np.full(len(labels), writer, np.int64) for writer, _, labels in images]),
        "names": np.array([shown(name) for name in names]),
        "first": np.array([sum(len(labels) for _, _, labels in chosen[0])]),
    }


def _file(path: Path) -> dict[str, tuple[Pixels, np.ndarray[Any, Any]]]:
    """Return {writer: (pixels (n, 784) uint8, labels (n,) int64)} of a file."""
    try:
        content = json.loads(path.read_bytes())
        users, data = content["users"], content["user_data"]
        # LEAF leaves writers with one image out of `users`, and writes them to `user_data` without images.
        if not users or len(set(users)) < len(users) or not set(users) <= set(data):
            raise ValueError("`users` are not writers of `user_data`, each once")
        return {str(name): _writer(name, data[name]) for name in users}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise InputError(f"{path}: not a file of LEAF's FEMNIST: {type(error).__name__}: {error}"[:300]) from None


def _writer(name: str, images: Any) -> tuple[Pixels, np.ndarray[Any, Any]]:
    x, y = np.array(images["x"]), np.array(images["y"], dtype=None if images["y"] else np.int64)
    x = x if len(x) else np.empty((0, SIDE * SIDE))  # LEAF's split may leave a writer without test images.
    if x.dtype.kind not in "if":
        raise ValueError(f"writer {name!r}: x: expected lists of {SIDE * SIDE} numbers in [0, 1]")
    if x.ndim != 2 or x.shape[1] != SIDE * SIDE or not bool(((x >= 0) & (x <= 1)).all()):
        raise ValueError(f"writer {name!r}: x: got shape {x.shape}, expected lists of {SIDE * SIDE} numbers in [0, 1]")
    if y.shape != x.shape[:1] or y.dtype.kind != "i" or not bool(((y >= 0) & (y < len(NAMES))).all()):
        raise ValueError(f"writer {name!r}: y: expected {len(x)} whole numbers from 0 to {len(NAMES) - 1}")
    return np.rint(255 * x).astype(np.uint8), y
