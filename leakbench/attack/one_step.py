"""Reconstructions of attacks that do not search."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from leakbench.attack.slots.distance import SquaredL2
from leakbench.attack.slots.labels import LastLayer, solved_targets
from leakbench.core.answers import Fit, Reconstruction
from leakbench.core.task import heads_of
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models import one_hot

__all__ = ["answered_at_once", "likeliest"]


def answered_at_once(
    views: tuple[View, ...],
    inputs: Tensor,
    rngs: Generators,
    fit: Fit | None = None,
    labels: Tensor | None = None,
    certainty: Tensor | None = None,
) -> Reconstruction:
    """Return inputs as a reconstruction after one step and one evaluation.

    Args:
        views: Views of V victims.
        inputs: Reconstructed inputs (V, M, *s).
        rngs: Victim v draws from rngs[v].
        fit: What the attack learned before.
        labels: (V, M) int64, labels that the attack has read; None for those of `LastLayer`.
        certainty: (V, M); None for minus the squared distance of the reconstruction's gradients from the observed ones, summed
            over the views.
    """
    view = views[0]
    targets = _targets(view, rngs) if labels is None else one_hot(labels, view.classes)
    heads = heads_of(view.network.model)
    with torch.no_grad():
        each = [SquaredL2()(v.respond(inputs, targets.to(inputs)), v.update, v) for v in views]
    distance = torch.stack(each).sum(0)
    once = torch.ones(view.victims, dtype=torch.int64, device=inputs.device)
    return Reconstruction(
        inputs=inputs,
        labels=targets.argmax(-1) if heads is None else torch.full_like(targets.argmax(-1), -1),
        targets=None if heads is None else heads.decided(targets),
        certainty=-distance[:, None].expand(-1, view.examples) if certainty is None else certainty,
        trajectory=distance[None],
        steps=once,
        evaluations=once,
        iterates=inputs[None],
        snapshots=(1,),
        spent=once[None],
        fit=fit,
    )


def _targets(view: View, rngs: Generators) -> Tensor:
    """Return the labels (V, M, classes) of `LastLayer`; equal shares if they cannot be read.

    For another task than classes, return the targets (V, M, k) that the last layer shows, else those of no preference.
    """
    heads = heads_of(view.network.model)
    nothing = view.like.new_zeros(view.victims, view.examples, view.classes)
    if heads is not None:
        targets = solved_targets(view)
        return heads.possible(heads.start(nothing)) if targets is None else targets
    guess = LastLayer()(view, rngs)
    return nothing + 1 / view.classes if guess.joint else guess.targets


def likeliest(answers: list[Reconstruction]) -> Reconstruction:
    """Return, for each victim, the most certain of several one-step reconstructions, with the evaluations of all of them."""
    certainty = torch.stack([a.certainty.nan_to_num(nan=-torch.inf)[:, 0] for a in answers])
    chosen = certainty.argmax(0)
    lanes = torch.arange(len(chosen), device=chosen.device)

    def of_each(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts)[chosen, lanes]

    targets = [a.targets for a in answers if a.targets is not None]
    inputs, many = of_each([a.inputs for a in answers]), torch.stack([a.evaluations for a in answers]).sum(0)
    return dataclasses.replace(
        answers[0],
        inputs=inputs,
        labels=of_each([a.labels for a in answers]),
        targets=of_each(targets) if len(targets) == len(answers) else None,
        certainty=of_each([a.certainty for a in answers]),
        trajectory=of_each([a.trajectory[0] for a in answers])[None],
        evaluations=many,
        iterates=inputs[None],
        spent=many[None],
        doubts={why: of_each([a.doubts[why] for a in answers]) for why in answers[0].doubts},
    )
