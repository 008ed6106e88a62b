"""How likely an answer is, by what the attacker knows itself."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.slots.distance import Likelihood, SquaredL2
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.types import Parameters

__all__ = ["missed", "posterior", "prior_of"]


def prior_of(view: View) -> Coordinates:
    """Return what inputs are like before a gradient is seen: by public examples where there are any, else a 1 / f spectrum."""
    known = view.public is not None and len(view.public.labels) > 0
    return Whitened(source="public" if known else "usual")(view)


def posterior(views: tuple[View, ...], answer: Reconstruction, prior: Coordinates) -> Tensor:
    """Return (V,) minus the logarithm of the posterior of each victim's answer, up to a constant; infinite where there is none.

    The likelihood of what leaked beside a Gaussian `prior`. Where no deviation of a noise is told, that of least
    minus-log-likelihood stands for it, (p / 2) log(d / p) of p coordinates that miss by d in all, for a noise may be there all
    the same; it is at least the floor of `Likelihood`.
    """
    told = [_unlikelihood(view, answer) for view in views]
    with torch.no_grad():
        value = torch.stack(told).sum(0) + prior.energy(prior.encode(answer.inputs), _targets(views[0], answer))
    return value.nan_to_num(nan=torch.inf)


def missed(view: View, answer: Reconstruction) -> tuple[Tensor, Tensor]:
    """Return the squared distance (V,) of an answer's gradient from what leaked, and the squared length of that."""
    zero = {name: torch.zeros_like(u) for name, u in view.update.items()}
    return SquaredL2()(_response(view, answer), view.update, view), SquaredL2()(view.update, zero, view)


def _unlikelihood(view: View, answer: Reconstruction) -> Tensor:
    likelihood, guess = Likelihood(), _response(view, answer)
    told = likelihood.told(guess, view.update, view)
    if told is not None:
        return told
    apart, floor = SquaredL2()(guess, view.update, view), likelihood.floor
    numbers = sum(u[0].numel() for u in view.update.values())
    variance = (apart / numbers).clamp_min(floor**2)
    return numbers / 2 * (variance / floor**2).log() + apart / (2 * variance)


def _response(view: View, answer: Reconstruction) -> Parameters:
    with torch.no_grad():
        return view.respond(answer.inputs, _targets(view, answer), by_what_leaked=True)


def _targets(view: View, answer: Reconstruction) -> Tensor:
    return one_hot(answer.labels, view.classes).to(answer.inputs)
