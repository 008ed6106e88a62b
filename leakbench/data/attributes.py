"""Attributes: the categories of a table that an attacker may want to know of a person."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakbench.data.dataset import Dataset, Feature
from leakbench.errors import InputError, nearest

__all__ = ["MOST_VALUES", "attributes_of", "commonest", "values_of"]

MOST_VALUES = 20
"""Of a category with more, most have hardly a public example."""


def attributes_of(data: Dataset, sensitive: Sequence[str] = ()) -> tuple[Feature, ...]:
    """Return the categories that `sensitive` names, in that order, else all of at most 20 values; none for pictures.

    Raises InputError for a name that no category of the set has.
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
    """Return which value of a category the records (..., d) have, (...) int64; -1 where it is unknown, all columns being 0."""
    columns = inputs[..., feature.start : feature.stop]
    return columns.argmax(-1).masked_fill(columns.amax(-1) == 0, -1)


def commonest(data: Dataset, feature: Feature) -> float:
    """Return the largest share of one value among those who may be victims, or among public records, that know theirs.

    It is how often the best constant guess is right; NaN where no record knows.
    """
    shares = [torch.nan]
    for records in (data.train_inputs[data.victims], data.public_inputs):
        values = values_of(records, feature)
        known = values[values >= 0]
        if len(known):
            shares.append(float(torch.bincount(known).max()) / len(known))
    return max(shares[1:], default=torch.nan)
