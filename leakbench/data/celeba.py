"""Format of CelebA: aligned photographs, and tables of 40 attributes, of the people, and of the splits."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError, nearest
from leakbench.core.part import Count, Text, part
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import AnMd5File, Check, Md5File, check_files, checked_bytes, lines_of, within
from leakbench.data.dataset import Dataset, people_apart
from leakbench.data.photographs import Pinned, Side, accepted_listing, read_content, shown, squares
from leakbench.data.pictures import unit
from leakbench.data.split import SplitSeed, TestShare, split

__all__ = ["CelebA"]

PHOTOGRAPHS = "img_align_celeba"
TRAIN, TEST = 0, 2
"""Numbers of the splits in the published table; 1 is the validation split, which is not used."""

WHOLE = re.compile(r"-?[0-9]{1,10}")

IDENTITY, ATTRIBUTES = "identity", "attributes"
"""Values of `labels` that are not the name of an attribute."""


class _Tables(NamedTuple):
    """The rows of the published tables, in the order of the file names.

    Args:
        names: The n file names.
        attributes: (n, k) int64, each 0 or 1.
        titles: Names of the k attributes.
        people: (n,) int64.
        splits: (n,) int64.
        content: sha256 of the three files.
    """

    names: list[str]
    attributes: Tensor
    titles: tuple[str, ...]
    people: Tensor
    splits: Tensor
    content: str


@part("format.celeba")
class CelebA:
    """`img_align_celeba/*.jpg` with `list_attr_celeba.txt`, `identity_CelebA.txt` and `list_eval_partition.txt`.

    The source publishes an MD5 of each table, and none of the unpacked photographs, whose number is checked. The published
    training and test splits have different people. A person of the training split is the group of each photograph.

    With an attribute as label, the two classes are `not <attribute>` and `<attribute>`. With `attributes`, each example has all 40
    labels: targets (n, 40), float32, each 0 or 1, for a multi-label loss. With `identity`, the classes are the people with at
    least `minimum` photographs in the training split, which is split again; then every other person may be a victim, and only
    test photographs of the others are public.
    """

    attributes: Annotated[AnMd5File, Field(description="Table of the attributes.")]
    people: Annotated[AnMd5File, Field(description="Table of the people.")]
    splits: Annotated[AnMd5File, Field(description="Table of the splits.")]
    labels: Annotated[
        Text, Field(description="Label: the name of an attribute, `identity`, or `attributes` (all 40).")
    ] = "Smiling"
    crop: Annotated[
        Count, Field(description="Height and width of the centred square that is taken of a photograph.")
    ] = 178
    side: Side = 32
    most_people: Annotated[
        Count | None, Field(description="Largest number of people of a split, the first ones by number; None for all.")
    ] = None
    minimum: Annotated[Count, Field(description="Least number of photographs of a person, for `labels: identity`.")] = (
        20
    )
    sha256: Pinned = ""
    test_share: TestShare = 0.25
    seed: SplitSeed = 0

    @property
    def files(self) -> tuple[Md5File, ...]:
        """The tables."""
        return self.attributes, self.people, self.splits

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare each table with its checksum, and count the photographs."""
        root = within(folder)
        tables = check_files(folder, self.files)
        if not all(table.ok for table in tables):
            return tables
        try:
            names = self._tables(folder).names
        except InputError as error:
            return (*tables, Check("tables", ("one row for each photograph",), str(error)))
        present = sum((root / PHOTOGRAPHS / name).is_file() for name in names)
        return (*tables, Check(f"{PHOTOGRAPHS}: number of photographs", (str(len(names)),), str(present)))

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a table or a photograph that is missing or damaged."""
        root, tables = within(folder), self._tables(folder)
        rows, train, test = self._parts(tables)
        used = torch.cat([rows[train], rows[test]])
        paths = [root / PHOTOGRAPHS / tables.names[i] for i in used.tolist()]
        listing = accepted_listing(root, paths, self.sha256)
        targets, names = self._targets(tables, used)
        people = tables.people[used]
        half = len(train)
        victims, public = people_apart(people[:half], people[half:])
        pixels = squares(paths, self.side, cache, f"celeba-v1-{listing[:32]}", self.crop)
        halves = (unit(pixels[:half]), targets[:half], unit(pixels[half:]), targets[half:])
        how = f"{tables.content}, {self.labels}, {self.crop} to {self.side}"
        content = read_content(listing, how, targets, people, train, test)
        return Dataset("", "image", *halves, names, victims, content, public=public, groups=people[:half])

    def _parts(self, tables: _Tables) -> tuple[Tensor, Tensor, Tensor]:
        """Return (rows of the tables, positions among them of the training examples, those of the test examples)."""
        if self.labels == IDENTITY:
            rows = _first_people(tables, TRAIN, self.most_people)
            counts = torch.bincount(tables.people[rows])
            rows = rows[counts[tables.people[rows]] >= self.minimum]
            if not len(rows):
                raise InputError(f"minimum: got {self.minimum}, which no person of the training split has; lower it")
            return (rows, *split(tables.people[rows], self.test_share, self.seed))
        train, test = (_first_people(tables, part, self.most_people) for part in (TRAIN, TEST))
        return torch.cat([train, test]), torch.arange(len(train)), torch.arange(len(train), len(train) + len(test))

    def _targets(self, tables: _Tables, used: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Return the targets of the examples in use, and the names of the classes."""
        if self.labels == ATTRIBUTES:
            return tables.attributes[used].float(), tables.titles
        if self.labels == IDENTITY:
            people, targets = torch.unique(tables.people[used], return_inverse=True)
            return targets, tuple(f"person {number}" for number in people.tolist())
        if self.labels not in tables.titles:
            known = [IDENTITY, ATTRIBUTES, *tables.titles]
            raise InputError(f"labels: unknown attribute {self.labels!r}{nearest(self.labels, known)}")
        return tables.attributes[used, tables.titles.index(self.labels)], (f"not {self.labels}", self.labels)

    def _tables(self, folder: Path | None) -> _Tables:
        contents = [checked_bytes(folder, file) for file in self.files]
        places = [within(folder) / file.file for file in self.files]
        lines = [lines_of(content, where) for content, where in zip(contents, places, strict=True)]
        # The first line of the attributes is the number of rows, the second one has their names.
        titles = tuple(shown(word) for word in " ".join(lines[0][1:2]).split())
        rows = [
            _rows(each, where, width)
            for each, where, width in zip((lines[0][2:], *lines[1:]), places, (len(titles), 1, 1), strict=True)
        ]
        names = sorted(rows[0])
        for other, where in zip(rows[1:], places[1:], strict=True):
            if other.keys() != rows[0].keys():
                raise InputError(f"{where}: has other photographs than {places[0].name}; fetch the tables again")
        values, people, splits = (torch.from_numpy(np.array([each[name] for name in names])) for each in rows)
        if not names or not bool(((values == 1) | (values == -1)).all()) or int(people.min()) < 0:
            raise InputError(f"{places[0]}: got no table of attributes that are 1 or -1")
        whole = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).hexdigest()
        return _Tables(names, (values + 1) // 2, titles, people[:, 0], splits[:, 0], whole)


def _rows(lines: list[str], where: Path, width: int) -> dict[str, list[int]]:
    """Return {file name: its numbers} of lines with a file name and `width` whole numbers."""
    rows: dict[str, list[int]] = {}
    for line in lines:
        name, *words = line.split() or [""]
        numbers = [int(word) for word in words if WHOLE.fullmatch(word)]
        if (
            len(words) != width
            or len(numbers) != width
            or Path(name).name != name
            or name in rows
            or any(abs(n) > 10**9 for n in numbers)
        ):
            raise InputError(f"{where}: got the line {line[:60]!r}, expected a new file name and {width} whole numbers")
        rows[name] = numbers
    return rows


def _first_people(tables: _Tables, part: int, most: int | None) -> Tensor:
    """Return the rows of the first people of a split, all without a limit.

    Raises:
        InputError: If the split is empty.
    """
    rows = (tables.splits == part).nonzero()[:, 0]
    if not len(rows):
        raise InputError(
            f"splits: got no photograph of split {part}, expected some of split {TRAIN} and of split {TEST}"
        )
    people = torch.unique(tables.people[rows])[:most]
    return rows[torch.isin(tables.people[rows], people)]
