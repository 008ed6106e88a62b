"""Slot `augmentation`: changes of a client's batch before its gradients are computed.

The private data are the original examples, and every measure compares a reconstruction with them. The random draws are private:
the attacker knows the recipe, not the draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.recipe import Slot
from leakbench.core.types import Clock, Generators

__all__ = [
    "AUGMENTATION",
    "Augmentation",
    "Batch",
    "Copies",
    "ShowsLess",
    "applied",
    "check_pictures",
    "copies_of",
    "drawn",
    "is_random",
]


@dataclass(frozen=True)
class Batch:
    """The batches of several clients in one local iteration.

    Args:
        inputs: (lanes, B, *s).
        targets: (lanes, B, classes), soft labels.
        weights: (lanes, B); 0 marks padding.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor


@runtime_checkable
class Augmentation(Protocol):
    """One change of a batch.

    A part may say more about itself in attributes of its class:

    - `by_example`: whether each member of the result is a function of one example, and each example is in one member. Without it,
      no epsilon of one example follows (`leakbench.defense.facts` also measures it).
    - `copies`: number of members of the result for each example, 1 without it. The first B members belong to the B examples.
    - `random`: whether the result depends on random draws; true without it.
    - `outcomes()`: returns an augmentation for each possible draw of one example, if there are few, or for each draw of what
      matters most. An attacker that undoes the augmentation determines which of them it was.
    """

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        """Return the changed batch.

        Args:
            rngs: One generator per lane, the only source of randomness; see `drawn`. None leaves out what is random, as the
                attacker does on a guess.

        Raises:
            InputError: For inputs of another kind.
        """


@runtime_checkable
class ShowsLess(Protocol):
    """An augmentation with draws that no attacker can undo: what an augmented example shows is a function of it."""

    def shown(self, inputs: Tensor) -> Tensor:
        """Return what inputs (n, *s) show whatever was drawn, of the same shape."""


@runtime_checkable
class Copies(Protocol):
    """An augmentation that adds transformed copies, each of which shows its example."""

    def originals(self, members: Tensor) -> Tensor:
        """Return the possible originals (n k, *s) of members (n, *s) of an augmented batch, one for each of the k copies."""


def applied(augmentations: tuple[Augmentation, ...], batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
    """Return the batch after all augmentations, in order.

    Raises:
        InputError: For texts, whose inputs are not numbers that can be changed a little.
    """
    if augmentations and not batch.inputs.is_floating_point():
        raise InputError("inputs: an augmentation got the tokens of texts, expected pictures or tables")
    for augmentation in augmentations:
        batch = augmentation(batch, clock, rngs)
    return batch


def copies_of(augmentations: tuple[Augmentation, ...]) -> int:
    """Return the number of members of an augmented batch for each example."""
    copies = 1
    for augmentation in augmentations:
        copies *= int(getattr(augmentation, "copies", 1))
    return copies


def is_random(augmentation: Augmentation) -> bool:
    """Return whether the result of an augmentation depends on random draws."""
    return bool(getattr(augmentation, "random", True))


def check_pictures(inputs: Tensor, name: str) -> None:
    """Raise InputError for inputs (lanes, B, *s) that are not pictures (C, H, W).

    Args:
        inputs: The inputs.
        name: Name of the part, for the message.
    """
    if inputs.dim() != 5:
        raise InputError(f"{name}: got inputs of shape {tuple(inputs.shape[2:])}, expected pictures (C, H, W)")


def drawn(batch: Batch, rngs: Generators, draw: Callable[[int, torch.Generator], Tensor]) -> Tensor:
    """Draw numbers for the examples of each lane from the lane's own generator, without padding.

    Padding depends on the other lanes, so a lane's numbers would depend on them if it drew for its padding too.

    Args:
        batch: The batch.
        rngs: One generator per lane.
        draw: Called with the number n of a lane's examples and its generator; returns (n, ...).

    Returns:
        (lanes, B, ...), 0 for padding, on the device of the inputs.
    """
    real = (batch.weights > 0).cpu()
    numbers = [draw(int(lane.sum()), rng) for lane, rng in zip(real, rngs, strict=True)]
    whole = numbers[0].new_zeros(*real.shape, *numbers[0].shape[1:])
    for values, lane, own in zip(whole, real, numbers, strict=True):
        values[lane] = own
    return whole.to(batch.inputs.device)


AUGMENTATION = Slot("augmentation", ("leakbench.defense",))
