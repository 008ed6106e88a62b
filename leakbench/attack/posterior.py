"""How likely an answer is, by what the attacker knows itself."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.attack.features import read, readable
from leakbench.attack.front import Front
from leakbench.attack.looks import averaged
from leakbench.attack.public import public_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.slots.distance import Likelihood, SquaredL2
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.kinks import kinked
from leakbench.types import Parameters

__all__ = ["missed", "plausible", "posterior", "posterior_of_features", "prior_of"]


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


def plausible(view: View, answer: Reconstruction, prior: Coordinates) -> Tensor:
    """Return (V,) bool, whether each victim's answer is about as likely under the prior as public examples are.

    Its minus-log-likelihood is at most twice that of as many of the least likely public example. Without public examples every
    answer is plausible.
    """
    if view.public is None or not len(view.public.labels):
        return torch.ones(len(answer.inputs), dtype=torch.bool, device=answer.inputs.device)
    few = public_of(view, "autoleak")
    with torch.no_grad():
        energy = prior.energy(prior.encode(answer.inputs), _targets(view, answer))
        targets = one_hot(few.labels, view.classes).to(answer.inputs)[:, None]
        usual = prior.energy(prior.encode(few.inputs.to(answer.inputs)[:, None]), targets)
    return energy <= 2 * answer.inputs.shape[1] * usual.amax()


def posterior_of_features(views: tuple[View, ...], answer: Reconstruction, prior: Coordinates) -> Tensor | None:
    """Return minus the logarithm of the posterior (V,) of a reconstruction x given features h that were read, up to a constant.

    On a network with ReLUs or maxima, features compare reconstructions better than gradients do. They change little where x
    changes little, but the gradients jump, so that a good reconstruction can miss them by more than a wrong one does. The
    deviation of h(x) from h is unknown and has its most likely value, (n / 2) log(|h(x) - h|^2 / |h|^2), where n counts the
    nonzero features. A feature of zero only says that a unit is inactive. Of several candidates for h the most likely one counts.

    Args:
        views: The views of V victims; the first of them, or the mean of its release, is read.
        answer: The reconstruction.
        prior: The Gaussian prior of inputs.

    Returns:
        NaN for a victim whose features could not be read, infinite where there is no reconstruction. None where features do not
        decide: they cannot be read, the network is smooth, the features have fewer numbers than an input, or an update is of
        several examples, which a reconstruction may have in another order.
    """
    view = averaged(views)[0][0]
    layer = readable(view) if view.examples == 1 else None
    if layer is None or not kinked(view.network.model, view.shape):
        return None
    features = read(view, layer, ())
    seen = features.entered.flatten(2)
    if seen.shape[-1] < answer.inputs[0].numel():
        return None
    front, lanes = Front.of(view.network, layer, view.shape), torch.arange(view.victims, device=seen.device)
    with torch.no_grad():
        entered, _ = front(answer.inputs, features.cotangents[0], lanes)
        energy = prior.energy(prior.encode(answer.inputs), _targets(view, answer))
    length = seen.square().sum(2)
    share = ((entered.flatten(1) - seen).square().sum(2) / length).clamp_min(Likelihood().floor ** 2)
    value = seen.count_nonzero(2) / 2 * share.log() + energy
    shown = length.isfinite() & (length > 0)
    least = value.nan_to_num(nan=torch.inf).masked_fill(~shown, torch.inf).amin(0)
    return least.masked_fill(~shown.any(0), torch.nan)


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
