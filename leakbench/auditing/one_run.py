"""The audit of one training with many canaries: each is included with probability 1/2, and its score guesses whether it was.

One training gives one guess for each canary, instead of one guess for each training (Steinke, Nasr and Jagielski, NeurIPS 2023,
arXiv:2305.08846). A hypothesis about the whole trade-off curve, instead of one (epsilon, delta), gives tighter bounds
(Mahloujifar, Melis and Chaudhuri, ICML 2025, arXiv:2410.22235). Both hold only if the number of guesses was chosen without
the scores.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import optimize, stats
from scipy.special import expit, ndtr, ndtri

from leakbench.auditing.bounds import CONFIDENCE, Reals
from leakbench.auditing.family import gaussian_epsilon, privacy_curve
from leakbench.core.errors import InputError
from leakbench.privacy.accountants import best, rdp
from leakbench.privacy.mechanism import Mechanism, Mixture

__all__ = [
    "Choice",
    "Curve",
    "Guesses",
    "OneRun",
    "audit_one_run",
    "curve_rejected",
    "default_choices",
    "epsilon_lower_bound",
    "family_lower_bound",
    "family_start",
    "gaussian_curve",
    "gaussian_lower_bound",
    "guess",
    "p_value",
    "points_curve",
]

Curve: TypeAlias = Callable[[float], float]
"""A symmetric trade-off function: false positive rate in [0, 1] -> least false negative rate."""

Choice: TypeAlias = tuple[int, int]
"""Numbers of guesses `included`, for the highest scores, and `left out`, for the lowest scores."""

LARGEST_ALPHA = 1 / 8
"""Largest probability of a wrong bound. Up to it, `p_value` increases with epsilon as long as it is at most alpha."""

MOST = 1e3
"""Largest epsilon or shift of a search."""


@dataclass(frozen=True)
class Guesses:
    """The guesses about the canaries of one training.

    Args:
        canaries: m, the number of canaries, each included independently with probability 1/2.
        made: r, the number of guesses; for the other canaries the auditor abstains.
        correct: v, the number of correct guesses.

    Raises:
        InputError: Unless 0 <= correct <= made <= canaries and there is a canary.
    """

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        if not (self.canaries >= 1 and 0 <= self.correct <= self.made <= self.canaries):
            given = f"{self.correct} correct of {self.made} guesses about {self.canaries} canaries"
            raise InputError(
                f"guesses: got {given}, expected 0 <= correct <= guesses <= canaries and at least 1 canary"
            )


@dataclass(frozen=True)
class OneRun:
    """The audit of one training. The fields are the keys of its JSON.

    Args:
        lower_bound: Lower bound of the epsilon at `delta`, without assumptions about the mechanism.
        lower_bound_family: Lower bound in the family of Gaussian mechanisms that the audit assumed; None without a family, and
            where it gives none, with the reason in `limits`. Both bounds hold together at `confidence`.
        delta: Delta of the epsilons.
        confidence: Probability that neither bound is above the true epsilon.
        unit: What a canary is, `client` or `example`.
        canaries: Number of canaries.
        included: Number of canaries that the training included.
        guesses: Number of guesses behind the bound without assumptions.
        correct: Number of correct ones among them.
        choices: Number of numbers of guesses that the confidence covers.
        limits: What the audit does not show, and why it has no bound in a family.
    """

    lower_bound: float
    lower_bound_family: float | None
    delta: float
    confidence: float
    unit: str
    canaries: int
    included: int
    guesses: int
    correct: int
    choices: int
    limits: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Return the text of the audit."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        family = "" if self.lower_bound_family is None else f", {self.lower_bound_family:.4g} in the Gaussian family"
        yield f"audited  epsilon at least {self.lower_bound:.4g}{family}, delta {self.delta:g}, unit: one {self.unit}"
        right = f"{self.correct} of {self.guesses} guesses right"
        yield f"         at {self.confidence:.0%} confidence, {self.canaries} canaries, {right}"
        yield f"         {self.limits}"


LIMITS = "a lower bound for these canaries: the epsilon may be larger, and a small bound does not guarantee privacy"


def guess(scores: Reals, included: Any, choice: Choice) -> Guesses:
    """Return the guesses by rank: `included` for the highest scores, `left out` for the lowest ones.

    Equal scores are ranked by their place, which does not depend on the inclusion.

    Args:
        scores: (m,), the score of each canary; high scores suggest its inclusion.
        included: (m,), bool, whether the training included it.
        choice: Numbers of guesses of both kinds.

    Raises:
        InputError: For scores that are not finite, other shapes, or more guesses than canaries.
    """
    scores, included = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    if scores.ndim != 1 or scores.shape != included.shape or not np.isfinite(scores).all():
        shapes = f"shapes {scores.shape} and {included.shape}"
        raise InputError(f"scores: got {shapes}, expected a finite score and an inclusion for each canary")
    high, low = choice
    if min(choice) < 0 or high + low > len(scores):
        raise InputError(f"guesses: got {high} + {low}, expected at most the {len(scores)} canaries")
    order = np.argsort(scores, kind="stable")
    correct = included[order[len(scores) - high :]].sum() + (~included[order[:low]]).sum()
    return Guesses(len(scores), high + low, int(correct))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return an upper limit of the probability of so many correct guesses under (epsilon, delta), in [0, 1].

    Steinke et al. 2023, Theorem 5.2: P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i with W ~ Binomial(r, 1 / (1 + e^-epsilon)).
    """
    m, r, v = guesses.canaries, guesses.made, guesses.correct
    right = expit(epsilon)
    beyond = float(stats.binom.sf(v - 1, r, right))
    if delta == 0 or v == 0:
        return beyond
    below = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, right))
    return min(1.0, beyond + 2 * m * delta * float((below / np.arange(1, v + 1)).max()))


