"""Matrix mechanisms: noise that is correlated over the rounds, for the prefix sums of a training (DP-FTRL).

A = B C, where A is the lower-triangular T x T matrix of ones. Round t releases g_t + (C^-1 z)_t, so the sum of the first t releases
has the noise (B z)_t. Let z be independent Gaussian noise of standard deviation sigma * clip * sensitivity(C). Then the whole
training is one Gaussian mechanism of noise multiplier sigma, with gradients that depend on earlier releases too (Denisov et al.,
NeurIPS 2022, Theorem 2.1). Its adjacency: the contributions of one unit, each of L2 norm at most clip, become zero.

A clip and a sigma are the caller's: every number here is for a clip of 1, or in units of the standard deviation of z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.participation import (
    Participation,
    Reals,
    Sensitivity,
    sensitivity,
    toeplitz,
    toeplitz_sensitivity,
)

__all__ = [
    "Banded",
    "Buffered",
    "Error",
    "Factorization",
    "Tree",
    "amplified",
    "squared_error",
    "subtract",
    "unamplified",
]


class Factorization(Protocol):
    """A factorization A = B C with a lower-triangular C, and the noise C^-1 z as a stream."""

    @property
    def rounds(self) -> int:
        """Number of rounds T."""

    def matrix(self) -> Reals:
        """Return C (T, T)."""

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """Return the sensitivity of C."""

    def round_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each round: the norms of the rows of C^-1."""

    def prefix_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each prefix sum: the norms of the rows of B."""

    def start(self, like: Tensor) -> Tensor:
        """Return the state before the first round, (memory, *shape).

        Args:
            like: A tensor with the shape, type and device of the noise of one round.
        """

    def correlate(self, noise: Tensor, state: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Return ((C^-1 z)_t, the next state); the given state does not change.

        Args:
            noise: z_t, of any shape; every element is a separate stream.
            state: State after the rounds before t.
            index: t, from 0.
        """


@dataclass(frozen=True)
class Error:
    """The squared error of the prefix sums per squared noise multiplier and squared clip.

    Args:
        mean: Mean over the rounds, ||B||_F^2 sensitivity(C)^2 / T.
        largest: Largest one of a round.
    """

    mean: float
    largest: float


def squared_error(factorization: Factorization, participation: Participation) -> Error:
    """Return the mean and the largest squared error of the prefix sums at noise multiplier 1 and clip 1."""
    variances = factorization.prefix_deviations() ** 2 * factorization.sensitivity(participation).value ** 2
    return Error(float(variances.mean()), float(variances.max()))


