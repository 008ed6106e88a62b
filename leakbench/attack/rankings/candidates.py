"""Identification: which of k candidate examples stands behind a leaked gradient? A Ranking, by likelihood.

For equal priors and Gaussian noise the likelihood of one example is the best rule there is (Hayes, Mahloujifar, Balle, NeurIPS
2023): no attack identifies more among the same k. With isotropic noise of any standard deviation it ranks by squared distance, so
that one rule serves every defense, and without noise it is exact. Of one of a batch, the likelihood takes the unknown others for
Gaussian, so that other rules can identify more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.answers import Ranking
from leakbench.attack.batch_features import in_span, spanned
from leakbench.attack.looks import averaged
from leakbench.attack.needs import Needs
from leakbench.attack.public import FEW, public_of
from leakbench.attack.public_gradients import before_mask, fitting, flat, gradients_alone
from leakbench.attack.rankings.bins import in_bins, reads_bins
from leakbench.attack.rankings.selected import mask_likelihood, selects, value_likelihood, without_selection
from leakbench.errors import InputError
from leakbench.federated.view import Public, View
from leakbench.gram import gram_of
from leakbench.part import Count, part
from leakbench.types import Generators

__all__ = ["Candidates"]


ROUNDING = 1e-10
"""An eigenvalue that is a smaller share of the largest one is rounding."""


@part("method.candidates")
class Candidates:
    """Rank candidates by the likelihood of the observed gradient, with the deterministic part of a defense that is known.

    For a gradient y of one example, the score is -|y - g(c)|^2. In an update of M > 1 examples the other M - 1 are unknown: they
    are treated as draws from the public gradients' Gaussian (mean m, covariance S), so that y given c is Gaussian with mean g(c)
    / M + (M - 1) / M * m and covariance (M - 1) / M^2 * S + s^2, s the deviation of a known noise, else 0; all gradients are
    taken at the model that was sent. S is that of the public sample plus, in every direction, the energy that half of the sample
    leaves unexplained of the other. Where the update shows the span of the features of the batch, and a candidate is clearly in
    it, that decides (`leakbench.attack.batch_features`). With an imprint and M > 1, only the bin of the candidate counts
    (`in_bins`). With a defense that sends only some coordinates, the score uses these (`leakbench.attack.rankings.selected`).
    """

    needs: ClassVar[Needs] = Needs(candidates=True)

    chunk: Annotated[
        Count,
        Field(
            description=(
                "Number of candidates' gradients in memory at once; a large network holds fewer, and fewer public "
                "examples too."
            )
        ),
    ] = 64

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        """Return scores (V, k) for the k candidates that the views name; several views of the same victims add their scores.

        Raises InputError where a view names no candidates, or no public examples behind a batch.
        """
        # Each release selects its own coordinates, so that releases with a visible selection are not averaged.
        apart = any(selects(view) for view in views)
        looks = ((view, 1) for view in views) if apart else averaged(views)
        return Ranking(torch.stack([self._scores(view, n) for view, n in looks]).sum(0))

    def _scores(self, view: View, looks: int) -> Tensor:
        if view.candidates is None:
            raise InputError("candidates: the view names none to rank")
        if reads_bins(view):  # Likelihoods, in which the looks are counted as the less noise of their mean.
            return in_bins(view, view.secret, view.candidates.inputs)
        if selects(view) and before_mask(view) is None:
            return self._selected(view, view.candidates)
        if view.examples == 1 or (layer := spanned(view)) is None:
            return looks * self._gradients(view, view.candidates)
        scores, sure = in_span(view, layer, view.candidates, public_of(view, "candidates"))
        return (
            scores if sure.all() else torch.where(sure[:, None], scores, looks * self._gradients(view, view.candidates))
        )

    def _gradients(self, view: View, shown: Public) -> Tensor:
        """Return the scores (V, k) of the candidates by their whole gradients, of one look."""
        observed = flat(view.update)
        if (
            view.reads_draws
        ):  # What was drawn differs from victim to victim, and with it what a candidate would have shown.
            each = zip(observed[:, None], view.drawn(), strict=True)
            return torch.cat([_alone(y, gradients_alone(view, shown, self.chunk, None, d)) for y, d in each])
        if (bare := before_mask(view)) is not None:
            return torch.cat([_closeness_where_sent(observed, g) for g in gradients_alone(bare, shown, self.chunk)], 1)
        hypotheses = gradients_alone(view, shown, self.chunk)
        if view.examples == 1:
            return _alone(observed, hypotheses)
        return self._in_batch(view, observed, self._others(view), hypotheses)

    def _others(self, view: View) -> Tensor:
        """Return the gradients (n, p) of public examples, which stand for the unknown other examples of a batch."""
        if view.public is None:
            raise InputError(
                "candidates: for a batch they need public examples in place of its other, unknown examples"
            )
        few = public_of(view, "candidates", min(FEW, fitting(view, 2_100_000_000)))
        return torch.cat(list(gradients_alone(view, few, self.chunk)))

    def _in_batch(self, view: View, observed: Tensor, others: Tensor, hypotheses: Iterable[Tensor]) -> Tensor:
        share = 1.0 / view.examples
        if not others.isfinite().all():  # A model that has diverged tells nobody apart.
            many = sum(len(g) for g in hypotheses)
            return observed.new_full((len(observed), many), torch.nan)
        mean = others.mean(0)
        spread = _Spread.of(others - mean, ((view.noise or 0.0) / share) ** 2 / (view.examples - 1))
        left = spread.whitened(observed - (1 - share) * mean)
        return torch.cat([_closeness(left, spread.whitened(g * share)) for g in hypotheses], 1)

    def _selected(self, view: View, shown: Public) -> Tensor:
        """Return the scores (V, k) of the candidates by what was sent where a defense sent only some coordinates.

        For one example, the log-likelihood of which coordinates were sent and of their values. For a batch, the score of the sent
        coordinates alone: which of them the unknown others add to cannot be predicted from one candidate.
        """
        observed = flat(view.update)
        if view.examples == 1:
            each = [
                mask_likelihood(observed != 0, g != 0) + value_likelihood(observed, g, view.noise)
                for g in gradients_alone(view, shown, self.chunk)
            ]
            return torch.cat(each, 1)
        whole = replace(view, stations=without_selection(view))
        others, hypotheses = self._others(whole), self._again(whole, shown)
        scores = []
        for y in observed:
            where = y != 0
            if not where.any():
                scores.append(y.new_zeros(1, len(shown.labels)))
                continue
            sent = (g[:, where] for g in hypotheses())
            scores.append(self._in_batch(whole, y[None, where], others[:, where], sent))
        return torch.cat(scores)

    def _again(self, view: View, shown: Public) -> Callable[[], Iterable[Tensor]]:
        """Return a function that walks through the candidates' gradients again at each call; small ones are kept."""
        if fitting(view, 600_000_000) >= len(shown.labels):
            kept = tuple(gradients_alone(view, shown, self.chunk))
            return lambda: kept
        return lambda: gradients_alone(view, shown, self.chunk)


