"""The posterior mean of an input that was read in noise, under a Gaussian of public examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.search.whitening import Whitening, unexplained
from leakbench.gram import gram_of

__all__ = ["Shrinkage", "shrinkage_of"]

FLOORS = tuple(10 ** (-n / 2) for n in range(2, 13))
"""Variances, in [0, 1] squared, one of which every direction has beyond what public examples show of it."""

ROUNDING = 1e-12
"""An eigenvalue that is a smaller share of the largest one is rounding."""


@dataclass(frozen=True)
class Shrinkage:
    """x ~ N(mean, U diag(spread) U^T + rest (I - U U^T)).

    Args:
        mean: (d,).
        directions: U^T (r, d), orthonormal.
        spread: (r,) variances along them.
        rest: That of any other direction.
    """

    mean: Tensor
    directions: Tensor
    spread: Tensor
    rest: float

    def weights(self, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return which share of x - mean is kept where noise has a variance (*n): along U (*n, r), and elsewhere (*n)."""
        return self.spread / (self.spread + variance[..., None]), self.rest / (self.rest + variance)

    def __call__(self, read: Tensor, variance: Tensor) -> Tensor:
        """Return the posterior mean (*n, d) of x, read as x + N(0, variance I): read (*n, d), variance (*n)."""
        along, beside = self.weights(variance)
        apart = read - self.mean
        inside = apart @ self.directions.T
        return self.mean + beside[..., None] * apart + (inside * (along - beside[..., None])) @ self.directions

    def unlikelihood(self, read: Tensor, variance: Tensor) -> Tensor:
        """Return (*n): minus the log-density of x + N(0, variance I), up to the d / 2 log(2 pi), at read (*n, d); variance (*n)."""
        along, beside = self.spread + variance[..., None], self.rest + variance
        apart, beyond = read - self.mean, len(self.mean) - len(self.spread)
        inside = (apart @ self.directions.T).square()
        outside = (apart.square().sum(-1) - inside.sum(-1)).clamp_min(0)
        return ((inside / along + along.log()).sum(-1) + outside / beside + beyond * beside.log()) / 2

    def along(self, functional: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of w . x, of a functional w (d,)."""
        inside = (self.directions @ functional).square()
        rest = (functional.square().sum() - inside.sum()).clamp_min(0)
        return functional @ self.mean, inside @ self.spread + rest * self.rest

    def error(self, truth: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return (mean, variance), (*n) each, of that answer's squared error, summed over the d values of x.

        Args:
            truth: (*n, d).
            variance: (*n), of the noise.
        """
        along, beside = self.weights(variance)
        apart, beyond = truth - self.mean, len(self.mean) - len(self.spread)
        inside = (apart @ self.directions.T).square()
        outside = (apart.square().sum(-1) - inside.sum(-1)).clamp_min(0)
        missed, left = (1 - along).square() * inside, (1 - beside).square() * outside
        noise, rest = along.square() * variance[..., None], beside.square() * variance
        mean = (missed + noise).sum(-1) + left + beyond * rest
        spread = (2 * noise.square() + 4 * noise * missed).sum(-1) + 2 * beyond * rest.square() + 4 * rest * left
        return mean, spread


def shrinkage_of(public: Tensor) -> Shrinkage:
    """Return the Gaussian of public examples (P, d): their mean and covariance, and the same variance more in every direction.

    That variance is the one of `FLOORS` by which either half of the examples explains the other half best (`unexplained`).
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