@dataclass(frozen=True)
class Banded:
    """A Toeplitz C whose first column has b bands, then zeros (Choquette-Choo et al., NeurIPS 2023).

    One band is independent noise, as in DP-SGD. The state has the noise of the last b - 1 rounds.

    Args:
        rounds: T, >= 1.
        coefficients: The first b entries of the first column of C, 1 <= b <= T. The first one is 1; another scale of C would not
            change the mechanism.

    Raises:
        InputError: For a number outside its range.
    """

    rounds: int
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.coefficients) <= self.rounds:
            raise InputError(
                f"coefficients: got {len(self.coefficients)}, expected between 1 and {self.rounds}, the rounds"
            )
        if self.coefficients[0] != 1 or not np.isfinite(self.coefficients).all():
            raise InputError(f"coefficients: got {self.coefficients[:4]}..., expected finite numbers, the first one 1")

    def column(self) -> Reals:
        """Return the first column of C (T,)."""
        return np.pad(np.array(self.coefficients), (0, self.rounds - len(self.coefficients)))

    def inverse_column(self) -> Reals:
        """Return the first column of C^-1 (T,)."""
        from scipy.signal import lfilter  # noqa: PLC0415  (takes a second)

        return np.asarray(lfilter([1.0], self.coefficients, np.eye(1, self.rounds)[0]))

    def matrix(self) -> Reals:
        """Return C (T, T)."""
        return toeplitz(self.column())

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """Return the sensitivity, see `toeplitz_sensitivity`."""
        return toeplitz_sensitivity(self.column(), participation)

    def round_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each round."""
        return _row_norms(self.inverse_column())

    def prefix_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each prefix sum."""
        return _row_norms(np.cumsum(self.inverse_column()))

    def start(self, like: Tensor) -> Tensor:
        """Return the state before the first round, (b - 1, *shape): the noise of the last rounds, the newest first."""
        return like.new_zeros(len(self.coefficients) - 1, *like.shape)

    def correlate(self, noise: Tensor, state: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Return ((C^-1 z)_t, the next state), see `Factorization`."""
        del index
        noise = subtract(noise, self.coefficients[1:], state)
        return noise, torch.cat([noise[None], state])[: len(state)]


@dataclass(frozen=True)
class Buffered:
    """A buffered linear Toeplitz C: its first column is 1, then sum_i weights_i decays_i^(t - 1) for t >= 1.

    Dvijotham et al., FOCS 2024; McMahan, Xu and Zhang 2024 (arXiv:2408.08868), Algorithm 3. The state has d buffers.

    Args:
        rounds: T, >= 1.
        weights: theta, d numbers >= 0.
        decays: omega, d numbers in [0, 1).

    Raises:
        InputError: For a number outside its range, or lengths that differ.
    """

    rounds: int
    weights: tuple[float, ...]
    decays: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds: got {self.rounds}, expected a whole number >= 1")
        if len(self.weights) != len(self.decays):
            raise InputError(f"weights: got {len(self.weights)}, expected one for each of {len(self.decays)} decays")
        if not all(0 <= w < math.inf for w in self.weights):
            raise InputError(f"weights: got {self.weights}, expected finite numbers >= 0")
        if not all(0 <= d < 1 for d in self.decays):
            raise InputError(f"decays: got {self.decays}, expected numbers in [0, 1)")

    def column(self) -> Reals:
        """Return the first column of C (T,)."""
        return _powers(self.rounds, np.array(self.weights), np.array(self.decays))

    def inverse(self) -> tuple[Reals, Reals]:
        """Return (weights (d,), decays (d,)) of C^-1, which has the same form with weights <= 0.

        The buffers follow s' = (diag(omega) - 1 theta^T) s + z, whose matrix is similar to diag(omega) - r r^T with
        r = sqrt(theta). The decays are the eigenvalues of this symmetric matrix, which stay accurate where decays are close.
        """
        root = np.sqrt(self.weights)
        decays, vectors = np.linalg.eigh(np.diag(self.decays) - np.outer(root, root))
        return -((root @ vectors) ** 2), decays

    def inverse_column(self) -> Reals:
        """Return the first column of C^-1 (T,)."""
        return _powers(self.rounds, *self.inverse())

    def matrix(self) -> Reals:
        """Return C (T, T)."""
        return toeplitz(self.column())

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """Return the sensitivity, see `toeplitz_sensitivity`; it is exact if the weights' sum is at most 1."""
        return toeplitz_sensitivity(self.column(), participation)

    def round_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each round."""
        return _row_norms(self.inverse_column())

    def prefix_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each prefix sum."""
        return _row_norms(np.cumsum(self.inverse_column()))

    def start(self, like: Tensor) -> Tensor:
        """Return the state before the first round, (d, *shape)."""
        return like.new_zeros(len(self.decays), *like.shape)

    def correlate(self, noise: Tensor, state: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Return ((C^-1 z)_t, the next state), see `Factorization`."""
        del index
        noise = subtract(noise, self.weights, state)
        return noise, state * state.new_tensor(self.decays).reshape(-1, *[1] * noise.dim()) + noise


@dataclass(frozen=True)
class Tree:
    """Aggregation on binary trees without completion (Kairouz et al., ICML 2021, appendix D).

    A prefix sum is the sum of the nodes of its binary decomposition. Position p of a tree, counted from 1, completes one node that
    prefixes use: that of the 2^l rounds up to p, where 2^l is the largest power of two that divides p. So row t of C has ones in
    these rounds, and z_t is the noise of the node. The state has the newest node of each level.

    Args:
        rounds: T, >= 1.
        rounds_per_tree: A new tree starts after this number of rounds, usually an epoch, >= 1; None for one tree.

    Raises:
        InputError: For a number outside its range.
    """

    rounds: int
    rounds_per_tree: int | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds: got {self.rounds}, expected a whole number >= 1")
        if self.rounds_per_tree is not None and self.rounds_per_tree < 1:
            raise InputError(f"rounds_per_tree: got {self.rounds_per_tree}, expected a whole number >= 1, or None")

    @property
    def length(self) -> int:
        """Number of rounds of the longest tree."""
        return self.rounds if self.rounds_per_tree is None else min(self.rounds, self.rounds_per_tree)

    def matrix(self) -> Reals:
        """Return C (T, T)."""
        index = np.arange(self.rounds)
        p = index % self.length + 1
        first = index - (p & -p) + 1
        return ((first[:, None] <= index) & (index <= index[:, None])).astype(np.float64)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """Return the sensitivity: sqrt(ceil(log2(T + 1))) for one participation and one tree; else see `sensitivity`.

        A separation of `rounds_per_tree` also covers units that take part once in each tree, in any order: the first round of a
        tree is in the most nodes, and trees share no noise.
        """
        if participation.count(self.rounds) == 1:  # The first round is in the most nodes, which takes no matrix to see.
            return Sensitivity(math.sqrt(self.length.bit_length()), True, "the largest norm of a column")
        return sensitivity(self.matrix(), participation)

    def round_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each round: a node, less those that it replaces."""
        p = np.arange(self.rounds) % self.length + 1
        return np.asarray(np.sqrt(1 + np.log2(p & -p)))

    def prefix_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each prefix sum: its number of nodes, and those of earlier trees."""
        trees, p = np.divmod(np.arange(self.rounds), self.length)
        return np.asarray(np.sqrt(np.bitwise_count(p + 1) + trees * self.length.bit_count()))

    def start(self, like: Tensor) -> Tensor:
        """Return the state before the first round, (floor(log2 of the rounds of a tree) + 1, *shape)."""
        return like.new_zeros(self.length.bit_length(), *like.shape)

    def correlate(self, noise: Tensor, state: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Return ((C^-1 z)_t, the next state), see `Factorization`."""
        p = index % self.length + 1
        level = (p & -p).bit_length() - 1
        state_after = torch.cat([state[:level], noise[None], state[level + 1 :]])
        return subtract(noise, (1.0,) * level, state[:level]), state_after


def unamplified(noise_multiplier: float) -> Mechanism:
    """Return the mechanism of a whole training, for the accountants: one Gaussian release, for any factorization.

    Args:
        noise_multiplier: Standard deviation of z, divided by the clip and by the sensitivity for the unit's participations.
    """
    return Mechanism(noise_multiplier, sampling_rate=1.0, steps=1)


def amplified(factorization: Banded, noise_multiplier: float, rate: float, groups: int | None = None) -> Mechanism:
    """Return the mechanism of a training whose units are sampled, for the accountants.

    The units are split into groups, independently of the data. Round t samples from group t mod groups, each unit with
    probability rate * groups. A unit's columns of C are orthogonal, so the training is as private as ceil(T / groups) sampled
    Gaussian releases (Choquette-Choo et al., NeurIPS 2023, Theorem 4). Adjacency: one unit is added or removed. The
    draw must be hidden from the observer.

    Args:
        noise_multiplier: Standard deviation of z, divided by the clip and by the sensitivity for *one* participation.
        rate: Mean over the rounds of the probability that a unit is in the round, in [0, 1 / groups].
        groups: Number of groups, at least the number of bands; None for the number of bands.

    Raises:
        InputError: For fewer groups than bands, or a rate outside its range.
    """
    bands = len(factorization.coefficients)
    groups = bands if groups is None else groups
    if groups < bands:
        raise InputError(f"groups: got {groups}, expected at least {bands}, the number of bands")
    if not 0 <= rate * groups <= 1:
        raise InputError(f"rate: got {rate}, expected a number in [0, 1 / {groups}], one over the number of groups")
    return Mechanism(noise_multiplier, rate * groups, -(-factorization.rounds // groups))


def subtract(noise: Tensor, weights: tuple[float, ...] | list[float], terms: Tensor) -> Tensor:
    """Return noise - sum_i weights_i terms_i, one after the other, so that the result does not depend on the other lanes."""
    for weight, term in zip(weights, terms, strict=True):
        noise = torch.sub(noise, term, alpha=weight)
    return noise


def _powers(rounds: int, weights: Reals, decays: Reals) -> Reals:
    """Return 1, then sum_i weights_i decays_i^(t - 1) for t = 1 ... rounds - 1."""
    return np.concatenate([[1.0], decays ** np.arange(rounds - 1)[:, None] @ weights])


def _row_norms(column: Reals) -> Reals:
    return np.sqrt(np.cumsum(column**2))
