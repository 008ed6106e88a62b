"""Slot `labels`: the labels of other parts in a random order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from leakbench.attack.needs import Needs
from leakbench.attack.slots.labels import (
    Given,
    LabelGuess,
    Labels,
    LastLayer,
    LastLayerCounts,
    LastLayerCountsBothEnds,
)
from leakbench.core.part import part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["Shuffled"]

PARTS: Mapping[str, Labels] = {
    "last_layer": LastLayer(),
    "last_layer_counts": LastLayerCounts(),
    "last_layer_counts_both_ends": LastLayerCountsBothEnds(),
    "given": Given(),
}


@part("labels.shuffled")
class Shuffled:
    """Put the labels of another part into a random order.

    An update of several batches depends on the order of its labels, which their counts do not show. Sorted labels would give
    batches of one class. With `given`, only the counts of the true labels are used.
    """

    of: Annotated[
        Literal["last_layer", "last_layer_counts", "last_layer_counts_both_ends", "given"],
        Field(description="Part that gives the labels."),
    ] = "last_layer_counts"

    @property
    def needs(self) -> Needs:
        """The needs of the part that gives the labels."""
        needs: Needs = getattr(PARTS[self.of], "needs", Needs())
        return needs

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return the labels of each victim in another order."""
        guess = PARTS[self.of](view, rngs)
        orders = torch.stack([torch.randperm(view.examples, generator=rng) for rng in rngs]).to(guess.targets.device)
        return replace(guess, targets=guess.targets.gather(1, orders[..., None].expand_as(guess.targets)))