def _alone(observed: Tensor, hypotheses: Iterator[Tensor]) -> Tensor:
    """Return the scores (V, k) of hypotheses about the one example behind each gradient (V, p)."""
    return torch.cat([_closeness(observed, g) for g in hypotheses], 1)


def _closeness(observed: Tensor, guesses: Tensor) -> Tensor:
    """Return (V, k): -|y - g|^2 up to what does not depend on the guess."""
    return 2 * observed @ guesses.T - guesses.square().sum(1)


def _closeness_where_sent(observed: Tensor, guesses: Tensor) -> Tensor:
    """Return (V, k): -|y - g|^2 over the coordinates that are not zero in y, up to what does not depend on the guess."""
    return 2 * observed @ guesses.T - (observed != 0).to(guesses) @ guesses.square().T


@dataclass(frozen=True)
class _Spread:
    """(S + r)^(-1/2), up to a factor, of a sample's covariance S.

    Args:
        directions: (n, p), orthonormal.
        shrink: (n,), by which it makes each of them shorter; it leaves all others alone.
    """

    directions: Tensor
    shrink: Tensor

    @classmethod
    def of(cls, centred: Tensor, noise: float) -> _Spread:
        """Return that of a centred sample (P, p).

        r is the variance of the noise on top of it, and the mean energy per direction that the directions of one half of the
        sample do not explain of the other half.
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
        """Return what it makes of vectors (n, p)."""
        whitened: Tensor = vectors + (vectors @ self.directions.T * (self.shrink - 1)) @ self.directions
        return whitened


def _eigen(products: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (r,) and eigenvectors (n, r) of products (n, n) but those that are rounding."""
    energies, columns = torch.linalg.eigh(products)
    real = energies > ROUNDING * energies[-1]
    return energies[real], columns[:, real]
