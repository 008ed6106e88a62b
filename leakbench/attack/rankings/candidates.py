"""Identification: ranks k candidate examples by the likelihood of the observed gradient.

For equal priors and Gaussian noise, no rule identifies more examples among the same k than the likelihood of a single example
(Hayes, Mahloujifar, Balle, NeurIPS 2023). For isotropic noise of any standard deviation, it ranks by squared distance. So one
rule serves every defense, and without noise it is exact. For one example of a batch, the likelihood treats the unknown others as
Gaussian, so that other rules can identify more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.batch_features import in_span, spanned
from leakbench.attack.looks import averaged
from leakbench.attack.needs import Needs
from leakbench.attack.public import FEW, public_of
from leakbench.attack.public_gradients import before_mask, fitting, flat, gradients_alone
from leakbench.attack.rankings.bins import in_bins, reads_bins
from leakbench.attack.rankings.selected import mask_likelihood, selects, value_likelihood, without_selection
from leakbench.core.answers import Ranking
from leakbench.core.errors import InputError
from leakbench.core.part import Count, part
from leakbench.core.types import Generators
from leakbench.defense.guess import ranks, unlikelihood
from leakbench.engine.rows import gram_of
from leakbench.federated.view import Public, View

__all__ = ["Candidates"]


ROUNDING = 1e-10
"""An eigenvalue below this share of the largest one is a rounding error."""


@part("method.candidates")
class Candidates:
    """Rank candidates by the likelihood of the observed gradient, with the deterministic part of a known defense.

    For the gradient y of one example, the score is -|y - g(c)|^2. In an update of M > 1 examples, the other M - 1 are unknown.
    They are treated as draws from the Gaussian of public gradients (mean m, covariance S). So y given c is Gaussian with mean
    g(c) / M + (M - 1) / M * m and covariance (M - 1) / M^2 * S + s^2, where s is the standard deviation of a known noise, else 0.
    All gradients are computed at the sent model. S is the covariance of the public sample plus, in every direction, the energy of
    one half of the sample that the other half does not explain.

    If a defense sends something that does not resemble a gradient, its own likelihood ranks (`leakbench.defense.guess.Ranks`).

    If the update shows the span of the features of the batch, and a candidate is clearly in it, the span decides
    (`leakbench.attack.batch_features`). With an imprint and M > 1, only the bin of the candidate counts (`in_bins`). If a defense
    sends only some coordinates, the score uses these (`leakbench.attack.rankings.selected`).
    """

    needs: ClassVar[Needs] = Needs(candidates=True)

    chunk: Annotated[
        Count,
        Field(
            description=(
                "Number of candidates' gradients in memory at once. A large network gets smaller chunks, and fewer public "
                "examples too."
            )
        ),
    ] = 64

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        """Return scores (V, k) of the k candidates in the views; the scores of several views of the same victims are added.

        Raises:
            InputError: If a view contains no candidates, or no public examples for a batch.
        """
        # Each release selects its own coordinates or direction, so that such releases are not averaged.
        apart = any(selects(view) or ranks(view.stations.before(view.tap)) for view in views)
        observations = ((view, 1) for view in views) if apart else averaged(views)
        return Ranking(torch.stack([self._scores(view, n) for view, n in observations]).sum(0))

    def _scores(self, view: View, observations: int) -> Tensor:
        if view.candidates is None:
            raise InputError("candidates: the view names none to rank")
        if reads_bins(view):  # The likelihood of the mean already counts the observations, by their smaller noise.
            return in_bins(view, view.secret, view.candidates.inputs)
        if selects(view) and before_mask(view) is None:
            return self._selected(view, view.candidates)
        if view.examples == 1 or (layer := spanned(view)) is None:
            return observations * self._gradients(view, view.candidates)
        scores, sure = in_span(view, layer, view.candidates, public_of(view, "candidates"))
        if sure.all():
            return scores
        return torch.where(sure[:, None], scores, observations * self._gradients(view, view.candidates))

    def _gradients(self, view: View, candidates: Public) -> Tensor:
        """Return the scores (V, k) of the candidates by their whole gradients, for one observation."""
        observed = flat(view.update)
        # The random numbers of the network, and with them a candidate's gradient, differ from victim to victim.
        if view.reads_draws:
            each = zip(observed[:, None], view.drawn(), strict=True)
            return torch.cat([_alone(y, gradients_alone(view, candidates, self.chunk, None, d)) for y, d in each])
        if (bare := before_mask(view)) is not None:
            hypotheses = gradients_alone(bare, candidates, self.chunk)
            return torch.cat([_closeness_where_sent(observed, g) for g in hypotheses], 1)
        hypotheses = gradients_alone(view, candidates, self.chunk)
        if view.examples == 1 and ranks(view.stations.before(view.tap)):
            return torch.cat([_explained(view, g) for g in hypotheses], 1)
        if view.examples == 1:
            return _alone(observed, hypotheses)
        return self._in_batch(view, observed, self._others(view), hypotheses)

    def _others(self, view: View) -> Tensor:
        """Return the gradients (n, p) of public examples, which represent the unknown other examples of a batch."""
        if view.public is None:
            raise InputError(
                "candidates: for a batch they need public examples in place of its other, unknown examples"
            )
        # Language models are large, and their sentences differ in many more ways than any sample of public ones spans.
        room = 300_000_000 if view.vocabulary is not None else 2_100_000_000
        few = public_of(view, "candidates", min(FEW, fitting(view, room)))
        return torch.cat(list(gradients_alone(view, few, self.chunk)))

    def _in_batch(self, view: View, observed: Tensor, others: Tensor, hypotheses: Iterable[Tensor]) -> Tensor:
        share = 1.0 / view.examples
        if not others.isfinite().all():  # The model has diverged.
            many = sum(len(g) for g in hypotheses)
            return observed.new_full((len(observed), many), torch.nan)
        mean = others.mean(0)
        spread = _Spread.of(others - mean, ((view.noise or 0.0) / share) ** 2 / (view.examples - 1))
        left = spread.whitened(observed - (1 - share) * mean)
        return torch.cat([_closeness(left, spread.whitened(g * share)) for g in hypotheses], 1)

    def _selected(self, view: View, candidates: Public) -> Tensor:
        """Return the scores (V, k) of the candidates if a defense sent only some coordinates.

        For one example, it is the log-likelihood of the selection and of the sent values. For a batch, it is the score on the
        sent coordinates alone: the selection also depends on the unknown others, which one candidate does not predict.
        """
        observed = flat(view.update)
        if view.examples == 1:
            each = [
                mask_likelihood(observed != 0, g != 0) + value_likelihood(observed, g, view.noise)
                for g in gradients_alone(view, candidates, self.chunk)
            ]
            return torch.cat(each, 1)
        whole = replace(view, stations=without_selection(view))
        others, hypotheses = self._others(whole), self._again(whole, candidates)
        scores = []
        for y in observed:
            where = y != 0
            if not where.any():
                scores.append(y.new_zeros(1, len(candidates.labels)))
                continue
            sent = (g[:, where] for g in hypotheses())
            scores.append(self._in_batch(whole, y[None, where], others[:, where], sent))
        return torch.cat(scores)

    def _again(self, view: View, candidates: Public) -> Callable[[], Iterable[Tensor]]:
        """Return a function that yields the candidates' gradients at each call; they are stored if they are small."""
        if fitting(view, 600_000_000) >= len(candidates.labels):
            stored = tuple(gradients_alone(view, candidates, self.chunk))
            return lambda: stored
        return lambda: gradients_alone(view, candidates, self.chunk)


