"""A synthetic table with two numbers and two categories, small enough to count by hand."""

import torch
from torch import Tensor

from leakbench.data.columns import Columns, columns_of
from leakbench.data.dataset import Dataset, Feature, everyone

FEATURES = (
    Feature("age", 0, 1, (), 0.0, 100.0),
    Feature("work", 1, 4, ("none", "some", "much")),
    Feature("pay", 4, 5, (), 0.0, 9.0),
    Feature("sex", 5, 7, ("a", "b")),
)


def records(n: int, seed: int = 0, unknown: float = 0.0) -> Tensor:
    """Return n random records (n, 7); the work of a share `unknown` of them is unknown."""
    rng = torch.Generator().manual_seed(seed)
    numbers = torch.rand(n, 2, generator=rng)
    work, sex = (torch.randint(k, (n,), generator=rng) for k in (3, 2))
    one_hot = torch.nn.functional.one_hot
    known = (torch.rand(n, 1, generator=rng) >= unknown).float()
    return torch.cat([numbers[:, :1], one_hot(work, 3) * known, numbers[:, 1:], one_hot(sex, 2).float()], 1).float()


def dataset(n: int = 60, seed: int = 0) -> Dataset:
    """Return a data set of n training and n test records in two classes."""
    train, test = records(n, seed), records(n, seed + 1)
    labels = [(x[:, 1] + x[:, 5] > 0).long() for x in (train, test)]
    halves = (train, labels[0], test, labels[1])
    return Dataset("small", "tabular", *halves, ("no", "yes"), everyone(labels[0]), "made up", FEATURES)


def layout(n: int = 60) -> Columns:
    """Return its columns."""
    columns = columns_of(dataset(n))
    assert columns is not None
    return columns
