"""Composition theorems as papers of the field applied them: before the moments accountant, or beside it.

Each step is first given an epsilon of its own by the classical Gaussian mechanism, e0 = sqrt(2 ln(1.25 / delta)) / sigma,
a theorem for e0 < 1 only (Dwork and Roth 2014, Theorem A.1), which Poisson sampling amplifies to e = ln(1 + q (exp(e0) -
1)). What they charge for a step adds up, so that the epsilon is known after every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from leakbench.decay import least_constant
from leakbench.errors import InputError
from leakbench.privacy.mechanism import LEAST_NOISE, Mechanism, Mechanisms, Mixture
from leakbench.privacy.renyi import Reals

__all__ = ["COMPOSITIONS", "Composition", "advanced", "basic", "composition_costs", "zcdp"]


def composition_costs(mechanisms: Sequence[Mechanism | Mixture], delta: float, digits: int | None = None) -> Reals:
    """Return (S, 5): what one step of each mechanism costs; each composition takes its columns.

    Columns: e, e^2, e (exp(e) - 1), e (exp(e) - 1) / (exp(e) + 1), q^2 / sigma^2.

    Args:
        delta: Of one step before sampling.
        digits: To which e0 is rounded (Wei et al., TPDS 2023, Table 11 follows from 3: .807 for sigma 6, where .80747 is exact);
            None does not round. Raises InputError for another sampling than `poisson` or a delta out of (0, 1).
    """
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
    for mechanism in mechanisms:
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
    # Left out, not counted zero times: what is idle may cost an infinity a step.
    steps = np.array([m.steps for m in mechanisms], dtype=np.float64)[telling]
    return float(COMPOSITIONS[name](steps @ costs[telling], delta))


def basic(mechanisms: Mechanisms, delta: float) -> float:
    """Return the sum of the steps' epsilons (Dwork and Roth 2014, Theorem 3.16).

    `delta` is that of one step before sampling, as papers print it: the sum holds at a total delta of q * delta a step
    (1e-3 instead of 1e-5 for 10,000 steps at q = .01). Raises InputError as `composition_costs` does.
    """
    return _composed("basic", mechanisms, delta)


def advanced(mechanisms: Mechanisms, delta: float) -> float:
    """Return sqrt(2 ln(1 / delta) sum e^2) + sum e (exp(e) - 1) (Dwork, Rothblum and Vadhan, FOCS 2010, Theorem III.3).

    At a total delta of `delta` and q * delta a step more, as papers print it. Raises as `composition_costs` does.
    """
    return _composed("advanced", mechanisms, delta)


def zcdp(mechanisms: Mechanisms, delta: float) -> float:
    """Return rho + 2 sqrt(rho ln(1 / delta)) (Bun and Steinke, TCC 2016, Proposition 1.3), rho = sum q^2 / sigma^2.

    A heuristic of papers: zCDP has no amplification by q^2, and one Gaussian step has rho = 1 / (2 sigma^2). So this is
    no bound for q < 1, and twice too large a rho for q = 1. Raises InputError as `composition_costs` does.
    """
    return _composed("zcdp", mechanisms, delta)