def epsilon_lower_bound(guesses: Guesses, delta: float, alpha: float) -> float:
    """Return the largest epsilon that the guesses reject at `delta`: a true epsilon is below it with probability at most `alpha`.

    Args:
        delta: In [0, 1).
        alpha: In (0, 1/8].

    Raises:
        InputError: For a value outside its range.
    """
    _check(delta, alpha)
    # For alpha <= 1/8 the rejected epsilons are an interval from 0. Terms with i >= 2 m delta are mixtures of upper tails and
    # increase with epsilon. The others could decrease only where v - i is below the mean of W, and there they exceed alpha.
    return _largest(lambda epsilon: p_value(guesses, epsilon, delta) - alpha)


def gaussian_curve(shift: float) -> Curve:
    """Return the trade-off function of a unit Gaussian that moves by `shift` >= 0 (Dong, Roth and Su 2022, equation 6)."""
    return lambda rate: float(ndtr(ndtri(1.0 - rate) - shift))


def points_curve(epsilons: Reals, deltas: Reals) -> Curve:
    """Return the least trade-off function of a mechanism with several (epsilon, delta) (Dong et al. 2022, Proposition 2.5).

    Args:
        epsilons: (n,), at least 0.
        deltas: (n,), a delta for each epsilon.
    """
    slopes, rest = np.exp(epsilons), 1.0 - np.asarray(deltas)
    return lambda rate: max(0.0, float((rest - slopes * rate).max()), float(((rest - rate) / slopes).max()))


def curve_rejected(guesses: Guesses, curve: Curve, alpha: float) -> bool:
    """Return whether so many correct guesses have a probability of at most `alpha` under a trade-off function.

    Mahloujifar et al. 2025, Algorithm 3 with two choices for each canary.
    """
    return _margin(guesses, curve, alpha) > 0


