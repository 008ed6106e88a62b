"""Slot `labels`: what the attacker takes the labels to be, or how it searches for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.attack.needs import Needs
from leakbench.attack.search.label_counts import label_counts
from leakbench.errors import InputError
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.part import part
from leakbench.recipe import Slot
from leakbench.types import Generators

__all__ = ["LABELS", "Given", "Joint", "LabelGuess", "Labels", "LastLayer", "LastLayerCounts"]


@dataclass(frozen=True)
class LabelGuess:
    """targets: (V, M, classes) one-hot guesses, or logits that are searched jointly with the inputs where `joint`."""

    targets: Tensor
    joint: bool


@runtime_checkable
class Labels(Protocol):
    """Says what labels a search starts from."""

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return the guess for every victim of the view."""


@part("labels.joint")
class Joint:
    """Search the labels with the inputs, as logits that start from N(0, 1) (DLG: Zhu et al., NeurIPS 2019, Algorithm 1)."""

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return random logits (V, M, classes)."""
        like = next(iter(view.update.values()))
        logits = torch.stack([torch.randn(view.examples, view.classes, generator=rng) for rng in rngs])
        return LabelGuess(logits.to(like), joint=True)


@part("labels.last_layer")
class LastLayer:
    """Read the labels from the gradient of the last layer's weights (iDLG: Zhao et al., 2020, eq. 4 to 6).

    With features that are never negative (sigmoid, ReLU), only the row of a true class can have a negative sum: for one example,
    the argmin over rows. For M examples, a row is taken M times in turn: each time the lowest row, which then gives up the share
    that one example contributes (the sum of all negative rows over M).
    """

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return one-hot guesses, in ascending order of the class; raises InputError for a last layer of other rows."""
        weights = [u for u in view.update.values() if u.dim() > 2]
        if not weights or weights[-1].shape[1] != view.classes:
            got = f"{weights[-1].shape[1]} rows" if weights else "no weights"
            raise InputError(
                f"labels: the last layer has {got}, expected {view.classes}, one a class; try labels: joint"
            )
        rows = weights[-1].flatten(2).sum(2).clone()
        share = rows.clamp_max(0).sum(1) / view.examples
        taken = []
        for _ in range(view.examples):
            lowest = rows.argmin(1)
            taken.append(lowest)
            rows[torch.arange(len(rows)), lowest] -= share
        labels = torch.stack(taken, 1).sort(1).values
        return LabelGuess(one_hot(labels, view.classes).to(rows), joint=False)


@part("labels.last_layer_counts")
class LastLayerCounts:
    """Count the labels from the last layer's gradient and public examples, including repeated classes: see `label_counts`."""

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return one-hot guesses, in ascending order of the class; raises InputError where there is no public example."""
        counts = label_counts(view, rngs)
        classes = torch.arange(view.classes, device=counts.device).expand_as(counts)
        labels = classes.flatten().repeat_interleave(counts.flatten()).reshape(len(counts), view.examples)
        return LabelGuess(one_hot(labels, view.classes).to(next(iter(view.update.values()))), joint=False)


@part("labels.given")
class Given:
    """Use the true labels, in the order in which the clients used them: an oracle, which the threat model must grant."""

    needs: ClassVar[Needs] = Needs(labels=True)

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return them one-hot; raises InputError where the view does not show them."""
        if view.labels is None:
            raise InputError("labels: 'given' needs a view that shows the true labels; this one does not")
        return LabelGuess(one_hot(view.labels, view.classes).to(next(iter(view.update.values()))), joint=False)


LABELS = Slot("labels", ("leakbench.attack.slots",))
