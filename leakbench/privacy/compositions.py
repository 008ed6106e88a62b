"""Composition theorems as papers applied them, before the moments accountant or for comparison with it.

The classical Gaussian mechanism first gives each step an epsilon e0 = sqrt(2 ln(1.25 / delta)) / sigma, by a theorem for e0 < 1
(Dwork and Roth 2014, Theorem A.1). Poisson sampling amplifies it to e = ln(1 + q (exp(e0) - 1)). The costs of the steps add up, so
the epsilon is known after every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from leakbench.core.errors import InputError
from leakbench.privacy.decay import least_constant
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.group import Group
from leakbench.privacy.mechanism import LEAST_NOISE, AnyMechanism, Mechanisms
from leakbench.privacy.renyi import Reals

__all__ = ["COMPOSITIONS", "Composition", "advanced", "basic", "composition_costs", "zcdp"]


def composition_costs(mechanisms: Sequence[AnyMechanism], delta: float, digits: int | None = None) -> Reals:
    """Return the costs of one step of each of S mechanisms; each composition uses some of the columns.

    Args:
        delta: Delta of one step before sampling.
        digits: Digits to which e0 is rounded (Wei et al., TPDS 2023, Table 11 follows from 3: .807 for sigma 6, instead of the
            exact .80747); None does not round.

    Returns:
        (S, 5), with columns e, e^2, e (exp(e) - 1), e (exp(e) - 1) / (exp(e) + 1), q^2 / sigma^2.

    Raises:
        InputError: For integer noise, a sampling other than `poisson`, or a delta outside (0, 1).
    """
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
    for mechanism in mechanisms:
        if isinstance(mechanism, DiscreteMechanism):
            raise InputError(f"composition: got noise {mechanism.noise.family!r}, expected Gaussian noise")
        if isinstance(mechanism, Group):
            raise InputError("composition: got several examples of one person, expected one example")
        if mechanism.sampling != "poisson":
            raise InputError(f"composition: got sampling {mechanism.sampling!r}, expected 'poisson'")
    sigma = np.maximum([m.noise_multiplier for m in mechanisms], LEAST_NOISE)
    rate = np.array([m.sampling_rate for m in mechanisms])
    alone = least_constant(delta) / sigma
    if digits is not None:
        alone = np.round(alone, digits)
    # exp overflows above 700, where ln(1 + q (exp(x) - 1)) grows like x.
    within = np.minimum(alone, 700.0)
    e = np.log1p(rate * np.expm1(within)) + np.where(rate > 0, alone - within, 0.0)
    with np.errstate(over="ignore"):
        return np.stack([e, e**2, e * np.expm1(e), e * np.tanh(e / 2), (rate / sigma) ** 2], axis=1)


Composition: TypeAlias = Callable[[Reals, float], Reals]
"""(costs of all steps together (..., 5), delta) -> epsilon (...)."""


def _basic(costs: Reals, delta: float) -> Reals:
    return np.asarray(costs[..., 0])


def _advanced(costs: Reals, delta: float) -> Reals:
    return np.asarray(np.sqrt(-2 * math.log(delta) * costs[..., 1]) + costs[..., 2])


def _advanced_2015(costs: Reals, delta: float) -> Reals:
    return np.asarray(np.sqrt(-2 * math.log(delta) * costs[..., 1]) + costs[..., 3])


def _zcdp(costs: Reals, delta: float) -> Reals:
    return np.asarray(costs[..., 4] + 2 * np.sqrt(-costs[..., 4] * math.log(delta)))


COMPOSITIONS: dict[str, Composition] = {
    "basic": _basic,
    "advanced": _advanced,
    # Kairouz, Oh and Viswanath, ICML 2015: the third bound of their theorem for steps that differ.
    "advanced_2015": _advanced_2015,
    "zcdp": _zcdp,
}


def _composed(name: str, mechanisms: Mechanisms, delta: float) -> float:
    costs = composition_costs(mechanisms, delta)
    telling = [not m.idle for m in mechanisms]
    if any(m.noise_multiplier < LEAST_NOISE for m, tells in zip(mechanisms, telling, strict=True) if tells):
        return math.inf
    # Idle mechanisms are removed: a step of them may have an infinite cost, and zero times infinity is NaN.
    steps = np.array([m.steps for m in mechanisms], dtype=np.float64)[telling]
    return float(COMPOSITIONS[name](steps @ costs[telling], delta))


def basic(mechanisms: Mechanisms, delta: float) -> float:
    """Return the sum of the steps' epsilons (Dwork and Roth 2014, Theorem 3.16).

    `delta` is that of one step before sampling, as papers print it. The total delta of the sum is q * delta per step (1e-3 instead
    of 1e-5 for 10,000 steps at q = .01). Raises InputError as `composition_costs` does.
    """
    return _composed("basic", mechanisms, delta)


def advanced(mechanisms: Mechanisms, delta: float) -> float:
    """Return sqrt(2 ln(1 / delta) sum e^2) + sum e (exp(e) - 1) (Dwork, Rothblum and Vadhan, FOCS 2010, Theorem III.3).

    The total delta is `delta` plus q * delta per step, as papers print it. Raises InputError as `composition_costs` does.
    """
    return _composed("advanced", mechanisms, delta)


def zcdp(mechanisms: Mechanisms, delta: float) -> float:
    """Return rho + 2 sqrt(rho ln(1 / delta)) (Bun and Steinke, TCC 2016, Proposition 1.3), rho = sum q^2 / sigma^2.

    This is a heuristic of papers: sampling does not amplify zCDP by q^2, and one Gaussian step has rho = 1 / (2 sigma^2). So the
    result is not a bound for q < 1, and rho is twice too large for q = 1. Raises InputError as `composition_costs` does.
    """
    return _composed("zcdp", mechanisms, delta)