def _margin(guesses: Guesses, curve: Curve, alpha: float) -> float:
    """Return how far the recursion exceeds what is possible; it decreases if the curve does.

    If at least v correct guesses had the probability alpha, then in the event of at least i correct ones the expected numbers of
    correct and of wrong guesses, divided by m, would be at least `right` and `wrong`. Both together are at most r / m.
    """
    m, r, v = guesses.canaries, guesses.made, guesses.correct
    right, wrong = alpha * v / m, alpha * (r - v) / m
    for i in range(v - 1, -1, -1):
        least = curve(1.0 - right)
        if least <= wrong:
            break  # Nothing changes from here on.
        right = min(1.0, right + i / (r - i) * (least - wrong))
        wrong = least
    return right + wrong - r / m


def gaussian_lower_bound(guesses: Guesses, delta: float, alpha: float) -> float:
    """Return the largest epsilon at `delta` of a Gaussian mechanism that the guesses reject.

    It is a lower bound for Gaussian differential privacy only, such as Gaussian noise on the sum of all participating units.

    Args:
        delta: In (0, 1).
        alpha: In (0, 1/8].

    Raises:
        InputError: For a value outside its range.
    """
    _check(delta, alpha, positive=True)
    shift = _largest(lambda shift: -_margin(guesses, gaussian_curve(shift), alpha))
    return gaussian_epsilon(shift, delta)


def family_lower_bound(
    several: Sequence[Guesses], mechanism: Mechanism | Mixture, delta: float, alpha: float
) -> float | None:
    """Return the largest epsilon at `delta` that some of the guesses reject in a family of mechanisms with unknown noise.

    Args:
        several: Guesses about the same canaries with different numbers of guesses.
        mechanism: The family's sampling, rate and steps; its noise is the start of the search.
        delta: In (0, 1).
        alpha: Probability of a wrong bound for each of the guesses, in (0, 1/8].

    Returns:
        The bound, from a noise multiplier to 1 %; infinite if the guesses reject every noise; None if the computation fails.

    Raises:
        InputError: For a value outside its range.
    """
    _check(delta, alpha, positive=True)
    if isinstance(mechanism, Mechanism) and mechanism.sampling_rate == 1:
        return max(gaussian_lower_bound(guesses, delta, alpha) for guesses in several)
    if isinstance(mechanism, Mechanism):
        # Without noise the releases show whether they used the unit, and noise can only hide it.
        used = -math.expm1(mechanism.steps * math.log1p(-mechanism.sampling_rate))
        noiseless = points_curve(np.zeros(1), np.array([used]))
        if any(curve_rejected(guesses, noiseless, alpha) for guesses in several):
            return math.inf
    # A curve from points on the privacy curve, or above it, is at most the true one: rejecting it rejects the mechanism.
    deltas = [float(d) for d in np.geomspace(1e-4, 0.5, 12)]

    def rejected(noise: float) -> bool:
        member = mechanism.with_noise(noise)
        interval = max(1e-3, 1e-3 * rdp((member,), 1e-5))
        if isinstance(member, Mechanism) and member.steps > MANY_STEPS:
            # The losses that are rounded in each step must not add up to the spread of the loss of all steps.
            interval = min(interval, max(LEAST_INTERVAL, 0.4 * member.sampling_rate / noise))
        curve = points_curve(*privacy_curve(member, deltas, interval))
        return any(curve_rejected(guesses, curve, alpha) for guesses in several)

    try:
        noise = _least_rejected(rejected, mechanism.noise_multiplier)
        return 0.0 if noise == math.inf else best((mechanism.with_noise(noise),), delta)[0]
    except (ArithmeticError, MemoryError, ValueError):
        return None


def family_start(rate: float, steps: int) -> float:
    """Return a noise multiplier at which to start the search of a family: at least 1, and that of an epsilon of a few.

    Many steps with noise sigma are near one Gaussian with noise sigma / (rate sqrt(steps)) (Dong et al. 2022, section 5.2).
    """
    return max(1.0, rate * math.sqrt(steps))


MANY_STEPS = 10_000
"""Number of steps above which the grid of losses is finer."""

