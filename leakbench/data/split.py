"""The split of sets that come in one piece: stratified by class, the same on every machine."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.part import Probability

__all__ = ["Split", "SplitSeed", "TestShare", "apportion", "split"]

TestShare: TypeAlias = Annotated[Probability, Field(description="Share of test examples in the stratified split.")]
SplitSeed: TypeAlias = Annotated[int, Field(description="Seed of the stratified split.")]

Counts = np.ndarray[tuple[int], np.dtype[np.int64]]

Split = tuple[Tensor, Tensor]
"""(training indices, test indices), each sorted."""


def split(targets: Tensor, test_share: float, seed: int) -> Split:
    """Split examples with labels `targets` (n,) so that exactly ceil(test_share * n) are test examples.

    Each class contributes its share, rounded by the largest remainder. The shuffle is NumPy's PCG64 from `seed`.
    """
    labels = targets.numpy()
    rng = np.random.Generator(np.random.PCG64(seed))
    order = rng.permutation(len(labels))
    takes = apportion(np.bincount(labels), math.ceil(test_share * len(labels)))
    rank = np.empty(len(labels), dtype=np.int64)
    for label in range(len(takes)):
        members = order[labels[order] == label]
        rank[members] = np.arange(len(members))
    test = rank < takes[labels]
    return torch.from_numpy(np.flatnonzero(~test)), torch.from_numpy(np.flatnonzero(test))


def apportion(sizes: Counts, seats: int) -> Counts:
    """Return the number of `seats` of each class, in proportion to `sizes`, by the largest remainder."""
    exact = sizes * seats / sizes.sum()
    takes: Counts = np.floor(exact).astype(np.int64)
    for label in np.argsort(takes - exact, kind="stable")[: seats - int(takes.sum())]:
        takes[label] += 1
    return takes
