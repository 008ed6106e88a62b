"""The posterior mean of inputs that are observed with noise, under a Gaussian fitted to public examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.search.whitening import Whitening, unexplained
from leakbench.engine.rows import gram_of

__all__ = ["Shrinkage", "shrinkage_of"]

FLOORS = tuple(10 ** (-n / 2) for n in range(2, 13))
"""Candidates for the variance, of inputs in [0, 1], that is added in every direction to the covariance of the public examples."""

ROUNDING = 1e-12
"""An eigenvalue below this share of the largest one is a rounding error."""


@dataclass(frozen=True)
class Shrinkage:
    """The Gaussian x ~ N(mean, U diag(spread) U^T + rest (I - U U^T)).

    Args:
        mean: (d,).
        directions: U^T (r, d), orthonormal rows.
        spread: Variances (r,) along the directions.
        rest: Variance of any other direction.
    """

    mean: Tensor
    directions: Tensor
    spread: Tensor
    rest: float

    def weights(self, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share of x - mean that remains under noise of a variance (*n): along U (*n, r), and elsewhere (*n)."""
        return self.spread / (self.spread + variance[..., None]), self.rest / (self.rest + variance)

    def __call__(self, read: Tensor, variance: Tensor) -> Tensor:
        """Return the posterior mean (*n, d) of x for observations `read` (*n, d) of x + N(0, variance I), variance (*n)."""
        along, elsewhere = self.weights(variance)
        apart = read - self.mean
        inside = apart @ self.directions.T
        return self.mean + elsewhere[..., None] * apart + (inside * (along - elsewhere[..., None])) @ self.directions

    def unlikelihood(self, read: Tensor, variance: Tensor) -> Tensor:
        """Return minus the log-density (*n) of x + N(0, variance I) at `read` (*n, d), without the d / 2 log(2 pi)."""
        along, elsewhere = self.spread + variance[..., None], self.rest + variance
        apart, beyond = read - self.mean, len(self.mean) - len(self.spread)
        inside = (apart @ self.directions.T).square()
        outside = (apart.square().sum(-1) - inside.sum(-1)).clamp_min(0)
        return ((inside / along + along.log()).sum(-1) + outside / elsewhere + beyond * elsewhere.log()) / 2

    def along(self, functional: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of w . x for a functional w (d,)."""
        inside = (self.directions @ functional).square()
        rest = (functional.square().sum() - inside.sum()).clamp_min(0)
        return functional @ self.mean, inside @ self.spread + rest * self.rest

    def error(self, truth: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean (*n) and the variance (*n) of the squared error of the posterior mean, summed over the d values of x.

        Args:
            truth: The true x (*n, d).
            variance: Variance (*n) of the noise.
        """
        along, elsewhere = self.weights(variance)
        apart, beyond = truth - self.mean, len(self.mean) - len(self.spread)
        inside = (apart @ self.directions.T).square()
        outside = (apart.square().sum(-1) - inside.sum(-1)).clamp_min(0)
        missed, left = (1 - along).square() * inside, (1 - elsewhere).square() * outside
        noise, rest = along.square() * variance[..., None], elsewhere.square() * variance
        mean = (missed + noise).sum(-1) + left + beyond * rest
        spread = (2 * noise.square() + 4 * noise * missed).sum(-1) + 2 * beyond * rest.square() + 4 * rest * left
        return mean, spread


def shrinkage_of(public: Tensor) -> Shrinkage:
    """Return the Gaussian of public examples (P, d): their mean and covariance, plus the same variance in every direction.

    That variance is the one of `FLOORS` with which each half of the examples explains the other half best (`unexplained`).
    """
    mean = public.mean(0)
    apart = (public - mean).double()
    floor = FLOORS[0]
    if len(public) > 3:
        lost = unexplained(public, Whitening(torch.zeros_like(mean), _same, _same), FLOORS)
        floor = FLOORS[lost.index(min(lost))]
    products = gram_of(apart if len(apart) < apart.shape[1] else apart.T.contiguous(), exact=True)
    energies, columns = torch.linalg.eigh(products)
    real = energies > ROUNDING * energies[-1]
    energies, columns = energies[real], columns[:, real]
    directions = columns.T if len(apart) >= apart.shape[1] else (columns / energies.sqrt()).T @ apart
    return Shrinkage(mean, directions.to(public), (energies / len(apart) + floor).to(public), floor)


def _same(inputs: Tensor) -> Tensor:
    return inputs
