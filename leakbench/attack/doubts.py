"""Doubts: signs that an attack is weak, so that its failure does not show that a defense is strong (as the flags of AutoAttack)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from leakbench.core.answers import Reconstruction
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import logits_of
from leakbench.federated.view import View

__all__ = ["BUDGET", "OUTDONE", "RANK", "STUCK", "UNCHECKED", "UNCONVERGED", "UNKNOWN", "stuck", "twins"]

# Keys in reconstructions, rows and summaries. `leakbench.summary.warnings` has their texts.
STUCK = "stuck"
OUTDONE = "outdone"
UNCONVERGED = "unconverged"
UNKNOWN = "unknown"
UNCHECKED = "unchecked"
BUDGET = "budget"
RANK = "rank"


def stuck(answer: Reconstruction) -> Tensor:
    """Return (V,) bool: whether a search of several iterations never got below the distance of its start.

    A victim whose search took no step does not count as stuck.
    """
    if len(answer.trajectory) < 2:
        return torch.zeros_like(answer.steps, dtype=torch.bool)
    return ~(-answer.certainty[:, 0] < answer.trajectory[0]) & (answer.steps > 0)


def twins(view: View, most: int) -> View | None:
    """Return the undefended view of public examples in place of the victims, to test an attack on known examples.

    An attack that fails on them proves nothing by failing under a defense.

    Args:
        view: The view of the victims.
        most: Largest number of groups of M public examples.

    Returns:
        A view like `view`; None if there are fewer than M public examples.
    """
    public, each = view.public, view.examples
    many = 0 if public is None else min(most, len(public.labels) // each)
    if public is None or not many:
        return None
    like = view.like
    few = public.first(many * each)
    inputs = few.inputs.to(like).reshape(many, each, *view.shape)
    targets = few.targets(view.classes).to(like).reshape(many, each, -1)
    alike = view.of(torch.zeros(many, dtype=torch.int64, device=like.device))
    bare = dataclasses.replace(alike, stations=Stations(), noise=None, unknown="")
    with torch.no_grad():
        update = bare.respond(inputs, targets)
    logits = None if view.logits is None else logits_of(bare.network, inputs)
    return dataclasses.replace(
        bare, update=update, labels=None if view.labels is None else few.labels.reshape(many, each), logits=logits
    )
