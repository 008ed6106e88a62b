"""Formats of picture sets: MNIST's idx files, LFW's folders of JPEGs."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from pydantic_core import PydanticCustomError
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Count, part
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import AFile, Check, File, Sha256, check_files, checked_bytes, identity, sha256_of, within
from leakbench.data.dataset import Dataset, everyone, people_apart
from leakbench.data.split import SplitSeed, TestShare, split
from leakbench.storage.packed import ungzipped

__all__ = ["MOST_PIXELS", "FaceFolders", "Idx", "Pixels", "unit"]

MOST_PIXELS = 25_000_000
"""Largest number of pixels of one photograph: a small file may unpack to any number."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def unit(pixels: Pixels) -> Tensor:
    """Return 8-bit pixels as float32 in [0, 1]."""
    return torch.from_numpy(pixels).float().div_(255)


@part("format.idx")
class Idx:
    """Four gzipped idx files of unsigned bytes, the format of MNIST and similar sets."""

    train_images: Annotated[AFile, Field(description="Training pictures.")]
    train_labels: Annotated[AFile, Field(description="Training labels.")]
    test_images: Annotated[AFile, Field(description="Test pictures.")]
    test_labels: Annotated[AFile, Field(description="Test labels.")]
    class_names: Annotated[tuple[str, ...], Field(description="Name of each label, from 0.")]

    @property
    def files(self) -> tuple[File, ...]:
        """All files of the set."""
        return self.train_images, self.train_labels, self.test_images, self.test_labels

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare every file with its checksum."""
        return check_files(folder, self.files)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a file that is missing, damaged, or not idx."""
        train, test = (unit(_idx(folder, f, 3)).unsqueeze(1) for f in (self.train_images, self.test_images))
        labels, answers = (torch.from_numpy(_idx(folder, f, 1)).long() for f in (self.train_labels, self.test_labels))
        for pictures, of, file in ((train, labels, self.train_labels), (test, answers, self.test_labels)):
            if len(pictures) != len(of):
                raise InputError(f"{within(folder) / file.file}: {len(of)} labels for {len(pictures)} pictures")
        names = self.class_names
        return Dataset("", "image", train, labels, test, answers, names, everyone(labels), identity(self.files))


def _idx(folder: Path | None, file: File, dimensions: int) -> Pixels:
    """Return the array in an idx file: two zero bytes, type 8 (unsigned byte), rank, big-endian sizes, the bytes."""
    packed = checked_bytes(folder, file)
    try:
        raw = ungzipped(packed)
    except (ValueError, EOFError, zlib.error) as error:
        raise InputError(f"{within(folder) / file.file}: not a whole gzip file: {error}") from None
    head = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(raw[at : at + 4]) for at in range(4, head, 4))
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) != head + math.prod(shape):
        raise InputError(f"{within(folder) / file.file}: not an idx file of {dimensions} dimensions of unsigned bytes")
    if len(raw) == head:
        raise InputError(f"{within(folder) / file.file}: holds nothing: its sizes are {shape}")
    return np.frombuffer(bytearray(raw), np.uint8, offset=head).reshape(shape)