LEAST_INTERVAL = 2e-4
"""Least step of this grid."""

FAR_FROM_START = 100.0
"""Largest ratio of a noise multiplier of the search to its start: with more noise the epsilon counts as 0."""


def _least_rejected(rejected: Callable[[float], bool], start: float) -> float:
    """Return a rejected noise multiplier that is at most 1 % above one that is not; infinite if none is rejected."""
    low = high = start
    while rejected(low):
        low, high = low / 1.3, low
        if low < start / FAR_FROM_START:
            return high
    while high == low or not rejected(high):
        low, high = high, 1.3 * high
        if high > FAR_FROM_START * start:
            return math.inf
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if rejected(middle) else (middle, high)
    return high


def default_choices(canaries: int) -> tuple[Choice, ...]:
    """Return numbers of guesses that do not depend on scores: 1/16, 1/4 and all of the canaries, one half of each kind."""
    made = sorted({max(2, canaries // share) for share in (16, 4, 1)})
    return tuple((r - r // 2, r // 2) for r in made if r <= canaries)


def audit_one_run(
    scores: Reals,
    included: Any,
    delta: float,
    unit: str,
    choices: Sequence[Choice],
    family: Mechanism | Mixture | None = None,
    confidence: float = CONFIDENCE,
) -> OneRun:
    """Return lower bounds of the epsilon of one training from the scores of its canaries.

    Each of the n choices, and each of the two bounds if there is a family, gets an equal share of 1 - confidence (Bonferroni).

    Args:
        scores: (m,), the score of each canary; high scores suggest its inclusion.
        included: (m,), bool, drawn independently with probability 1/2.
        delta: Delta of the epsilons, in (0, 1).
        unit: What a canary is.
        choices: Numbers of guesses, chosen without the scores.
        family: Mechanism with the sampling, rate and steps of the training; None for bounds without assumptions only.
        confidence: In [0.875, 1).

    Raises:
        InputError: For a value outside its range, or no choice.
    """
    if not choices:
        raise InputError("choices: got none, expected the numbers of guesses that were chosen before the training")
    alpha = (1 - confidence) / (len(choices) * (1 if family is None else 2))
    _check(delta, alpha, positive=family is not None)
    made = [guess(scores, included, choice) for choice in choices]
    bounds = [epsilon_lower_bound(guesses, delta, alpha) for guesses in made]
    within = None if family is None else family_lower_bound(made, family, delta, alpha)
    limits = LIMITS
    if family is not None and within is None:
        limits = f"in the Gaussian family: not computed; {LIMITS}"
    if within == math.inf:
        within, limits = None, f"in the Gaussian family: the guesses contradict this rate and these steps; {LIMITS}"
    telling = min(made, key=lambda guesses: p_value(guesses, max(bounds), delta))
    return OneRun(
        lower_bound=max(bounds),
        lower_bound_family=within,
        delta=delta,
        confidence=confidence,
        unit=unit,
        canaries=telling.canaries,
        included=int(np.asarray(included, dtype=bool).sum()),
        guesses=telling.made,
        correct=telling.correct,
        choices=len(choices),
        limits=limits,
    )


def _check(delta: float, alpha: float, positive: bool = False) -> None:
    if not (0 < delta < 1 or (delta == 0 and not positive)):
        raise InputError(f"delta: got {delta}, expected a number in {'(0, 1)' if positive else '[0, 1)'}")
    if not 0 < alpha <= LARGEST_ALPHA:
        raise InputError(
            f"alpha: got {alpha}, expected a number in (0, 1/8], 1 - confidence divided by the number of bounds"
        )


def _largest(excess: Callable[[float], float]) -> float:
    """Return the zero of a function that increases from below 0; 0 if it starts at 0 or above."""
    if excess(0.0) >= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) < 0:
        low, high = high, 2 * high
        if high > MOST:
            return low
    return float(optimize.brentq(excess, low, high, xtol=1e-10))
