"""How many examples of each class stand behind an update, from the last layer's gradient and public examples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakbench.attack.public import public_of
from leakbench.defense.transform import Stations
from leakbench.errors import InputError
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.types import Generators, Parameters

__all__ = ["label_counts", "rounded"]


def label_counts(view: View, rngs: Generators) -> Tensor:
    """Return (V, classes) int64 that sum to the M examples behind the update; rngs are not drawn from.

    With features h_i, probabilities p_i and one-hot labels y_i the last layer's gradient is the mean over M examples of
    (p_i - y_i) h_i^T for the weights and of p_i - y_i for the bias. An attacker who puts E[p] and E[h] of public examples for
    those of the batch reads the share of each class off either: E[p] - db where there is a bias (Geng et al. 2021,
    arXiv:2110.09074), else the least-squares solution of E[p h^T] - dW = share E[h]^T. Exact where public and private examples
    have the same means; the sign rules (iDLG, LLG) are the case of E[p] near 0. Of an update of several local iterations
    the means are those at the model that was sent.
    Raises InputError where there is no public example or no last layer of one row for each class.
    """
    if view.classes == 1:  # Nothing to tell apart.
        like = next(iter(view.update.values()))
        return torch.full((view.victims, 1), view.examples, device=like.device)
    name, slope, expected = _of_public(view)
    seen = view.update[name].flatten(2) if view.update[name].dim() > 2 else view.update[name][..., None]
    share = ((expected - seen) * slope[:, None]).sum(2) / slope.square().sum(1, keepdim=True).clamp_min(1e-30)
    return rounded(share * view.examples, view.examples)


def rounded(wanted: Tensor, total: int) -> Tensor:
    """Return the counts (V, classes), integers >= 0 that sum to `total`, of least squared distance to real numbers."""
    counts = torch.zeros_like(wanted, dtype=torch.int64)
    lanes = torch.arange(len(wanted), device=wanted.device)
    for _ in range(
        total
    ):  # What one more example of a class brings falls with each, so that the greedy choice is the best.
        counts[lanes, (wanted.nan_to_num() - counts).argmax(1)] += 1
    return counts


def _of_public(view: View) -> tuple[str, Tensor, Tensor]:
    """Return (parameter, slope (lanes, f), E[(p) h^T] (lanes, classes, f)) over public examples; f = 1 and slope 1 for a bias.

    Both come from two mean gradients, as if all labels were 0 and as if all were 1: their first rows differ by E[h].
    """
    public = public_of(view, "last_layer_counts")
    weight, bias = _last_layer(view.update, view.classes)
    lanes = 1 if view.network.shared else view.victims
    alone = replace(
        view, tap="type-1", update={}, cohort=1, local_steps=1, batch=len(public.labels), stations=Stations()
    )
    x = public.inputs.expand(lanes, *public.inputs.shape).to(view.update[weight])
    name = bias or weight

    def gradient(label: int) -> Tensor:
        labels = torch.full(x.shape[:2], label, device=x.device)
        found = alone.respond(x, one_hot(labels, view.classes).to(x))[name].detach()
        return found.flatten(2) if bias is None else found[..., None]

    zeros, ones = gradient(0), gradient(1)
    slope = ones[:, 0] - zeros[:, 0]
    ones[:, 1] += slope
    return name, slope, ones


def _last_layer(update: Parameters, classes: int) -> tuple[str, str | None]:
    """Return the names of the last layer's weights and of its bias, None where it has none."""
    name = [n for n, u in update.items() if u.dim() > 2][-1]
    if update[name].shape[1] != classes:
        raise InputError(
            f"labels: the last layer {name!r} has {update[name].shape[1]} rows, expected {classes}, one a class"
        )
    bias = name.removesuffix("weight") + "bias"
    return name, bias if bias in update else None
