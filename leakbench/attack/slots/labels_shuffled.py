"""Slot `labels`: the labels of other parts in a random order."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch

from leakbench.attack.slots.labels import LABELS, LabelGuess, Labels
from leakbench.core.part import part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["Shuffled"]


@part("labels.shuffled")
class Shuffled:
    """Put the labels of another part into a random order.

    An update of several batches depends on the order of its labels, which their counts do not show. Sorted labels would give
    batches of one class. After true labels, only their counts are used.
    """

    of: Annotated[Labels, LABELS]

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return the labels of each victim in an order of its own."""
        guess = self.of(view, rngs)
        orders = torch.stack([torch.randperm(view.examples, generator=rng) for rng in rngs]).to(guess.targets.device)
        return replace(guess, targets=guess.targets.gather(1, orders[..., None].expand_as(guess.targets)))
