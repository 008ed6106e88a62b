"""Attributes: the categories of a table that an attacker may want to infer about a person."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakbench.core.errors import InputError, nearest
from leakbench.data.dataset import Dataset, Feature

__all__ = ["MOST_VALUES", "attributes_of", "commonest", "values_of"]

MOST_VALUES = 20
"""Largest number of values of an attribute. With more values, most have few public examples."""


def attributes_of(data: Dataset, sensitive: Sequence[str] = ()) -> tuple[Feature, ...]:
    """Return the categories in `sensitive`, in that order, or all with at most `MOST_VALUES` values if it is empty.

    Raises:
        InputError: For a name that is not a category of the set.
    """
    categories = {f.name: f for f in data.features if f.values}
    for name in sensitive:
        if name not in categories:
            near = nearest(name, list(categories)) if categories else "; it has no categories"
            raise InputError(f"sensitive: no category {name!r} in the set {data.name!r}{near}")
    if sensitive:
        return tuple(categories[name] for name in dict.fromkeys(sensitive))
    return tuple(f for f in categories.values() if len(f.values) <= MOST_VALUES)


def values_of(inputs: Tensor, feature: Feature) -> Tensor:
    """Return the index of each record's value of a category, (...) int64; -1 if it is unknown (all columns are 0).

    Args:
        inputs: (..., d), records.
    """
    columns = inputs[..., feature.start : feature.stop]
    return columns.argmax(-1).masked_fill(columns.amax(-1) == 0, -1)


def commonest(data: Dataset, feature: Feature) -> float:
    """Return the largest share of one value among the possible victims, or among public records, with a known value.

    It is the accuracy of the best constant guess; NaN if no record has a known value.
    """
    shares = [torch.nan]
    for records in (data.train_inputs[data.victims], data.public_inputs):
        values = values_of(records, feature)
        known = values[values >= 0]
        if len(known):
            shares.append(float(torch.bincount(known).max()) / len(known))
    return max(shares[1:], default=torch.nan)
