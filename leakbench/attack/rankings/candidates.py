"""Identification: which of k candidate examples stands behind a leaked gradient? A Ranking, by likelihood.

For equal priors and Gaussian noise the likelihood is the best rule there is (Hayes, Mahloujifar, Balle, NeurIPS 2023): no attack
identifies more among the same k. With isotropic noise of any standard deviation it ranks by squared distance, so that one rule
serves every defense, and without noise it is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.answers import Ranking
from leakbench.attack.looks import averaged
from leakbench.attack.needs import Needs
from leakbench.attack.public import FEW, public_of
from leakbench.attack.public_gradients import fitting, flat, gradients_alone
from leakbench.errors import InputError
from leakbench.federated.leakage import View
from leakbench.part import Count, part
from leakbench.types import Generators

__all__ = ["Candidates"]


@part
class Candidates:
    """Rank candidates by the likelihood of what leaked, with the deterministic part of the defense that the attacker knows.

    One example behind the gradient y: -|y - g(c)|^2. Behind an update of M > 1 examples the other M - 1 are unknown: they
    are taken as draws from the public gradients' Gaussian (mean m, covariance S), so that y given c is Gaussian with mean
    g(c) / M + (M - 1) / M * m and covariance (M - 1) / M^2 * S + s^2, s the deviation of a known noise, else 0; all gradients are
    taken at the model that was sent. S is that of the public sample plus, in every direction, the energy that half of the sample
    leaves unexplained of the other.
    chunk: how many candidates' gradients are held at once; fewer of a large network, and fewer public examples then too.
    """

    needs: ClassVar[Needs] = Needs(candidates=True)

    chunk: Count = 64

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        """Return scores (V, k) for the k candidates that the views name; several views of the same victims add their scores.

        Raises InputError where a view names no candidates, or no public examples behind a batch.
        """
        return Ranking(torch.stack([n * self._scores(view) for view, n in averaged(views)]).sum(0))

    def _scores(self, view: View) -> Tensor:
        if view.candidates is None:
            raise InputError("candidates: the view names none to rank")
        observed, share = flat(view.update), 1.0 / view.examples
        if (
            view.reads_draws
        ):  # What was drawn differs from victim to victim, and with it what a candidate would have shown.
            each = zip(observed[:, None], view.drawn(), strict=True)
            return torch.cat([_alone(y, gradients_alone(view, view.candidates, self.chunk, None, d)) for y, d in each])
        hypotheses = gradients_alone(view, view.candidates, self.chunk)
        if view.examples == 1:
            return _alone(observed, hypotheses)
        if view.public is None:
            raise InputError("candidates: behind a batch they need public examples, to stand for the unknown fellows")
        few = public_of(view, "candidates", min(FEW, fitting(view, 2_100_000_000)))
        others = torch.cat(list(gradients_alone(view, few, self.chunk)))
        if not others.isfinite().all():  # A model that has diverged tells nobody apart.
            return observed.new_full((len(observed), len(view.candidates.labels)), torch.nan)
        mean = others.mean(0)
        whiten = _whitening(others - mean, ((view.noise or 0.0) / share) ** 2 / (view.examples - 1))
        left = whiten(observed - (1 - share) * mean)
        return torch.cat([_closeness(left, whiten(g * share)) for g in hypotheses], 1)


def _alone(observed: Tensor, hypotheses: Iterator[Tensor]) -> Tensor:
    """Return the scores (V, k) of hypotheses about the one example behind each gradient (V, p)."""
    return torch.cat([_closeness(observed, g) for g in hypotheses], 1)


def _closeness(observed: Tensor, guesses: Tensor) -> Tensor:
    """Return (V, k): -|y - g|^2 up to what does not depend on the guess."""
    return 2 * observed @ guesses.T - guesses.square().sum(1)


def _whitening(centred: Tensor, noise: float) -> Callable[[Tensor], Tensor]:
    """Return the map (n, p) -> (n, p) by (S + r)^(-1/2), up to a factor, for the centred sample (P, p) of covariance S.

    r is the variance of the noise on top of it, and the mean energy per direction that the directions of one half of the sample
    do not explain of the other half.
    """
    half = len(centred) // 2
    basis = torch.linalg.svd(centred[:half], full_matrices=False)[2]
    rest = centred[half:] - (centred[half:] @ basis.T) @ basis
    floor = rest.square().sum(1).mean() / centred.shape[1] + noise
    _, scale, directions = torch.linalg.svd(centred, full_matrices=False)
    shrink = (floor / (scale.square() / len(centred) + floor)).sqrt() - 1

    def whiten(vectors: Tensor) -> Tensor:
        whitened: Tensor = vectors + (vectors @ directions.T * shrink) @ directions
        return whitened

    return whiten