@part("format.face_folders")
class FaceFolders:
    """Photographs in one folder per person, the format of Labeled Faces in the Wild, without people with too few photographs.

    Each photograph is cropped to rows and columns crop[0]:crop[1] and resized to side x side (bicubic, on 8-bit pixels, like
    scikit-learn). The classes are the sorted names of the people.

    Only every other person may be a victim, and only the test pictures of the other people are public: more pictures of a
    victim would
    give the attacker much information about the face.
    """

    accepted: Annotated[
        dict[str, Sha256],
        Field(
            min_length=1,
            description=(
                "Accepted content, {variant: sha256 over the sorted lines `<sha256>  <person>/<file>` of the photographs in use}."
            ),
        ),
    ]
    minimum: Annotated[Count, Field(description="Least number of photographs of a person.")] = 20
    crop: Annotated[tuple[int, int], Field(description="First row and column of the crop, and the end of both.")] = (
        61,
        189,
    )
    side: Annotated[Count, Field(description="Height and width of the resized pictures.")] = 32
    test_share: TestShare = 0.25
    seed: SplitSeed = 0

    def __post_init__(self) -> None:
        low, high = self.crop
        if not 0 <= low < high:
            text = f"crop: got {low}, {high}, expected the first row and column and, above it, the end"
            raise PydanticCustomError("slot", "{text}", {"text": text})

    def at(self, size: int) -> FaceFolders:
        """Return the format that reads pictures of another size, from a larger crop with the same centre if the crop is smaller.

        Raises:
            InputError: For a size that no crop with this centre has.
        """
        low, high = self.crop
        grown = max(0, size - (high - low))
        if low < -(-grown // 2):
            raise InputError(
                f"size: got {size}, expected at most {high - low + 2 * low}, since photographs are not enlarged"
            )
        start = low - -(-grown // 2)
        return dataclasses.replace(self, crop=(start, start + max(size, high - low)), side=size)

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare the listing of the photographs in use with the accepted ones, as one row."""
        try:
            _, got = self._listing(within(folder))
        except InputError as error:
            got = str(error)
        variants = ", ".join(self.accepted)
        return (Check(f"people with >= {self.minimum} photographs ({variants})", tuple(self.accepted.values()), got),)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError if the photographs are not those of an accepted variant."""
        folder = within(folder)
        paths, content = self._listing(folder)
        if content not in self.accepted.values():
            raise InputError(
                f"{folder}: the {len(paths):,} photographs of people with >= {self.minimum} have the listing sha256"
                f" {content or 'of no file'}, accepted: {', '.join(f'{s} ({v})' for v, s in self.accepted.items())};"
                " some are missing or changed, or this is another alignment of LFW"
            )
        people = sorted({p.parent.name for p in paths})
        labels = torch.tensor([people.index(p.parent.name) for p in paths])
        key = f"faces-v1-{content[:16]}-{self.minimum}-{self.crop[0]}-{self.crop[1]}-{self.side}"
        pixels = unit(cache(key, lambda: {"pixels": np.stack([self._picture(p) for p in paths])})["pixels"])
        train, test = split(labels, self.test_share, self.seed)
        victims, public = people_apart(labels[train], labels[test])
        parts = (pixels[train], labels[train], pixels[test], labels[test])
        named = f"{content}, people apart"
        return Dataset("", "image", *parts, tuple(people), victims, named, public=public, groups=labels[train])

    def _listing(self, folder: Path) -> tuple[list[Path], str]:
        """Return the photographs in use, sorted, and the sha256 over their listing (empty without photographs)."""
        try:
            people = sorted(p for p in folder.iterdir() if p.is_dir())
            albums = [sorted(p.glob("*.jpg")) for p in people]
            paths = [path for album in albums if len(album) >= self.minimum for path in album]
            lines = [f"{sha256_of(path)}  {path.parent.name}/{path.name}\n" for path in paths]
        except OSError as error:
            raise InputError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None
        return paths, hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""

    def _picture(self, path: Path) -> Pixels:
        from PIL import Image  # noqa: PLC0415

        low, high = self.crop
        try:
            with Image.open(path) as photograph:
                wide, tall = photograph.size
                if min(wide, tall) < high:
                    raise ValueError(f"of {wide} x {tall} pixels, the crop ends at {high}")
                if wide * tall > MOST_PIXELS:
                    raise ValueError(f"of {wide} x {tall} pixels, expected at most {MOST_PIXELS:,}")
                face = photograph.convert("RGB").crop((low, low, high, high)).resize((self.side, self.side))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(f"{path}: not a readable picture: {error}") from None
        return np.ascontiguousarray(np.asarray(face).transpose(2, 0, 1))
