"""Pictures at another size."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.data.dataset import Dataset

__all__ = ["MOST_VALUES", "resized"]

MOST_VALUES = 250_000_000
"""Largest number of pixel values of a resized data set, which are 1 GB: CIFAR-10 at 224 x 224 would be 36 GB."""

CHUNK = 1000
"""Number of pictures that are resized at once."""


def resized(data: Dataset, size: int) -> Dataset:
    """Return a data set of pictures at another size, bilinear and with antialiasing.

    If the values would be more than `MOST_VALUES`, every k-th training example of each class and every k-th test example stay,
    with the smallest k that is enough.

    Args:
        data: The data set, also with known sizes only. Pictures that have the size already are not changed.
        size: Height and width.

    Raises:
        InputError: For a data set without pictures.
    """
    if data.kind != "image":
        raise InputError(f"size: got {size}, but {data.name!r} holds no pictures; leave it out")
    note = ""
    if data.shape[1:] != (size, size):
        tall, wide = data.shape[1:]
        smoother = ", which are smoother than photographs of that size" if size > min(tall, wide) else ""
        note = f"pictures of {tall} x {wide} resized to {size} x {size}{smoother}"
    values = (len(data.train_targets) + len(data.test_targets)) * data.shape[0] * size**2
    every = -(-values // MOST_VALUES)
    if every > 1:
        data = _every(data, every)
        note = f"{note or f'pictures of {size} x {size}'}; only one of {every} examples, to fit into memory"
    train, test = (_at(inputs, size) for inputs in (data.train_inputs, data.test_inputs))
    content = f"{data.content}, {note}" if note and data.content else data.content
    notes = "; ".join(filter(None, (data.resized, note)))
    return dataclasses.replace(data, train_inputs=train, test_inputs=test, content=content, resized=notes)


def _at(inputs: Tensor, size: int) -> Tensor:
    if inputs.shape[2:] == (size, size):
        return inputs
    at_size = inputs.new_empty(*inputs.shape[:2], size, size)
    if not inputs.is_meta:
        for small, large in zip(torch.split(inputs, CHUNK), torch.split(at_size, CHUNK), strict=True):
            # Rounding may leave [0, 1].
            large.copy_(nn.functional.interpolate(small, (size, size), mode="bilinear", antialias=True).clamp_(0, 1))
    return at_size


def _every(data: Dataset, k: int) -> Dataset:
    """Return every k-th training example of each class, in their order, and every k-th test example.

    The number of training examples of each class follows from the sizes alone, so a plan without examples has the same.
    """
    one_hot = nn.functional.one_hot(data.train_targets, data.classes)
    place = (one_hot.cumsum(0) - one_hot).gather(1, data.train_targets[:, None])[:, 0]
    train = (place % k == 0).nonzero()[:, 0]
    may_be_victim = torch.zeros(len(place), dtype=torch.bool).index_fill(0, data.victims, True)
    public = data.public
    if public is not None:
        known = torch.zeros(len(data.test_targets), dtype=torch.bool).index_fill(0, public, True)
        public = known[::k].nonzero()[:, 0]
    targets = data.targets
    if targets is not None:
        targets = dataclasses.replace(targets, train=targets.train[train], test=targets.test[::k])
    return dataclasses.replace(
        data,
        train_inputs=data.train_inputs[train],
        train_targets=data.train_targets[train],
        test_inputs=data.test_inputs[::k],
        test_targets=data.test_targets[::k],
        victims=may_be_victim[train].nonzero()[:, 0],
        public=public,
        groups=None if data.groups is None else data.groups[train],
        targets=targets,
    )
