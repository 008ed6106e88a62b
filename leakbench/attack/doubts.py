"""What makes an attacker doubt that a better one would have failed too, after the flags of AutoAttack."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import logits_of
from leakbench.federated.view import View
from leakbench.models import one_hot

__all__ = ["BUDGET", "OUTDONE", "STUCK", "UNCHECKED", "UNCONVERGED", "UNKNOWN", "stuck", "twins"]

# Keys of answers, rows and summaries; `leakbench.summary.warnings` words them.
STUCK = "stuck"
OUTDONE = "outdone"
UNCONVERGED = "unconverged"
UNKNOWN = "unknown"
UNCHECKED = "unchecked"
BUDGET = "budget"


def stuck(found: Reconstruction) -> Tensor:
    """Return (V,): whose search of several iterations never came below the distance of its start, or had none.

    A victim for which a method took no step was not searched.
    """
    if len(found.trajectory) < 2:
        return torch.zeros_like(found.steps, dtype=torch.bool)
    return ~(-found.certainty[:, 0] < found.trajectory[0]) & (found.steps > 0)


def twins(view: View, most: int) -> View | None:
    """Return the view of at most so many victims whose examples are public, and undefended; None where these are too few.

    Whoever does not rebuild them without a defense shows nothing by failing behind one.
    """
    public, each = view.public, view.examples
    many = 0 if public is None else min(most, len(public.labels) // each)
    if public is None or not many:
        return None
    like = next(iter(view.update.values()))
    inputs = public.inputs[: many * each].to(like).reshape(many, each, *view.shape)
    labels = public.labels[: many * each].reshape(many, each)
    alike = view.of(torch.zeros(many, dtype=torch.int64, device=like.device))
    bare = dataclasses.replace(alike, stations=Stations(), noise=None, unknown="")
    with torch.no_grad():
        update = bare.respond(inputs, one_hot(labels, view.classes).to(like))
    logits = None if view.logits is None else logits_of(bare.network, inputs)
    return dataclasses.replace(bare, update=update, labels=None if view.labels is None else labels, logits=logits)
