"""Amplification by shuffling: an observer sees the reports of n clients in a random order, without the clients' names.

Each client sends one report, which is epsilon_0-differentially private by itself. Adjacency: replace the data of one client.
Feldman, McMillan and Talwar, FOCS 2021 (arXiv 2012.12803). Their later paper (SODA 2023, arXiv 2208.04591) has tighter bounds,
which by its errata do not hold for every report, so they are not used here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import common, privacy_loss_distribution
from numpy.typing import NDArray
from scipy import optimize, stats

from leakbench.core.errors import InputError
from leakbench.privacy.pairs import gaussian_delta

__all__ = ["Shuffled", "largest_local_epsilon", "shuffled_delta", "shuffled_epsilon", "shuffled_epsilon_closed"]

MOST = 700.0
"""Local epsilon above which no clones are counted, since its exponential is near the largest number in double precision."""

UNLIKELY = 1e-3
"""Part of the delta for numbers of clones that are left out and count as full disclosure."""


def largest_local_epsilon(clients: int, delta: float) -> float:
    """Return the largest epsilon_0 for which the closed form is valid: ln(n / (16 ln(2 / delta))); negative if it never is."""
    _check(0.0, clients, delta)
    return math.log(clients / (16 * math.log(2 / delta)))


def shuffled_epsilon_closed(local_epsilon: float, clients: int, delta: float) -> float:
    """Return an upper bound of the epsilon at `delta` of all shuffled reports, in closed form.

    Feldman, McMillan and Talwar 2021, Theorem 3.1. Outside its range of validity the reports have no proven amplification by this
    theorem, and the result is the local epsilon. The result is never above it.

    Args:
        local_epsilon: epsilon_0 of one report, >= 0.
        clients: Number of reports (n), each from another client.
        delta: In (0, 1).

    Raises:
        InputError: For a number outside its range.
    """
    _check(local_epsilon, clients, delta)
    if local_epsilon > largest_local_epsilon(clients, delta):
        return local_epsilon
    grown = math.exp(local_epsilon)
    spread = 8 * math.sqrt(grown * math.log(4 / delta) / clients) + 8 * grown / clients
    return min(local_epsilon, math.log1p(math.tanh(local_epsilon / 2) * spread))


def shuffled_delta(epsilon: float, local_epsilon: float, clients: int, left_out: float = 0.0) -> float:
    """Return an upper bound of the delta at `epsilon` of all shuffled reports, numerically.

    Feldman, McMillan and Talwar 2021, Theorem 3.2. Each other report is a clone of the client's with probability exp(-epsilon_0),
    and clones hide it: with C clones, A of which are like its report for one of its two values, the test is between (A + 1, C - A)
    and (A, C - A + 1), each mixed with the other at odds of exp(epsilon_0) to 1.

    Args:
        epsilon: >= 0.
        local_epsilon: epsilon_0 of one report, >= 0.
        clients: Number of reports (n).
        left_out: Probability of numbers of clones that are left out, on each side; they count in full.

    Raises:
        InputError: For a number outside its range.
    """
    _check(local_epsilon, clients, 0.5)
    if not epsilon >= 0:
        raise InputError(f"epsilon: got {epsilon}, expected a number >= 0")
    if epsilon >= local_epsilon:
        return 0.0
    if local_epsilon > MOST:
        return 1.0
    clones = stats.binom(clients - 1, math.exp(-local_epsilon))
    low, high = (int(clones.ppf(left_out)), int(clones.isf(left_out))) if left_out else (0, clients - 1)
    count = np.arange(max(low, 0), high + 1)
    outside = float(clones.cdf(count[0] - 1) + clones.sf(count[-1]))
    return float(clones.pmf(count) @ _given_clones(epsilon, local_epsilon, count)) + outside


def _given_clones(epsilon: float, local_epsilon: float, count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the hockey-stick divergence for each number of clones.

    The density ratio increases with the first count x = A + 1 or A, of c + 1. With p = exp(epsilon_0) / (exp(epsilon_0) + 1), it is
    (p x + (1 - p) y) / ((1 - p) x + p y), y = c + 1 - x, since the binomial probabilities of x - 1 and x are as x to y.
    """
    p, rest = 1 / (1 + math.exp(-local_epsilon)), math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon))
    # The ratio is above exp(epsilon) where y / x is below these odds, so always at y = 0.
    odds = -math.expm1(epsilon - local_epsilon) / -math.expm1(-epsilon - local_epsilon) * math.exp(-epsilon)
    first = count + 2 - np.maximum(np.ceil((count + 1) * odds / (1 + odds)), 1.0).astype(np.int64)
    tails = stats.binom(count, 0.5)
    more, less = tails.sf(first - 2), tails.sf(first - 1)
    # Both factors are differences of nearly equal numbers near the local epsilon, so they are not computed as differences.
    gain = -p * math.expm1(epsilon - local_epsilon)
    loss = math.exp(epsilon) * p - rest
    return np.asarray(np.maximum(gain * more - loss * less, 0.0))


