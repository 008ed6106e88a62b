"""The answer of an attacker that does not search."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.distance import SquaredL2
from leakbench.attack.labels import LastLayer
from leakbench.federated.leakage import View
from leakbench.types import Fit, Generators, Reconstruction

__all__ = ["answered_at_once"]


def answered_at_once(
    views: tuple[View, ...], inputs: Tensor, rngs: Generators, fit: Fit | None = None
) -> Reconstruction:
    """Return inputs (V, M, *s) as the answer after one step and one evaluation, with labels from the last layer.

    The certainty is minus the squared distance of what the answers would have leaked, over all views.
    """
    view = views[0]
    targets = LastLayer()(view, rngs).targets
    with torch.no_grad():
        each = [SquaredL2()(v.respond(inputs, targets.to(inputs)), v.update, v) for v in views]
    distance = torch.stack(each).sum(0)
    once = torch.ones(view.victims, dtype=torch.int64, device=inputs.device)
    return Reconstruction(
        inputs=inputs,
        labels=targets.argmax(-1),
        certainty=-distance[:, None].expand(-1, view.examples),
        trajectory=distance[None],
        steps=once,
        evaluations=once,
        iterates=inputs[None],
        snapshots=(1,),
        spent=once[None],
        fit=fit,
    )
