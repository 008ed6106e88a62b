"""Posteriors of reconstructions; the attacker compares reconstructions with them, without knowing the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.features import read, readable
from leakbench.attack.front import Front
from leakbench.attack.looks import averaged
from leakbench.attack.public import public_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.slots.distance import Likelihood, SquaredL2
from leakbench.attack.slots.labels import solved_targets
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.core.answers import Reconstruction
from leakbench.core.task import heads_of
from leakbench.core.types import Parameters
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.kinks import kinked

__all__ = ["missed", "plausible", "posterior", "posterior_of_features", "prior_of"]


def prior_of(view: View) -> Coordinates | None:
    """Return the Gaussian prior of inputs: fitted to the public examples, or with a 1 / f spectrum without public examples.

    Tokens are numbers without an order, so that texts have no such prior: None.
    """
    if view.vocabulary is not None:
        return None
    known = view.public is not None and len(view.public.labels) > 0
    return Whitened(source="public" if known else "usual")(view)


def posterior(views: tuple[View, ...], answer: Reconstruction, prior: Coordinates | None) -> Tensor:
    """Return minus the log-posterior of each victim's reconstruction, up to a constant.

    The posterior is the likelihood of the observed updates times a Gaussian prior. If the deviation of the noise is unknown, it has
    its most likely value, but at least the floor of `Likelihood`: minus the log-likelihood is then (p / 2) log(d / p), for p
    coordinates at the squared distance d.

    Args:
        views: Views of V victims.
        answer: Their reconstructions.
        prior: The prior, as `prior_of` returns it; None for the likelihood alone.

    Returns:
        (V,); infinite for a victim without a reconstruction.
    """
    value = torch.stack([_unlikelihood(view, answer) for view in views]).sum(0)
    if prior is not None:
        with torch.no_grad():
            value = value + prior.energy(prior.encode(answer.inputs), _targets(views[0], answer))
    return value.nan_to_num(nan=torch.inf)


def plausible(view: View, answer: Reconstruction, prior: Coordinates | None) -> Tensor:
    """Return (V,) bool: whether each reconstruction is about as likely under the prior as public examples are.

    For M examples, the energy is at most 2 M times that of the least likely public example. Without public examples, and
    without a prior, every reconstruction is plausible.
    """
    if prior is None or view.public is None or not len(view.public.labels):
        return torch.ones(len(answer.inputs), dtype=torch.bool, device=answer.inputs.device)
    few = public_of(view, "autoleak")
    with torch.no_grad():
        energy = prior.energy(prior.encode(answer.inputs), _targets(view, answer))
        targets = few.targets(view.classes).to(answer.inputs)[:, None]
        usual = prior.energy(prior.encode(few.inputs.to(answer.inputs)[:, None]), targets)
    return energy <= 2 * answer.inputs.shape[1] * usual.amax()


def posterior_of_features(views: tuple[View, ...], answer: Reconstruction, prior: Coordinates | None) -> Tensor | None:
    """Return minus the log-posterior (V,) of a reconstruction x given the features h read from the gradients, up to a constant.

    On a network with ReLUs or maxima, features compare reconstructions better than gradients do. They change little where x
    changes little, but the gradients jump, so that a good reconstruction can miss them by more than a wrong one does. The
    deviation of h(x) from h is unknown and has its most likely value: (n / 2) log(|h(x) - h|^2 / |h|^2), where n is the number of
    nonzero features. A feature of zero only shows that a unit is inactive. If there are several candidates for h, the most likely
    one counts.

    Args:
        views: Views of V victims. The features are read from the mean of the first release.
        answer: The reconstruction.
        prior: The Gaussian prior of inputs.

    Returns:
        NaN for a victim whose features could not be read; infinite for a victim without a reconstruction. None if features do not
        decide: if they cannot be read, if the network is smooth, if an input has more numbers than the features, or if an update
        contains several examples, whose order in the reconstruction is free.
    """
    view = averaged(views)[0][0]
    layer = readable(view) if view.examples == 1 else None
    if prior is None or layer is None or not kinked(view.network.model, view.shape):
        return None
    features = read(view, layer, ())
    observed = features.entered.flatten(2)
    if observed.shape[-1] < answer.inputs[0].numel():
        return None
    front, lanes = Front.of(view.network, layer, view.shape), torch.arange(view.victims, device=observed.device)
    with torch.no_grad():
        entered, _ = front(answer.inputs, features.cotangents[0], lanes)
        energy = prior.energy(prior.encode(answer.inputs), _targets(view, answer))
    length = observed.square().sum(2)
    share = ((entered.flatten(1) - observed).square().sum(2) / length).clamp_min(Likelihood().floor ** 2)
    value = observed.count_nonzero(2) / 2 * share.log() + energy
    known = length.isfinite() & (length > 0)
    least = value.nan_to_num(nan=torch.inf).masked_fill(~known, torch.inf).amin(0)
    return least.masked_fill(~known.any(0), torch.nan)


def missed(view: View, answer: Reconstruction) -> tuple[Tensor, Tensor]:
    """Return the squared distance (V,) of a reconstruction's gradient from the observed one and the squared length of that."""
    zero = {name: torch.zeros_like(u) for name, u in view.update.items()}
    return SquaredL2()(_response(view, answer), view.update, view), SquaredL2()(view.update, zero, view)


def _unlikelihood(view: View, answer: Reconstruction) -> Tensor:
    likelihood, guess = Likelihood(), _response(view, answer)
    known = likelihood.told(guess, view.update, view)
    if known is not None:
        return known
    apart, floor = SquaredL2()(guess, view.update, view), likelihood.floor
    numbers = sum(u[0].numel() for u in view.update.values())
    variance = (apart / numbers).clamp_min(floor**2)
    return numbers / 2 * (variance / floor**2).log() + apart / (2 * variance)


def _response(view: View, answer: Reconstruction) -> Parameters:
    """Return the update that a reconstruction would leak, NaN for a victim without one."""
    there, inputs = answer.inputs.isfinite().flatten(1).all(1), answer.inputs.nan_to_num()
    if view.vocabulary is not None and view.public is not None and len(view.public.labels):
        # A public sentence takes the place of a missing one, so that a batch with some exact sentences can be compared.
        missing = ~answer.inputs.isfinite().all(-1, keepdim=True)
        there = ~missing[..., 0].all(1)
        inputs = torch.where(missing, view.public.inputs[0].to(inputs), answer.inputs)
    with torch.no_grad():
        found = view.respond(inputs, _targets(view, answer), by_what_leaked=True)
    return {name: u.masked_fill(~there.reshape(-1, *[1] * (u.dim() - 1)), torch.nan) for name, u in found.items()}


def _targets(view: View, answer: Reconstruction) -> Tensor:
    """Return the targets (V, M, k) of a reconstruction, those of its labels for classes.

    An attack that infers no targets gets those that the gradient shows, else the mean of public examples.
    """
    if heads_of(view.network.model) is None:
        # A victim without a reconstruction may have no label.
        return one_hot(answer.labels.clamp_min(0), view.classes).to(answer.inputs)
    targets = solved_targets(view) if answer.targets is None else answer.targets
    if targets is None:
        public = view.public
        usual = answer.inputs.new_full((view.classes,), 0.5) if public is None else public.targets(view.classes).mean(0)
        targets = usual.expand(view.victims, view.examples, -1)
    return targets.to(answer.inputs).nan_to_num()
