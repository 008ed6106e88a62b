"""Slot `labels`: the labels of the guesses, inferred, given or searched."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.attack.front import answering_layer, outputs_of, quotient
from leakbench.attack.needs import Needs
from leakbench.attack.public import FEW, has_public, public_of
from leakbench.attack.search.label_counts import label_counts
from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.recipe import Slot
from leakbench.core.task import heads_of
from leakbench.core.types import Generators
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import logits_of
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.batch_norm import mixes_examples
from leakbench.models.layers import classifier_of

__all__ = [
    "LABELS",
    "Given",
    "Joint",
    "LabelGuess",
    "Labels",
    "LastLayer",
    "LastLayerCounts",
    "LastLayerCountsBothEnds",
    "LastLayerSoft",
    "Solved",
    "solved_targets",
    "with_labels",
]


@dataclass(frozen=True)
class LabelGuess:
    """Guessed labels.

    Args:
        targets: (V, M, classes), one-hot; logits if `joint`. For other tasks than classes (V, M, k), and free numbers if `joint`.
        joint: Whether the labels are searched together with the inputs.
    """

    targets: Tensor
    joint: bool


@runtime_checkable
class Labels(Protocol):
    """Chooses the labels with which a search starts."""

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return the guess for every victim of the view."""


@part("labels.joint")
class Joint:
    """Search the labels with the inputs, as logits that start from N(0, 1) (DLG: Zhu et al., NeurIPS 2019, Algorithm 1)."""

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return random logits (V, M, classes)."""
        like = view.like
        logits = torch.stack([torch.randn(view.examples, view.classes, generator=rng) for rng in rngs])
        heads = heads_of(view.network.model)
        return LabelGuess(logits.to(like) if heads is None else heads.start(logits.to(like)), joint=True)


@part("labels.last_layer")
class LastLayer:
    """Read the labels from the gradient of the last layer's weights (iDLG: Zhao et al., 2020, eq. 4 to 6).

    If features are never negative (sigmoid, ReLU), only the row of a true class can have a negative sum; for one example, it is the
    row with the lowest sum. For M examples, the lowest row is taken M times. Each time, the contribution of one example (the sum of
    all negative rows divided by M) is subtracted from it. If features can be negative, the bias is read in the same way, whose
    feature is 1. Without a bias, the label of one example is that of the longest row, and those of several are counted
    (`label_counts`). Labels are searched, as by `Joint`, if no trained layer answers with the class.
    """

    needs: ClassVar[Needs] = Needs(classes=True)

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return one-hot labels in ascending order, or random logits for a search."""
        if view.classes == 1:  # All examples have the only class.
            return LabelGuess(torch.ones(view.victims, view.examples, 1).to(view.like), joint=False)
        found = classifier_of(view.network.model, view.shape, view.update)
        if found is None:
            return Joint()(view, rngs)
        if found.weight is not None and not found.signed:
            rows = view.update[found.weight].flatten(2).sum(2).clone()
        elif found.bias is not None:
            rows = view.update[found.bias].clone()
        elif found.weight is not None and view.examples == 1:
            rows = -view.update[found.weight].flatten(2).norm(dim=2)
        else:
            return LastLayerCounts()(view, rngs) if has_public(view) else Joint()(view, rngs)
        share = rows.clamp_max(0).sum(1) / view.examples
        picks = []
        for _ in range(view.examples):
            lowest = rows.argmin(1)
            picks.append(lowest)
            rows[torch.arange(len(rows)), lowest] -= share
        labels = torch.stack(picks, 1).sort(1).values
        return LabelGuess(one_hot(labels, view.classes).to(rows), joint=False)


@part("labels.last_layer_counts")
class LastLayerCounts:
    """Count the labels from the last layer's gradient and public examples, including repeated classes: see `label_counts`.

    Labels are searched, as by `Joint`, if no trained layer answers with the class.
    """

    needs: ClassVar[Needs] = Needs(classes=True)

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return one-hot labels in ascending order, or random logits; raises InputError if the view has no public examples."""
        return _counted(view, rngs)


@part("labels.last_layer_counts_both_ends")
class LastLayerCountsBothEnds:
    """Count the labels of an update of several local iterations with public examples at the sent and at the returned model.

    See `label_counts`; Dimitrov et al. (TMLR 2022) interpolate between the two models.
    """

    needs: ClassVar[Needs] = Needs(classes=True)

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return one-hot labels in ascending order, or random logits; raises InputError if the view has no public examples."""
        return _counted(view, rngs, both_ends=True)


def _counted(view: View, rngs: Generators, both_ends: bool = False) -> LabelGuess:
    """Return one-hot labels in ascending order by `label_counts`; random logits for a network without a classifier."""
    counts = label_counts(view, rngs, both_ends)
    if counts is None:
        return Joint()(view, rngs)
    classes = torch.arange(view.classes, device=counts.device).expand_as(counts)
    labels = classes.flatten().repeat_interleave(counts.flatten()).reshape(len(counts), view.examples)
    return LabelGuess(one_hot(labels, view.classes).to(view.like), joint=False)