def _alone(observed: Tensor, hypotheses: Iterator[Tensor]) -> Tensor:
    """Return the scores (V, k) of hypotheses about the single example of each gradient (V, p)."""
    return torch.cat([_closeness(observed, g) for g in hypotheses], 1)


def _explained(view: View, guesses: Tensor) -> Tensor:
    """Return (V, k): the log-likelihood of each update by the defense's own law, for hypotheses (k, p) about its single example."""
    names, shapes = zip(*((n, u.shape[1:]) for n, u in view.update.items()), strict=True)
    parts = torch.split(guesses, [shape.numel() for shape in shapes], 1)
    guess = {n: g.reshape(-1, *shape) for n, g, shape in zip(names, parts, shapes, strict=True)}
    scores = []
    for victim in range(view.victims):
        seen = {n: u[victim].expand_as(guess[n]) for n, u in view.update.items()}
        value = unlikelihood(view.stations.before(view.tap), guess, seen)
        scores.append(guesses.new_zeros(len(guesses)) if value is None else -value)
    return torch.stack(scores)


def _closeness(observed: Tensor, guesses: Tensor) -> Tensor:
    """Return (V, k): -|y - g|^2 up to a term that does not depend on g."""
    return 2 * observed @ guesses.T - guesses.square().sum(1)


def _closeness_where_sent(observed: Tensor, guesses: Tensor) -> Tensor:
    """Return (V, k): -|y - g|^2 over the nonzero coordinates of y, up to a term that does not depend on g."""
    return 2 * observed @ guesses.T - (observed != 0).to(guesses) @ guesses.square().T


@dataclass(frozen=True)
class _Spread:
    """The map (S + r)^(-1/2), up to a factor, for a sample's covariance S.

    Args:
        directions: (n, p), orthonormal rows.
        shrink: Factors (n,) along the directions; other directions do not change.
    """

    directions: Tensor
    shrink: Tensor

    @classmethod
    def of(cls, centred: Tensor, noise: float) -> _Spread:
        """Return the map for a centred sample (P, p).

        r is the variance of additional noise, plus the mean energy per direction of one half of the sample that the directions of
        the other half do not explain.
        """
        products, half = gram_of(centred, exact=True), len(centred) // 2
        energies, columns = _eigen(products[:half, :half])
        explained = (products[half:, :half] @ columns).square() / energies
        rest = (products.diagonal()[half:] - explained.sum(1)).clamp_min(0)
        floor = rest.mean() / centred.shape[1] + noise
        energies, columns = _eigen(products)
        directions = (columns / energies.sqrt()).to(centred).T @ centred
        return cls(directions, (floor / (energies / len(centred) + floor)).sqrt().to(centred))

    def whitened(self, vectors: Tensor) -> Tensor:
        """Apply the map to vectors (n, p)."""
        whitened: Tensor = vectors + (vectors @ self.directions.T * (self.shrink - 1)) @ self.directions
        return whitened


def _eigen(products: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (r,) and eigenvectors (n, r) of products (n, n), without rounding errors."""
    energies, columns = torch.linalg.eigh(products)
    real = energies > ROUNDING * energies[-1]
    return energies[real], columns[:, real]
