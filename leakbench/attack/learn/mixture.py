"""A mixture of Gaussians with a component at every public example, in coordinates in which all examples have the covariance I.

It is a Parzen estimate (E. Parzen, Annals of Mathematical Statistics 33(3), 1962) that keeps the mean and the covariance of the
Gaussian it replaces: components move towards the mean and become wider, as in M. West, "Approximating Posterior Distributions by
Mixtures", Journal of the Royal Statistical Society B 55(2), 1993. Only its shape can therefore differ from a Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.search.whitening import Whitening, fitting_floor, of_examples, one_over_f, spread_of
from leakbench.core.types import Parameters

__all__ = ["Mixture", "fitted", "mirrored", "mixture_of", "whitening_of"]

TABLE_FLOOR = 1e-4
"""Variance added in every direction of a table."""

RANKS = (10, 20, 40, 80)
"""Candidates for the number of directions in which the components differ."""

SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Candidates for the distance of a component from the mean, as a share of that of its example."""


@dataclass(frozen=True)
class Mixture:
    """A density of z (*n, d) with mean 0, as a mixture of K Gaussians of equal weight.

    Along r orthonormal directions, the components have different means and equal variances; along all others, they are N(0, 1).

    Args:
        directions: (r, d), orthonormal rows; r = 0 is N(0, I).
        means: (K, r), means of the components along the directions.
        variances: (r,), their variances.
    """

    directions: Tensor
    means: Tensor
    variances: Tensor

    def energy(self, z: Tensor, noise: float = 0.0) -> Tensor:
        """Return minus the log-density (*n) of z + N(0, noise^2 I) at z (*n, d), without the d / 2 log(2 pi)."""
        along = z @ self.directions.T
        wide, rest = self.variances + noise**2, z.shape[-1] - len(self.directions)
        elsewhere = (z.square().sum(-1) - along.square().sum(-1)) / (1 + noise**2)
        spread = wide.log().sum() + rest * math.log1p(noise**2)
        return (elsewhere + spread) / 2 - self._logits(along, wide).logsumexp(-1) + math.log(len(self.means))

    def denoised(self, z: Tensor, noise: float) -> Tensor:
        """Return the posterior mean (*n, d) of z given z + N(0, noise^2 I) (*n, d)."""
        along = z @ self.directions.T
        wide = self.variances + noise**2
        centre = self._logits(along, wide).softmax(-1) @ self.means
        inside = centre + self.variances / wide * (along - centre)
        return z / (1 + noise**2) + (inside - along / (1 + noise**2)) @ self.directions

    def _logits(self, along: Tensor, wide: Tensor) -> Tensor:
        """Return minus half the squared distances (*n, K) from the means, in units of the variances `wide`."""
        scaled, centres = along / wide.sqrt(), self.means / wide.sqrt()
        squares = scaled.square().sum(-1, keepdim=True) + centres.square().sum(-1)
        return scaled @ centres.T - squares / 2

    def tensors(self) -> Parameters:
        """Return the tensors {name: tensor} to be stored."""
        return {"directions": self.directions, "means": self.means, "variances": self.variances}


def mirrored(inputs: Tensor) -> Tensor:
    """Return images (n, C, H, W) followed by their mirror images; tables do not change."""
    return torch.cat([inputs, inputs.flip(-1)]) if inputs.dim() == 4 else inputs


def whitening_of(inputs: Tensor) -> Whitening:
    """Return the whitening of public examples (n, *s), for images with their mirror images.

    The floor is that of the public examples themselves, as for the space `whitened`: an example and its mirror image in different
    halves would make it too small.
    """
    if inputs.dim() != 4:
        return of_examples(inputs, TABLE_FLOOR)
    beyond = one_over_f(inputs.shape[1:], inputs)
    return of_examples(mirrored(inputs), fitting_floor(inputs, beyond), beyond)


def fitted(inputs: Tensor) -> Mixture:
    """Return the mixture of public examples (n, *s), in the coordinates of `whitening_of`.

    The number of directions and the share are those with which the mixture of each half of the examples explains the other half
    best. N(0, I) is a candidate, so that the mixture is a Gaussian if no other shape explains more.
    """
    rank, share = _best(inputs)
    z, axes = _whitened(inputs, whitening_of(inputs))
    return mixture_of(z, axes[:rank], share)


def mixture_of(z: Tensor, directions: Tensor, share: float) -> Mixture:
    """Return the mixture with a component at `share` times each whitened example, with mean 0 and variance 1 in every direction.

    Args:
        z: Whitened examples (n, d), with mean 0 and variances of at most 1 along the directions.
        directions: (r, d), orthonormal rows.
        share: In [0, 1).
    """
    means = share * (z @ directions.T)
    return Mixture(directions, means, 1 - means.square().mean(0))


def _whitened(inputs: Tensor, white: Whitening) -> tuple[Tensor, Tensor]:
    """Return the whitened examples (n, d) and orthonormal directions (r, d), those in which they differ most first."""
    z = white.invert(mirrored(inputs) - white.mean).flatten(1)
    return z, spread_of(z)[1].flip(0).to(z)


def _best(inputs: Tensor) -> tuple[int, float]:
    """Return the number of directions and the share; (0, 0) for N(0, I) and if there are fewer than 4 examples."""
    candidates = [(0, 0.0), *((rank, share) for rank in RANKS for share in SHARES)]
    if len(inputs) < 4:
        return candidates[0]
    lost = [0.0] * len(candidates)
    halves = (inputs[::2], inputs[1::2])
    for known, new in (halves, halves[::-1]):
        white = whitening_of(known)
        z, axes = _whitened(known, white)
        fresh = white.invert(new - white.mean).flatten(1)
        for place, (rank, share) in enumerate(candidates):
            lost[place] += float(mixture_of(z, axes[:rank], share).energy(fresh).double().mean())
    return candidates[lost.index(min(lost))]
