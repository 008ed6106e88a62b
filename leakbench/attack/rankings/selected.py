"""Identification under a defense that sends only some coordinates: by the selection, and by the sent values.

A candidate's gradient is compared on the sent coordinates alone. The squared distance over all coordinates would prefer the
candidates with the shortest gradients, since most of every gradient is missing from the update.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakbench.defense.guess import Surviving, on_a_guess
from leakbench.defense.transform import STATIONS, Stations
from leakbench.federated.view import View

__all__ = ["mask_likelihood", "selects", "value_likelihood", "without_selection"]

ROUNDING = 1e-6
"""Error of a sent coordinate without known noise, as a share of the root mean square of the sent values."""


def selects(view: View) -> bool:
    """Return whether a known defense sent only some coordinates, and the update shows which."""
    guessed = on_a_guess(view.stations.before(view.tap), view.update)
    return any(isinstance(transform, Surviving) for transform in guessed.transforms)


def without_selection(view: View) -> Stations:
    """Return the stations of the view without those that select coordinates."""
    guessed = on_a_guess(view.stations, view.update)
    others = {
        name: tuple(
            transform
            for transform, guess in zip(getattr(view.stations, name), getattr(guessed, name), strict=True)
            if not isinstance(guess, Surviving)
        )
        for name in STATIONS
    }
    return replace(view.stations, **others)


def mask_likelihood(sent: Tensor, could: Tensor) -> Tensor:
    """Return the log-likelihood (V, k) of the selection of coordinates.

    A coordinate that the candidate's own rule selects is sent with one probability, and any other coordinate with a smaller one.
    Both probabilities have their most likely values for the candidate and victim. So one rule serves a deterministic selection (a
    threshold, the largest coordinates), a random one among those that qualify (distributed selective SGD), and rounding.

    Args:
        sent: (V, p) bool, which coordinates were sent.
        could: (k, p) bool, which coordinates the deterministic part of the defense selects from each candidate's gradient.
    """
    many = float(sent.shape[1])
    both = (sent.float() @ could.float().T).double()
    of_sent, of_kept = sent.sum(1).double()[:, None], could.sum(1).double()[None]
    outside, other = of_sent - both, many - of_kept
    separate = _entropy(both, of_kept) + _entropy(outside, other)
    alike = _entropy(of_sent, torch.full_like(of_sent, many))
    # A selection that avoids the candidate's coordinates is not evidence for the candidate.
    return torch.where(both * other > outside * of_kept, separate, alike)


def value_likelihood(observed: Tensor, guesses: Tensor, noise: float | None) -> Tensor:
    """Return the log-likelihood (V, k) of the sent values, up to a constant of each victim.

    Args:
        observed: The updates (V, p), zero where nothing was sent.
        guesses: The candidates' gradients (k, p).
        noise: Standard deviation of Gaussian noise on each coordinate. None: unknown; it then has its most likely value, but at
            least `ROUNDING` times the root mean square of the sent values.
    """
    apart, many = [], []
    for y in observed:
        where = y != 0
        apart.append((y[where] - guesses[:, where]).square().sum(1))
        many.append(where.sum())
    missed, sent = torch.stack(apart).double(), torch.stack(many).double()[:, None]
    if noise:
        return -missed / (2 * noise**2)
    power = observed.double().square().sum(1, keepdim=True) / sent.clamp_min(1)
    variance = torch.maximum(missed / sent.clamp_min(1), ROUNDING**2 * power)
    return torch.where(sent > 0, -sent / 2 * variance.log(), torch.zeros_like(missed))


def _entropy(hits: Tensor, trials: Tensor) -> Tensor:
    """Return the log-likelihood of `hits` of `trials` at the most likely probability."""
    share = hits / trials.clamp_min(1)
    return torch.xlogy(hits, share) + torch.xlogy(trials - hits, 1 - share)