@part("labels.last_layer_soft")
class LastLayerSoft:
    """Read the soft label of one example from the gradient p - y of the last layer's bias (iDLG: Zhao et al., 2020, eq. 3).

    The network's probabilities p are taken as their mean over public examples, so that mixed labels are read too.
    """

    needs: ClassVar[Needs] = Needs(classes=True, alone=True, public=FEW)

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return labels (V, 1, classes) that are not negative and add up to 1.

        Raises:
            InputError: For several examples, networks that differ between victims, and a last layer without bias.
        """
        answering = classifier_of(view.network.model, view.shape, view.update)
        name = None if answering is None else answering.bias
        if view.examples > 1 or not view.network.shared or name is None:
            raise InputError(
                "labels: last_layer_soft reads one example's gradient of the last layer's bias at one network, which this view"
                " does not show; try labels: last_layer"
            )
        last = view.update[name]
        public = public_of(view, "last_layer_soft").inputs.to(last)
        probabilities = logits_of(view.network, public[None])[0].softmax(1).mean(0)
        found = (probabilities - last).clamp_min(0)
        # A leak that no label explains says nothing beyond the network's own probabilities.
        found = found.where(found.sum(1, keepdim=True) != 0, probabilities)
        return LabelGuess((found / found.sum(1, keepdim=True))[:, None], joint=False)


@part("labels.given")
class Given:
    """Use the true labels, in the order in which the clients used them: an oracle, which the threat model must grant.

    After several epochs, in which the order changes, the labels of each client are in ascending order.
    """

    needs: ClassVar[Needs] = Needs(labels=True)

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return one-hot labels; raises InputError if the view does not contain the true labels."""
        if view.labels is None:
            raise InputError("labels: 'given' needs a view that shows the true labels; this one does not")
        labels = view.labels
        if view.epochs > 1:  # The attacker does not know the orders.
            labels = labels.reshape(view.victims, view.cohort, -1).sort(2).values.flatten(1)
        return LabelGuess(one_hot(labels, view.classes).to(view.like), joint=False)


@part("labels.solved")
class Solved:
    """Solve the targets of one example from the gradient of the last layer, if it is a biased linear layer; else search them.

    The bias has the gradient d = dL/dz, and a quotient of gradients shows the layer's input h, so that z = W h + b is known. For
    classes, the only negative number of d = softmax(z) - y is the true one. For k labels, d = (sigmoid(z) - y) / k is negative
    where a label is 1. For k numbers, d = 2 (z - y) / k. Numbers need the exact gradient; behind a defense that the attacker knows
    they are searched, and so are the targets of a user's own loss.
    """

    def __call__(self, view: View, rngs: Generators) -> LabelGuess:
        """Return solved targets (V, M, k), or free numbers for a search as `joint` does."""
        targets = solved_targets(view)
        return Joint()(view, rngs) if targets is None else LabelGuess(targets, joint=False)


def solved_targets(view: View) -> Tensor | None:
    """Return the targets (V, 1, k) of one example from the last layer's gradient, see `Solved`; None if it does not show them."""
    heads = heads_of(view.network.model)
    plain = view.examples == 1 and view.of_gradients and view.secret is None and not mixes_examples(view.network.model)
    if heads is None or heads.function is not None or not plain:
        return None
    last = answering_layer(view.network, view.shape)
    if last is None or not last.biased or last.drawn:
        return None
    delta = heads.split(view.update[f"{last.name}bias"])
    once = view.tap == "type-2" or view.local_steps == 1
    exact = once and view.stations.before(view.tap) == Stations() and not view.noise and not view.unknown
    if any(head.kind == "numbers" for head in heads.heads) and not exact:
        return None
    outputs = heads.split(outputs_of(view, last, quotient(view, last)[0]).to(view.like)) if exact else delta
    parts = []
    for head, d, z in zip(heads.heads, delta, outputs, strict=True):
        if head.kind == "classes":
            parts.append(one_hot(d.argmin(-1), head.width).to(d))
        else:
            parts.append((d < 0).to(d) if head.kind == "labels" else z - d * head.size / 2)
    return heads.joined(tuple(parts))[:, None]


def with_labels(part: Any, labels: Any) -> Any:
    """Return a part in which `labels` replaces every part that reads labels off the last layer, at any depth."""
    if isinstance(part, LastLayer | LastLayerCounts | LastLayerCountsBothEnds | LastLayerSoft):
        return labels
    if isinstance(part, tuple):
        return tuple(with_labels(inner, labels) for inner in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changed = {f.name: with_labels(getattr(part, f.name), labels) for f in dataclasses.fields(part) if f.init}
    return dataclasses.replace(part, **changed)


LABELS = Slot("labels", ("leakbench.attack.slots",))