def shuffled_epsilon(local_epsilon: float, clients: int, delta: float) -> float:
    """Return an upper bound of the epsilon at `delta` of all shuffled reports, numerically; tighter than the closed form.

    Args:
        local_epsilon: epsilon_0 of one report, >= 0.
        clients: Number of reports (n), each from another client.
        delta: In (0, 1).

    Returns:
        The epsilon, at most `local_epsilon`, for any number of clients.

    Raises:
        InputError: For a number outside its range.
    """
    _check(local_epsilon, clients, delta)

    def excess(epsilon: float) -> float:
        return shuffled_delta(epsilon, local_epsilon, clients, UNLIKELY * delta) - delta

    if excess(0.0) <= 0:
        return 0.0
    if excess(local_epsilon * (1 - 1e-9)) > 0:
        return local_epsilon
    found = float(optimize.brentq(excess, 0.0, local_epsilon * (1 - 1e-9), xtol=1e-12))
    return min(local_epsilon, found + 1e-9)


@dataclass(frozen=True)
class Shuffled:
    """Reports with Gaussian noise of n clients in each of several rounds, each round in a random order.

    Args:
        noise_multiplier: Standard deviation of the noise of one report, divided by the L2 bound of one update, > 0.
        clients: Number of reports in a round (n), each from another client.
        rounds: Number of rounds with the client's report (T).
    """

    noise_multiplier: float
    clients: int
    rounds: int

    def epsilon(self, delta: float) -> float:
        """Return an upper bound of the epsilon at `delta` of all rounds, for another update of one client in every round.

        A report is (epsilon_0, delta_0)-differentially private for every epsilon_0, since its two updates differ by at most twice
        the bound. A round is then (epsilon, delta + n (exp(epsilon) + 1) (1 + exp(-epsilon_0) / 2) delta_0)-differentially private
        (Feldman, McMillan and Talwar 2021, Theorem 3.8), and rounds compose as in Kairouz, Oh and Viswanath, ICML 2015. The best
        of some epsilon_0 counts. Infinite if none gives a finite one.

        Args:
            delta: In (0, 1).
        """
        if not 0 < delta < 1:
            raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
        if self.rounds == 0:
            return 0.0
        # Half of the delta is left for the composition of several rounds.
        each = delta if self.rounds == 1 else delta / (2 * self.rounds)
        tried = np.geomspace(0.01, 10.0, 31)
        for _ in range(2):  # The least is narrow: below it, the local delta is too large.
            found = [self._of_one_round(local, each) for local in tried]
            best = int(np.argmin(found))
            tried = np.geomspace(tried[max(0, best - 1)], tried[min(len(tried) - 1, best + 1)], 31)
        one = min(found)
        if self.rounds == 1 or one == math.inf:
            return one
        parameters = common.DifferentialPrivacyParameters(one, each)
        grid = max(1e-4, one / 50)
        losses = privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=grid)
        return min(self.rounds * one, float(losses.self_compose(self.rounds).get_epsilon_for_delta(delta)))

    def _of_one_round(self, local: float, delta: float) -> float:
        rest = float(gaussian_delta(local, np.array(2 / self.noise_multiplier)))
        weight = self.clients * (1 + math.exp(-local) / 2) * rest

        def excess(epsilon: float) -> float:
            more = weight * (math.exp(epsilon) + 1)
            return shuffled_delta(epsilon, local, self.clients, UNLIKELY * delta) + more - delta

        if excess(local) > 0:
            return math.inf
        return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, local, xtol=1e-12)) + 1e-9


def _check(local_epsilon: float, clients: int, delta: float) -> None:
    if not 0 <= local_epsilon < math.inf:
        raise InputError(f"local_epsilon: got {local_epsilon}, expected a finite number >= 0")
    if clients < 1:
        raise InputError(f"clients: got {clients}, expected a whole number >= 1")
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
