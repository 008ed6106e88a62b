"""Pictures made up for timing, so that no data set has to be there: smooth, in [0, 1], of one size."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.data.dataset import Dataset, everyone
from leakbench.rng import generator

__all__ = ["made_up"]


def made_up(train: int, test: int, shape: tuple[int, int, int], classes: int = 10) -> Dataset:
    """Return so many pictures of a shape (C, H, W): coarse uniform noise, a fourth of a side, blown up; labels in turn."""
    drawn = {n: _smooth(n, count, shape) for n, count in (("train", train), ("test", test))}
    targets = {n: torch.arange(len(x)) % classes for n, x in drawn.items()}
    return Dataset(
        name="made up",
        kind="image",
        train_inputs=drawn["train"],
        train_targets=targets["train"],
        test_inputs=drawn["test"],
        test_targets=targets["test"],
        class_names=tuple(map(str, range(classes))),
        victims=everyone(targets["train"]),
        content="made up",
    )


def _smooth(split: str, count: int, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    coarse = torch.rand(count, channels, -(-height // 4), -(-width // 4), generator=generator(0, f"bench {split}"))
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear").clamp_(0, 1)
