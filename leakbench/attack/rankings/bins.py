"""Identification with an imprint: scores a candidate by the likelihood of the bin that it would be in."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.methods.bins import DIFFERENCE, gradients_of
from leakbench.attack.public import public_of
from leakbench.attack.search.shrinkage import Shrinkage, shrinkage_of
from leakbench.attack.servers.imprint import Bins
from leakbench.defense.transform import Stations
from leakbench.federated.view import View

__all__ = ["in_bins", "reads_bins"]

PUBLIC = 2000
"""Largest number of public examples for the Gaussian of inputs."""

FLOOR = 1e-3
"""Standard deviation of a bin's content without known noise: rounding errors, and an example that is partly in the bin."""


def reads_bins(view: View) -> bool:
    """Return whether the update of a batch shows an imprint's bins, in known noise or unchanged."""
    unchanged = view.stations.before(view.tap) == Stations() and not view.unknown
    exact = unchanged and view.local_steps == 1 and view.knowledge.reads == "gradient" and view.of_gradients
    return isinstance(view.secret, Bins) and view.examples > 1 and (view.noise is not None or exact)


def in_bins(view: View, bins: Bins, candidates: Tensor) -> Tensor:
    """Return scores of candidates: the log-likelihood ratio of "c is alone in its bin" and "an unknown example is".

    A bin of gradient dW contains a x + N(0, s^2 I). For a candidate c in it, a = w . dW / (w . c), so c is observed as dW / a
    with noise of deviation tau = s / a. The score is log N(dW / a; c, tau^2 I) - log N(dW / a; m, S + tau^2 I), with the Gaussian
    N(m, S) of public inputs, both given w . x = w . c, to which dW / a is scaled. An empty bin has a small a, and therefore a
    score near 0; so has a candidate outside all bins. If clients have separate bins, the bin that fits best counts.

    Args:
        view: The view of V victims.
        bins: The bins.
        candidates: (k, *s).

    Returns:
        (V, k).
    """
    weight, _ = gradients_of(view, bins)
    inputs = candidates.flatten(1).to(weight)
    prior = shrinkage_of(public_of(view, "candidates", PUBLIC).inputs.flatten(1).to(weight))
    rows = len(bins.lower) // bins.clients
    h = inputs @ bins.functional
    inside = (h[:, None] >= bins.lower[:rows]) & (h[:, None] < bins.upper[:rows])
    bin_of, known = inside.int().argmax(1), inside.any(1)
    noise = None if view.noise is None else view.noise * (DIFFERENCE if bins.cumulative else 1.0)
    each = [
        torch.stack(
            [_scores(prior, bins.functional, content[bin_of], inputs, noise) for content in lane.split(rows)]
        ).amax(0)
        for lane in weight
    ]
    return torch.stack(each).where(known, 0.0)


def _scores(prior: Shrinkage, functional: Tensor, content: Tensor, inputs: Tensor, noise: float | None) -> Tensor:
    """Return the scores (k,) of candidates (k, d) given the gradients (k, d) of their bins."""
    scale = (inputs @ functional) / (content @ functional)
    scale = scale.where(scale.isfinite(), 0.0)
    read, variance = content * scale[:, None], torch.full_like(scale, FLOOR**2)
    if noise is not None:
        variance = (noise * scale).square().clamp_min(FLOOR**2)
    along, spread = prior.along(functional)
    length, h = functional.square().sum(), inputs @ functional
    values = inputs.shape[1]
    # Each is minus a log-density without the factor (2 pi)^(-1/2) of each value.
    mine = (read - inputs).square().sum(1) / variance + (values - 1) * variance.log() - length.log()
    whole = spread + length * variance
    others = 2 * prior.unlikelihood(read, variance) - ((h - along).square() / whole + whole.log())
    score: Tensor = (others - mine) / 2
    # A bin without a gradient contains no example.
    return score.where((content != 0).any(1), 0.0 if noise is not None else -torch.inf)
