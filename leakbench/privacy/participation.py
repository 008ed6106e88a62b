"""Sensitivity of a matrix mechanism, for the rounds in which one unit can take part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from leakbench.core.errors import InputError

__all__ = [
    "EVERY",
    "SINGLE",
    "Participation",
    "Sensitivity",
    "sensitivity",
    "shifted_sum",
    "toeplitz",
    "toeplitz_sensitivity",
]

Reals: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Participation:
    """The rounds in which one unit can take part: any rounds at least `separation` apart, at most `most` of them.

    Args:
        separation: Least difference between two rounds of a unit, >= 1; 1 allows every round. It is the number of rounds of an
            epoch if all epochs have the same order of the units, and 1 if each epoch has its own.
        most: Largest number of participations, >= 1, such as the number of epochs; None for as many as the separation allows.

    Raises:
        InputError: For a number outside its range.
    """

    separation: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if self.separation < 1:
            raise InputError(f"separation: got {self.separation}, expected a whole number >= 1")
        if self.most is not None and self.most < 1:
            raise InputError(f"most: got {self.most}, expected a whole number >= 1, or None")

    def count(self, rounds: int) -> int:
        """Return the largest number of participations that T rounds allow."""
        allowed = -(-rounds // self.separation)
        return allowed if self.most is None else min(allowed, self.most)


SINGLE = Participation(most=1)
"""One participation, in any round."""

EVERY = Participation()
"""Participation in every round."""


@dataclass(frozen=True)
class Sensitivity:
    """The largest L2 norm of C u, where u has one unit's contributions as rows, for a clip of 1.

    Args:
        value: The sensitivity, or an upper bound of it.
        exact: Whether it is the sensitivity itself.
        reason: The argument for it, a phrase.
    """

    value: float
    exact: bool
    reason: str


def toeplitz(column: Reals) -> Reals:
    """Return the lower-triangular Toeplitz matrix (T, T) with this first column (T,)."""
    index = np.arange(len(column))
    distance = index[:, None] - index
    return np.where(distance >= 0, column[np.abs(distance)], 0.0)


def toeplitz_sensitivity(column: Reals, participation: Participation) -> Sensitivity:
    """Return the sensitivity of the lower-triangular Toeplitz matrix with this first column.

    Let s be the separation and k the number of participations. The value is the norm of the sum of the columns 0, s, 2s, ...,
    (k - 1) s, exactly, in two cases: the first column is non-negative and non-increasing (Kalinin and Lampert, NeurIPS 2024,
    Theorem 2), or columns at least s apart are orthogonal, and the norms fall from left to right (Choquette-Choo et al., NeurIPS
    2023). Else see `sensitivity`.

    Args:
        column: (T,).
    """
    bands = int(np.flatnonzero(column)[-1]) + 1
    count = participation.count(len(column))
    # Coefficients that are equal in theory may differ by a rounding error.
    falling = bool((column >= 0).all() and (np.diff(column) <= 1e-14 * column[0]).all())
    if falling or bands <= participation.separation or count == 1:
        total = shifted_sum(column, participation.separation, count)
        reason = "non-negative and non-increasing coefficients" if falling else "orthogonal columns"
        return Sensitivity(float(np.linalg.norm(total)), True, reason)
    return sensitivity(toeplitz(column), participation)


def sensitivity(matrix: Reals, participation: Participation) -> Sensitivity:
    """Return the sensitivity of any C, or an upper bound of it.

    It is exact if the columns of a unit are orthogonal. Else the value is an upper bound that lets the rows and the columns of
    |C^T C| have different rounds (Choquette-Choo et al., NeurIPS 2023, Algorithms 3 and 4). The bound is exact too if the rounds
    0, s, 2s, ... attain it for a separation s, as they do for participation in every round if C^T C has no negative entry.

    Args:
        matrix: C (T, T). The bound takes T^2 operations, and k times as many if `most` limits the k participations.
    """
    gram = matrix.T @ matrix
    rounds, separation = len(gram), participation.separation
    count = participation.count(rounds)
    if count == 1 or not np.tril(gram, -separation).any():
        value = float(_best_rounds(np.diag(gram), separation, count))
        return Sensitivity(
            math.sqrt(value), True, "orthogonal columns" if count > 1 else "the largest norm of a column"
        )
    bound = float(_best_rounds(_best_rounds(np.abs(gram), separation, count), separation, count))
    attained = gram[: separation * count : separation, : separation * count : separation].sum()
    if attained >= bound * (1 - 1e-12):
        return Sensitivity(math.sqrt(bound), True, "an upper bound that equally spaced rounds attain")
    return Sensitivity(math.sqrt(bound), False, "an upper bound: each row of C^T C has its own rounds")


def shifted_sum(column: Reals, separation: int, count: int) -> Reals:
    """Return the sum of the columns 0, s, 2s, ..., (count - 1) s of the Toeplitz matrix with this first column."""
    total = column.copy()
    for shift in range(separation, separation * count, separation):
        total[shift:] += column[:-shift]
    return total


def _best_rounds(values: Reals, separation: int, count: int) -> Reals:
    """Return the largest sum of at most `count` entries >= 0, at least `separation` apart, along the last axis."""
    rounds = values.shape[-1]
    # best[i] is the largest sum from entry i on: with entry i, or with a later first entry.
    best = np.zeros((rounds + separation, *values.shape[:-1]))
    entries = np.moveaxis(values, -1, 0)
    if count * separation >= rounds:  # The separation alone limits the number of entries.
        for i in reversed(range(rounds)):
            best[i] = np.maximum(entries[i] + best[i + separation], best[i + 1])
        return np.asarray(best[0])
    for _ in range(count):
        best[:rounds] = entries + best[separation:]
        best = np.maximum.accumulate(best[::-1], axis=0)[::-1]
    return np.asarray(best[0])
