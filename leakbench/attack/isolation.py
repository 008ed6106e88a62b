"""What lies between what leaked and the attack on it: who leaked nothing that can be read, and who is isolated in a batch."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from leakbench.answers import Ranking, Reconstruction
from leakbench.attack.needs import needs_of
from leakbench.attack.recipe import Method
from leakbench.attack.servers.server import Isolates
from leakbench.federated.view import View
from leakbench.types import Generators

__all__ = ["answered", "readable"]


def answered(method: Method, views: tuple[View, ...], rngs: Generators) -> Reconstruction | Ranking:
    """Return the method's answer; on the views of single examples where the server isolates them.

    It is then padded to the M examples of a batch by NaN, no label (-1) and a certainty of minus infinity; so is all of a victim of
    whom one of the views shows nothing, or something that is not finite (`readable`), which takes no step. A method that ranks
    candidates for the victims' first examples answers to what leaked, as who was isolated need not be the first.
    """
    read = torch.stack([readable(view) for view in views]).all(0)
    if bool(read.all()) or needs_of(method).candidates:
        return _isolated(method, views, rngs)
    there, blank = read.nonzero()[:, 0], _blank(views[0])
    if not len(there):
        return blank
    found = _isolated(method, tuple(view.of(there) for view in views), tuple(rngs[int(v)] for v in there))
    return found if isinstance(found, Ranking) else _padded(found, blank, there)


def readable(view: View) -> Tensor:
    """Return (V,): whose leak and network are numbers throughout; of a model that has diverged nothing can be computed."""
    each = [u.isfinite().flatten(1).all(1) for u in view.update.values()]
    sent = [p.isfinite() for p in view.network.parameters.values()]
    each += [p.all() if view.network.shared else p.flatten(1).all(1) for p in sent]
    return torch.stack([held.expand(view.victims) for held in each]).all(0)


def _isolated(method: Method, views: tuple[View, ...], rngs: Generators) -> Reconstruction | Ranking:
    """Return the method's answer, on single examples where the server isolates them."""
    secret = views[0].secret
    if not isinstance(secret, Isolates) or needs_of(method).candidates:
        return method(views, rngs)
    pairs = [view.secret.isolated(view) for view in views]
    there = torch.stack([caught for _, caught in pairs]).all(0).nonzero()[:, 0]
    blank = _blank(views[0])
    if not len(there):
        return blank
    found = method(tuple(alone.of(there) for alone, _ in pairs), tuple(rngs[int(v)] for v in there))
    if not isinstance(found, Reconstruction):
        raise TypeError(f"{type(method).__name__}: got a ranking of isolated examples, expected examples")
    return _padded(found, blank, there)


def _blank(view: View) -> Reconstruction:
    """Return no answer for any of M examples of V victims, after no step."""
    like = next(iter(view.update.values()))
    inputs = like.new_full((view.victims, view.examples, *view.shape), torch.nan)
    none = torch.zeros(view.victims, dtype=torch.int64, device=like.device)
    labels = none[:, None].repeat(1, view.examples) - 1
    certainty, trajectory = like.new_full(labels.shape, -torch.inf), like.new_zeros(0, view.victims)
    return Reconstruction(inputs, labels, certainty, trajectory, none, none, inputs[None], (0,), none[None])


def _padded(found: Reconstruction, blank: Reconstruction, there: Tensor) -> Reconstruction:
    """Return the answer of M = 1 for the victims `there` among those of M examples who have none."""

    def placed(whole: Tensor, part: Tensor) -> Tensor:
        whole = whole.clone()
        whole[there, : part.shape[1]] = part.to(whole)
        return whole

    def spread(part: Tensor, rest: float) -> Tensor:
        whole = part.new_full((len(part), len(blank.steps)), rest)
        whole[:, there] = part
        return whole

    iterates = [placed(blank.inputs, inputs) for inputs in found.iterates]
    return dataclasses.replace(
        found,
        inputs=placed(blank.inputs, found.inputs),
        labels=placed(blank.labels, found.labels),
        certainty=placed(blank.certainty, found.certainty),
        trajectory=spread(found.trajectory, torch.nan),
        steps=spread(found.steps[None], 0)[0],
        evaluations=spread(found.evaluations[None], 0)[0],
        iterates=torch.stack(iterates) if iterates else found.iterates.new_zeros(0, *blank.inputs.shape),
        spent=spread(found.spent, 0),
        stage=None if found.stage is None else spread(found.stage[None], -1)[0],
        doubts={why: spread(whom[None], False)[0] for why, whom in found.doubts.items()},
    )
