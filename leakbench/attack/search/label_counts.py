"""Counts the examples of each class in an update, from the last layer's gradient and public examples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakbench.attack.public import public_of
from leakbench.core.types import Generators
from leakbench.defense.transform import Stations
from leakbench.federated.optimizer import linear_steps
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.layers import classifier_of

__all__ = ["label_counts", "rounded"]


def label_counts(view: View, rngs: Generators, both_ends: bool = False) -> Tensor | None:
    """Return the numbers of examples (V, classes) int64 of each class among the M examples of an update.

    For features h_i, probabilities p_i and one-hot labels y_i, the last layer's gradient is the mean over M examples of
    (p_i - y_i) h_i^T for the weights and of p_i - y_i for the bias. With E[p] and E[h] of public examples in place of those of the
    batch, the share of each class is E[p] - db with a bias (Geng et al. 2021, arXiv:2110.09074), and otherwise the least-squares
    solution of E[p h^T] - dW = share E[h]^T. It is exact if public and private examples have the same means. The sign rules (iDLG,
    LLG) are the case of E[p] near 0. For an update of several local iterations, the means are those at the sent model, or the
    average of those at the sent and at the returned model (Dimitrov et al., TMLR 2022, who interpolate between the two).

    Args:
        view: The view of V victims.
        rngs: Not used.
        both_ends: Whether to use the returned model too.

    Returns:
        None if no trained layer answers with the class.

    Raises:
        InputError: If the view has no public examples.
    """
    if view.classes == 1:  # All examples have the only class.
        like = view.like
        return torch.full((view.victims, 1), view.examples, device=like.device)
    found = classifier_of(view.network.model, view.shape, view.update)
    name = None if found is None else found.bias or found.weight
    if name is None:
        return None
    slope, expected = _of_public(view, name)
    if both_ends and view.local_steps > 1:
        length = view.learning_rate * linear_steps(view.clock, view.learning_rate, view.local_steps).length
        end_slope, end = _of_public(replace(view, network=view.network.moved(view.update, length)), name)
        slope, expected = (slope + end_slope) / 2, (expected + end) / 2
    gradient = view.update[name].flatten(2) if view.update[name].dim() > 2 else view.update[name][..., None]
    share = ((expected - gradient) * slope[:, None]).sum(2) / slope.square().sum(1, keepdim=True).clamp_min(1e-30)
    return rounded(share * view.examples, view.examples)


def rounded(wanted: Tensor, total: int) -> Tensor:
    """Return the integers >= 0 (V, classes) that sum to `total` and have the least squared distance to the numbers `wanted`."""
    counts = torch.zeros_like(wanted, dtype=torch.int64)
    lanes = torch.arange(len(wanted), device=wanted.device)
    # The greedy choice is optimal, since each further example of a class reduces the distance by less.
    for _ in range(total):
        counts[lanes, (wanted.nan_to_num() - counts).argmax(1)] += 1
    return counts


def _of_public(view: View, name: str) -> tuple[Tensor, Tensor]:
    """Return (slope (lanes, f), E[p h^T] (lanes, classes, f)) of a parameter over public examples; f = 1 and slope 1 for a bias.

    Both come from two mean gradients, one with all labels 0 and one with all labels 1. Their first rows differ by E[h].
    """
    public = public_of(view, "last_layer_counts")
    lanes = 1 if view.network.shared else view.victims
    alone = replace(
        view,
        tap="type-1",
        update={},
        cohort=1,
        local_steps=1,
        epochs=1,
        apart=False,
        batch=len(public.labels),
        stations=Stations(),
    )
    x = public.inputs.expand(lanes, *public.inputs.shape).to(view.like)

    def gradient(label: int) -> Tensor:
        labels = torch.full(x.shape[:2], label, device=x.device)
        gradients = alone.respond(x, one_hot(labels, view.classes).to(x))[name].detach()
        return gradients.flatten(2) if gradients.dim() > 2 else gradients[..., None]

    zeros, ones = gradient(0), gradient(1)
    slope = ones[:, 0] - zeros[:, 0]
    ones[:, 1] += slope
    return slope, ones
