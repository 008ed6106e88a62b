"""Runs a method on the victims whose updates it can read, and on single examples where a malicious server isolates them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from leakbench.attack.needs import needs_of
from leakbench.attack.recipe import Method
from leakbench.attack.servers.server import Isolates
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["answered", "readable"]


def answered(method: Method, views: tuple[View, ...], rngs: Generators) -> Reconstruction | Ranking:
    """Run a method on the views, on single examples where the server isolates them.

    A victim gets no reconstruction if one of its views isolates no example or contains a number that is not finite. A method that
    ranks candidates for the victims' first examples reads whole batches, since the isolated example can be another one.

    Args:
        method: The method of an attack.
        views: Views of V victims.
        rngs: Victim v draws from rngs[v].

    Returns:
        The method's result for M examples per victim. Missing examples have NaN as inputs, -1 as labels, minus infinity as
        certainty, and no steps.
    """
    finite = torch.stack([readable(view) for view in views]).all(0)
    if bool(finite.all()) or needs_of(method).candidates:
        return _isolated(method, views, rngs)
    there, blank = finite.nonzero()[:, 0], _blank(views[0])
    if not len(there):
        return blank
    answer = _isolated(method, tuple(view.of(there) for view in views), tuple(rngs[int(v)] for v in there))
    return answer if isinstance(answer, Ranking) else _padded(answer, blank, there)


def readable(view: View) -> Tensor:
    """Return (V,) bool: whether all numbers of a victim's update and network are finite. They are not if training diverged."""
    each = [u.isfinite().flatten(1).all(1) for u in view.update.values()]
    sent = [p.isfinite() for p in view.network.parameters.values()]
    each += [p.all() if view.network.shared else p.flatten(1).all(1) for p in sent]
    return torch.stack([rows.expand(view.victims) for rows in each]).all(0)


def _isolated(method: Method, views: tuple[View, ...], rngs: Generators) -> Reconstruction | Ranking:
    """Return the method's result, on single examples where the server isolates them."""
    secret = views[0].secret
    if not isinstance(secret, Isolates) or needs_of(method).candidates:
        return method(views, rngs)
    pairs = [view.secret.isolated(view) for view in views]
    there = torch.stack([caught for _, caught in pairs]).all(0).nonzero()[:, 0]
    blank = _blank(views[0])
    if not len(there):
        return blank
    answer = method(tuple(alone.of(there) for alone, _ in pairs), tuple(rngs[int(v)] for v in there))
    if not isinstance(answer, Reconstruction):
        raise TypeError(f"{type(method).__name__}: got a ranking of isolated examples, expected examples")
    return _padded(answer, blank, there)


def _blank(view: View) -> Reconstruction:
    """Return an empty reconstruction of M examples for each of V victims, after no step."""
    like = view.like
    inputs = like.new_full((view.victims, view.examples, *view.shape), torch.nan)
    none = torch.zeros(view.victims, dtype=torch.int64, device=like.device)
    labels = none[:, None].repeat(1, view.examples) - 1
    certainty, trajectory = like.new_full(labels.shape, -torch.inf), like.new_zeros(0, view.victims)
    return Reconstruction(inputs, labels, certainty, trajectory, none, none, inputs[None], (0,), none[None])


def _unknown(blank: Reconstruction, like: Tensor) -> Tensor:
    """Return targets (V, M, k) of NaN."""
    return like.new_full((*blank.labels.shape, like.shape[-1]), torch.nan)


def _padded(answer: Reconstruction, blank: Reconstruction, there: Tensor) -> Reconstruction:
    """Return `blank` with the reconstruction `answer` of the victims at the positions `there`."""

    def placed(whole: Tensor, part: Tensor) -> Tensor:
        whole = whole.clone()
        whole[there, : part.shape[1]] = part.to(whole)
        return whole

    def spread(part: Tensor, rest: float) -> Tensor:
        whole = part.new_full((len(part), len(blank.steps)), rest)
        whole[:, there] = part
        return whole

    iterates = [placed(blank.inputs, inputs) for inputs in answer.iterates]
    return dataclasses.replace(
        answer,
        inputs=placed(blank.inputs, answer.inputs),
        labels=placed(blank.labels, answer.labels),
        targets=None if answer.targets is None else placed(_unknown(blank, answer.targets), answer.targets),
        certainty=placed(blank.certainty, answer.certainty),
        trajectory=spread(answer.trajectory, torch.nan),
        steps=spread(answer.steps[None], 0)[0],
        evaluations=spread(answer.evaluations[None], 0)[0],
        iterates=torch.stack(iterates) if iterates else answer.iterates.new_zeros(0, *blank.inputs.shape),
        spent=spread(answer.spent, 0),
        stage=None if answer.stage is None else spread(answer.stage[None], -1)[0],
        doubts={why: spread(whom[None], False)[0] for why, whom in answer.doubts.items()},
    )
