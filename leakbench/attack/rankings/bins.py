"""Which candidate lies in the bin of an imprint that it would have to lie in? By the likelihood of what that bin holds."""

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
"""Of how many public examples the Gaussian of inputs is, at most."""

FLOOR = 1e-3
"""The deviation of what a bin holds where no noise is known: of rounding, and of the next example that is nearly there."""


def reads_bins(view: View) -> bool:
    """Say whether what leaked of a batch holds an imprint's bins, in a known noise or as they were."""
    as_it_was = view.stations.before(view.tap) == Stations() and not view.unknown
    exact = as_it_was and view.local_steps == 1 and view.knowledge.reads == "gradient" and view.of_gradients
    return isinstance(view.secret, Bins) and view.examples > 1 and (view.noise is not None or exact)


def in_bins(view: View, bins: Bins, candidates: Tensor) -> Tensor:
    """Return scores (V, k) of candidates (k, *s): the log-likelihood ratio of "c is alone in its bin" to "an unknown one is".

    A bin of gradient dW holds a x + N(0, s^2 I), and a candidate c that lies in it has a = w . dW / (w . c); so c is seen as
    dW / a in a noise of deviation tau = s / a. The score is log N(dW / a; c, tau^2 I) - log N(dW / a; m, S + tau^2 I), with the
    Gaussian N(m, S) of public inputs, both given w . x = w . c, to which dW / a is scaled. An empty bin has a small a, and
    with it a score near 0, as has a candidate in no bin. Of clients with bins of their own that bin counts which fits best.
    """
    weight, _ = gradients_of(view, bins)
    shown = candidates.flatten(1).to(weight)
    prior = shrinkage_of(public_of(view, "candidates", PUBLIC).inputs.flatten(1).to(weight))
    rows = len(bins.lower) // bins.clients
    h = shown @ bins.functional
    inside = (h[:, None] >= bins.lower[:rows]) & (h[:, None] < bins.upper[:rows])
    bin_of, known = inside.int().argmax(1), inside.any(1)
    noise = None if view.noise is None else view.noise * (DIFFERENCE if bins.cumulative else 1.0)
    each = [
        torch.stack([_scores(prior, bins.functional, held[bin_of], shown, noise) for held in lane.split(rows)]).amax(0)
        for lane in weight
    ]
    return torch.stack(each).where(known, 0.0)


def _scores(prior: Shrinkage, functional: Tensor, held: Tensor, shown: Tensor, noise: float | None) -> Tensor:
    """Return the scores (k,) of candidates (k, d) behind the gradients (k, d) of their bins."""
    scale = (shown @ functional) / (held @ functional)
    scale = scale.where(scale.isfinite(), 0.0)
    read, variance = held * scale[:, None], torch.full_like(scale, FLOOR**2)
    if noise is not None:
        variance = (noise * scale).square().clamp_min(FLOOR**2)
    along, spread = prior.along(functional)
    length, h = functional.square().sum(), shown @ functional
    values = shown.shape[1]
    # Each as minus a log-density without the (2 pi)^(-1/2) of a value.
    mine = (read - shown).square().sum(1) / variance + (values - 1) * variance.log() - length.log()
    whole = spread + length * variance
    others = 2 * prior.unlikelihood(read, variance) - ((h - along).square() / whole + whole.log())
    score: Tensor = (others - mine) / 2
    # Without a gradient a bin holds nobody.
    return score.where((held != 0).any(1), 0.0 if noise is not None else -torch.inf)
