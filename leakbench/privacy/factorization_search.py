"""Factorizations with a small error of the prefix sums: in closed form, and by a search over the coefficients.

A search minimises ||B||_F^2 sensitivity(C)^2 / T, the mean squared error, or the largest one, which is that of the last round. Its
gradient is exact: c * beta = (1, 1, ...) for the first columns c of C and beta of B, so a change dc changes beta by
-C^-1 (dc * beta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.privacy.factorization import Banded, Buffered, subtract
from leakbench.privacy.participation import SINGLE, Participation, Reals, Sensitivity, sensitivity, shifted_sum

__all__ = ["Dense", "Minimised", "banded", "buffered", "dense", "independent", "square_root"]

Minimised: TypeAlias = Literal["mean", "largest"]
"""The error that a search minimises: its mean over the rounds, or the largest one."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Any lower-triangular C, for few rounds: the state has the noise of all rounds.

    Args:
        strategy: C (T, T), lower-triangular with a positive diagonal.

    Raises:
        InputError: For another matrix.
    """

    strategy: Reals

    def __post_init__(self) -> None:
        c = self.strategy
        if c.ndim != 2 or len(c) < 1 or c.shape[0] != c.shape[1] or np.triu(c, 1).any() or not (np.diag(c) > 0).all():
            raise InputError(f"strategy: got {c.shape}, expected a lower-triangular (T, T) with a positive diagonal")

    @property
    def rounds(self) -> int:
        """Number of rounds T."""
        return len(self.strategy)

    def matrix(self) -> Reals:
        """Return C (T, T)."""
        return self.strategy

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """Return the sensitivity, see `sensitivity`."""
        return sensitivity(self.strategy, participation)

    def round_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each round."""
        return np.asarray(np.linalg.norm(np.linalg.inv(self.strategy), axis=1))

    def prefix_deviations(self) -> Reals:
        """Return the standard deviations (T,) of the noise of each prefix sum."""
        return np.asarray(np.linalg.norm(np.cumsum(np.linalg.inv(self.strategy), axis=0), axis=1))

    def start(self, like: Tensor) -> Tensor:
        """Return the state before the first round, (0, *shape)."""
        return like.new_zeros(0, *like.shape)

    def correlate(self, noise: Tensor, state: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Return ((C^-1 z)_t, the next state), see `Factorization`."""
        row = self.strategy[index].tolist()
        noise = subtract(noise, row[:index], state) / row[index]
        return noise, torch.cat([state, noise[None]])


def independent(rounds: int) -> Banded:
    """Return C = identity: independent noise, as in DP-SGD, whose privacy is not amplified."""
    return Banded(rounds, (1.0,))


def square_root(rounds: int, bands: int) -> Banded:
    """Return the first b coefficients of the square root of A, then zeros (Kalinin and Lampert, NeurIPS 2024).

    They are binom(2j, j) / 4^j. For b = T, C = B = A^(1/2), whose largest error for one participation is the least of all Toeplitz
    factorizations (Fichtenberger, Henzinger and Upadhyay, ICML 2023; Dvijotham et al., FOCS 2024).

    Args:
        rounds: T.
        bands: b, 1 <= b <= T.

    Raises:
        InputError: For a number of bands outside its range.
    """
    _check_bands(rounds, bands)
    return Banded(rounds, tuple(_square_root(bands).tolist()))


def banded(rounds: int, bands: int, participation: Participation = SINGLE, error: Minimised = "mean") -> Banded:
    """Return the non-negative, non-increasing b coefficients with the least error.

    This shape makes the sensitivity exact for every participation. For participations at least b apart, the optimum over all
    coefficients has this shape too, where it was computed (T = 64, 512, 1024; b = 2, 8, 32, 64), and does not depend on the
    separation.

    Args:
        rounds: T.
        bands: b, 1 <= b <= T.

    Raises:
        InputError: For a number of bands outside its range.
    """
    from scipy import optimize, signal  # noqa: PLC0415  (takes a second)

    _check_bands(rounds, bands)

    def loss(steps: Reals) -> tuple[float, Reals]:
        column = np.pad(np.cumsum(steps[::-1])[::-1], (0, rounds - bands))
        inverse = signal.lfilter([1.0], column[:bands], np.eye(1, rounds)[0])
        value, gradient = _log_error(column, inverse, participation, error)
        return value, np.cumsum(gradient[:bands])

    start = -np.diff(_square_root(bands), append=0.0)
    # A last coefficient of 0 would give fewer bands, and a first one of 0 no inverse.
    limits = [(0.0, None)] * (bands - 1) + [(1e-9, None)]
    found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options=_LIMITS).x
    column = np.cumsum(found[::-1])[::-1]
    return Banded(rounds, tuple((column / column[0]).tolist()))


def buffered(rounds: int, buffers: int, participation: Participation = SINGLE, error: Minimised = "mean") -> Buffered:
    """Return d buffers with a small error (McMahan, Xu and Zhang 2024, arXiv:2408.08868).

    The weights are positive with a sum below 1, so the coefficients are non-increasing and the sensitivity is exact. The search is
    local. It starts from the square root of A, with decays at logarithmic distances from 1.

    Args:
        rounds: T.
        buffers: d, >= 1; more than 6 hardly lower the error.

    Raises:
        InputError: For a number of rounds or buffers below 1.
    """
    from scipy import optimize  # noqa: PLC0415

    for field, number in (("rounds", rounds), ("buffers", buffers)):
        if number < 1:
            raise InputError(f"{field}: got {number}, expected a whole number >= 1")

    def loss(point: Reals) -> tuple[float, Reals]:
        weights, decays = _weights(point[:buffers]), _decays(point[buffers:])
        found = Buffered(rounds, tuple(weights.tolist()), tuple(decays.tolist()))
        value, gradient = _log_error(found.column(), found.inverse_column(), participation, error)
        age = np.arange(rounds - 1)[:, None]
        by_weight = gradient[1:] @ decays**age
        by_decay = gradient[1:] @ (age * decays ** np.maximum(age - 1, 0)) * weights
        return value, np.concatenate([weights * (by_weight - weights @ by_weight), by_decay * decays * (1 - decays)])

    # binom(2t, t) / 4^t is the mean of x^t under the arcsine distribution; each decay takes the part of it nearest to it.
    gaps = np.geomspace(0.75, min(0.25, 2 / rounds), 2 * buffers + 1)
    share = -np.diff(np.arcsin(np.sqrt(gaps[2:-1:2])), prepend=math.pi / 2, append=0.0) * 2 / math.pi
    gaps = gaps[1::2]
    root = (1 - gaps) * share
    # The inverses of `_weights` and `_decays`.
    start = np.concatenate([np.log(root / (1 - root.sum())), np.log((1 - gaps) / gaps)])
    # Within these limits a decay stays below 1 in floating point.
    limits = [(-30.0, 30.0)] * (2 * buffers)
    point = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options=_LIMITS).x
    order = np.argsort(-point[buffers:])
    weights, decays = _weights(point[:buffers])[order], _decays(point[buffers:])[order]
    return Buffered(rounds, tuple(weights.tolist()), tuple(decays.tolist()))


def dense(rounds: int) -> Dense:
    """Return the factorization with the least mean squared error of all, for one participation.

    The fixed point v = diag((diag(sqrt v) A^T A diag(sqrt v))^(1/2)) gives C^T C = diag(v)^(-1/2) (...)^(1/2) diag(v)^(-1/2), with
    ones on the diagonal (Denisov et al., NeurIPS 2022). It takes T^3 operations per step.

    Args:
        rounds: T, between 1 and 512.

    Raises:
        InputError: For a number of rounds outside its range.
    """
    if not 1 <= rounds <= 512:
        raise InputError(f"rounds: got {rounds}, expected between 1 and 512 for a dense factorization")
    sums = np.tri(rounds)
    v = np.ones(rounds)
    for _ in range(1000):
        root = np.sqrt(v)
        values, vectors = np.linalg.eigh(root[:, None] * (sums.T @ sums) * root)
        half = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        before, v = v, np.diag(half).copy()
        if np.abs(v / before - 1).max() < 1e-9:
            break
    gram = half / np.sqrt(np.outer(v, v))
    # A lower-triangular C with C^T C = gram: the Cholesky factor in the reversed order of the rounds.
    return Dense(np.linalg.cholesky(gram[::-1, ::-1]).T[::-1, ::-1].copy())


_LIMITS = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-14, "gtol": 1e-9}
"""Tolerances of the searches, far below the differences between factorizations."""


def _log_error(column: Reals, inverse: Reals, participation: Participation, error: Minimised) -> tuple[float, Reals]:
    """Return the logarithm of the squared error and its gradient (T,) with respect to the first column of C.

    Args:
        column: First column of C (T,), non-negative and non-increasing.
        inverse: First column of C^-1 (T,).
    """
    from scipy import signal  # noqa: PLC0415

    rounds = len(column)
    # Entry j of the first column of B is in the rows of all rounds from j on, and once in the last one.
    uses = np.arange(rounds, 0, -1) / rounds if error == "mean" else np.ones(rounds)
    beta = np.cumsum(inverse)
    squared = float(uses @ beta**2)
    back = signal.fftconvolve(inverse, (2 * uses * beta)[::-1])[:rounds][::-1]
    by_error = -signal.fftconvolve(back, beta[::-1])[rounds - 1 :]
    separation, count = participation.separation, participation.count(rounds)
    total = shifted_sum(column, separation, count)
    norm = float(total @ total)
    by_norm = 2 * shifted_sum(total[::-1], separation, count)[::-1]
    return math.log(squared * norm), by_error / squared + by_norm / norm


def _square_root(bands: int) -> Reals:
    """Return binom(2j, j) / 4^j for j = 0 ... b - 1."""
    j = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod(1 - 0.5 / j)])


def _weights(point: Reals) -> Reals:
    """Return positive weights with a sum below 1: the softmax of (point, 0) without its last entry."""
    top = max(0.0, float(point.max()))
    powers = np.exp(point - top)
    return np.asarray(powers / (powers.sum() + math.exp(-top)))


def _decays(point: Reals) -> Reals:
    """Return decays between 0 and 1: the logistic function of the point."""
    return np.asarray(1 / (1 + np.exp(-point)))


def _check_bands(rounds: int, bands: int) -> None:
    if not 1 <= bands <= rounds:
        raise InputError(f"bands: got {bands}, expected between 1 and {rounds}, the rounds")
