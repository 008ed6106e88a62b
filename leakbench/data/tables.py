"""Formats of tables: the UCI Adult census records."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from pydantic_core import PydanticCustomError
from torch import Tensor

from leakbench.core.errors import InputError, nearest
from leakbench.core.part import part
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import AFile, Check, File, check_files, checked_bytes, identity, within
from leakbench.data.dataset import Dataset, Feature, everyone
from leakbench.data.formats import SCALED_BY_TRAINING
from leakbench.data.split import Split, SplitSeed, TestShare, split

__all__ = ["AdultCsv", "scaled"]

NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)


@part("format.adult_csv")
class AdultCsv:
    """UCI Adult: 48,842 records, pooled and split again; 6 numbers, then 8 categories as 99 one-hot columns.

    An unknown category ("?") has a 0 in all its columns. Numbers are scaled to [0, 1] by the training split's range or by `ranges`,
    and values beyond it are clamped. The class is the income, `<=50K` or `>50K`.
    """

    data: Annotated[AFile, Field(description="File of the published training records.")]
    test: Annotated[AFile, Field(description="File of the published test records.")]
    test_share: TestShare = 0.25
    seed: SplitSeed = 0
    ranges: Annotated[
        dict[str, tuple[float, float]],
        Field(
            default_factory=dict,
            description=(
                "Public least and largest value of numbers, as the documentation of the data states them, `{age: [17, 90]}`. Other "
                "numbers are scaled by the range of the private training split, which no epsilon covers."
            ),
        ),
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (low, high) in self.ranges.items():
            if name not in NUMBERS:
                text = f"ranges: unknown number {name!r}{nearest(name, NUMBERS)}"
            elif not -math.inf < low < high < math.inf:
                text = f"ranges: {name}: got [{low:g}, {high:g}], expected two finite numbers, the smaller one first"
            else:
                continue
            raise PydanticCustomError("slot", "{text}", {"text": text})

    @property
    def private_preparation(self) -> str:
        """What it computes from the private training data, see `Format`; nothing if every number has a public range."""
        return SCALED_BY_TRAINING if set(NUMBERS) - set(self.ranges) else ""

    @property
    def files(self) -> tuple[File, ...]:
        """All files of the set."""
        return self.data, self.test

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare every file with its checksum."""
        return check_files(folder, self.files)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a file that is missing or damaged."""
        table = pd.concat([_records(folder, f) for f in self.files], ignore_index=True)
        income = table["income"].str.removesuffix(".")
        names = tuple(sorted(income.unique()))
        targets = torch.from_numpy(income.map({n: i for i, n in enumerate(names)}).to_numpy(np.int64, copy=True))
        parts = split(targets, self.test_share, self.seed)
        raw = torch.from_numpy(table[list(NUMBERS)].to_numpy(np.float64))
        numbers, features = scaled(raw, NUMBERS, parts, self.ranges)
        columns = [numbers]
        for name in (c for c in COLUMNS[:-1] if c not in NUMBERS):
            values = tuple(sorted(set(table[name]) - {"?"}))
            start = features[-1].stop
            features.append(Feature(name, start, start + len(values), values))
            columns.append(_one_hot(table[name], values))
        inputs = torch.cat(columns, 1)
        content = identity(self.files)
        if self.ranges:
            content = f"{content}, ranges {sorted(self.ranges.items())}"
        return assemble("tabular", inputs, targets, parts, class_names=names, content=content, features=tuple(features))


def _records(folder: Path | None, file: File) -> pd.DataFrame:
    content = checked_bytes(folder, file)
    try:
        text = io.StringIO(content.decode())
        table = pd.read_csv(
            text, names=list(COLUMNS), comment="|", skipinitialspace=True, keep_default_na=False, dtype=str
        )
        table = table.astype(dict.fromkeys(NUMBERS, "int64"))
    except (ValueError, OverflowError) as error:
        raise InputError(f"{within(folder) / file.file}: not a table of {len(COLUMNS)} columns: {error}") from None
    if table.empty:
        raise InputError(f"{within(folder) / file.file}: holds no record")
    if other := sorted(set(table["income"].str.removesuffix(".")) - {"<=50K", ">50K"}):
        raise InputError(f"{within(folder) / file.file}: income: got {other[0]!r}, expected <=50K or >50K")
    return table


def _one_hot(column: pd.Series[Any], values: tuple[str, ...]) -> Tensor:
    return torch.from_numpy(np.stack([(column == v).to_numpy(np.float32) for v in values], 1))


def scaled(
    values: Tensor,
    names: tuple[str, ...],
    parts: Split,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> tuple[Tensor, list[Feature]]:
    """Scale columns (n, f) to [0, 1] float32, and return them with their features.

    Args:
        values: The columns.
        names: Their names.
        parts: The training and the test split.
        ranges: {name: public least and largest value}. Columns without one are scaled by their range in the training split.
    """
    low, high = values[parts[0]].amin(0), values[parts[0]].amax(0)
    for column, name in enumerate(names):
        if name in ranges:
            low[column], high[column] = ranges[name]
    # A column that is constant in the training split becomes 0.
    width = torch.where(high > low, high - low, 1.0)
    inputs = ((values - low) / width).clamp(0, 1).float()
    bounds = zip(names, low.tolist(), high.tolist(), strict=True)
    return inputs, [Feature(name, i, i + 1, (), a, b) for i, (name, a, b) in enumerate(bounds)]


def assemble(
    kind: Literal["image", "tabular"],
    inputs: Tensor,
    targets: Tensor,
    parts: Split,
    *,
    class_names: tuple[str, ...],
    content: str,
    features: tuple[Feature, ...] = (),
) -> Dataset:
    """Return the data set of the two splits `parts`, in which every training example may be a victim."""
    train, test = parts
    halves = (inputs[train], targets[train], inputs[test], targets[test])
    return Dataset("", kind, *halves, class_names, everyone(train), content, features)
