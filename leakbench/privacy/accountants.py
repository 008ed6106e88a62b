"""Accountants: what Gaussian mechanisms, sampled and repeated, add up to. Each maps (mechanisms, delta) to epsilon.

`pld` and `rdp` are upper bounds by today's mathematics; `moments_2017`, `zcdp`, `advanced` and `basic` are what papers
of the field printed. The parameters of each mechanism are fixed before the training, so that their order is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from leakbench.errors import InputError
from leakbench.privacy.compositions import advanced, basic, zcdp
from leakbench.privacy.mechanism import LEAST_NOISE, Mechanism, Mechanisms, Mixture, gathered
from leakbench.privacy.pairs import coarsest_needed, composed_epsilon, fixed_size_epsilon, uses_of, visible_epsilon
from leakbench.privacy.renyi import INTEGER_ORDERS, Reals, by_quadrature, divergences, epsilon_at, of_mixture

__all__ = ["ACCOUNTANTS", "ORDERS_2017", "Accountant", "best", "moments_2017", "pld", "rdp"]

ORDERS_2017 = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)
# Finer than usual above 64, where the best order of a run of few steps lies.
ORDERS = (
    *sorted({*ORDERS_2017[:10], *(1 + x / 10 for x in range(1, 100))}),
    *range(11, 64),
    *range(64, 128, 4),
    *range(128, 256, 8),
    *range(256, 1025, 32),
)

FEW = 4
"""Kinds of mechanism up to which no order is left out."""

MANY, RATIO = 128, 1.01
"""Kinds of mechanism up to which `pld` rounds nothing, at 20 ms each; the ratio of the grid to which it then rounds."""

Accountant: TypeAlias = Callable[[Mechanisms, float], float]


def _settled(mechanisms: Mechanisms, delta: float) -> float | None:
    """Return the epsilon where no accountant is needed, else None; raise InputError for a delta out of (0, 1)."""
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
    telling = [m for m in mechanisms if not m.idle]
    if not telling:
        return 0.0
    return math.inf if min(m.noise_multiplier for m in telling) < LEAST_NOISE else None


def _renyi(mechanisms: Mechanisms, orders: Sequence[float]) -> tuple[tuple[float, ...], Reals]:
    """Return (orders used, Rényi divergences of all steps together): of more than `FEW` kinds, integer orders only."""
    whole = tuple(int(a) for a in orders if a == int(a) and a >= 2)
    total = np.array([m.steps for m in mechanisms]) @ divergences(mechanisms, whole)
    if len(mechanisms) > FEW:
        return whole, total
    rest = tuple(a for a in orders if a not in whole)
    found = [sum(m.steps * _divergence(m, a) for m in mechanisms) for a in rest]
    return (*rest, *whole), np.array([*found, *total])


def _divergence(mechanism: Mechanism | Mixture, order: float) -> float:
    """Return the Rényi divergence of one step at an order that is no integer."""
    if isinstance(mechanism, Mixture):
        inner = sum(m.steps * _divergence(m, order) for m in mechanism.mechanisms)
        return float(of_mixture(mechanism, [order], np.array([inner]))[0])
    q, sigma = mechanism.sampling_rate, mechanism.noise_multiplier
    if q == 0:
        return 0.0
    if q == 1:
        return order / (2 * sigma**2)
    if mechanism.sampling == "visible":
        return float(np.logaddexp(math.log1p(-q), math.log(q) + order * (order - 1) / (2 * sigma**2))) / (order - 1)
    if mechanism.sampling == "fixed":  # Whoever is in every sample pays most, as divergences are quasi-convex.
        return min(by_quadrature(q, sigma / 2, order), order / (2 * sigma**2))
    return by_quadrature(q, sigma, order)


@lru_cache(maxsize=256)
def moments_2017(mechanisms: Mechanisms, delta: float) -> float:
    """Return the epsilon at `delta` of the moments accountant as TensorFlow Privacy had it: what the papers printed.

    Poisson sampling; orders 1.25 to 512 (of more than `FEW` kinds of mechanism the integers among them: the same where
    the best order is one of these); conversion min over a of rdp(a) - ln(delta) / (a - 1) (Abadi et al., CCS 2016,
    Theorem 2; Mironov, CSF 2017, Proposition 3). Looser than `rdp`. Raises InputError for another sampling or a delta
    out of (0, 1).
    """
    for mechanism in mechanisms:
        if mechanism.sampling != "poisson":
            raise InputError(f"moments_2017: got sampling {mechanism.sampling!r}, expected 'poisson'")
    settled = _settled(mechanisms, delta)
    if settled is not None:
        return settled
    orders, total = _renyi(gathered(mechanisms), ORDERS_2017)
    return float(epsilon_at(orders, total, delta, "old"))


@lru_cache(maxsize=256)
def rdp(mechanisms: Mechanisms, delta: float) -> float:
    """Return the epsilon at `delta` by Rényi divergences and their tight conversion: an upper bound.

    Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12. A sample of fixed size is covered as `Mechanism.event`
    says. Of more than `FEW` kinds of mechanism integer orders only: valid, and at most some hundredths looser. Raises
    InputError for a delta out of (0, 1).
    """
    settled = _settled(mechanisms, delta)
    if settled is not None:
        return settled
    kinds = gathered(mechanisms)
    if len(kinds) > FEW:
        return float(epsilon_at(*_renyi(kinds, INTEGER_ORDERS), delta, "tight"))
    from dp_accounting.rdp import rdp_privacy_accountant  # noqa: PLC0415

    orders, total = _renyi(kinds, ORDERS)
    return float(rdp_privacy_accountant.compute_epsilon(orders, list(total), delta)[0])


@lru_cache(maxsize=256)
def pld(mechanisms: Mechanisms, delta: float) -> float:
    """Return the epsilon at `delta` by privacy loss distributions, the tightest of all, rounded to the safe side.

    Of more than `MANY` kinds of mechanism noise multipliers are rounded down to a grid of 1 %, which leaves an upper
    bound: the truth under at most 1 % less noise. Raises InputError for delta out of (0, 1), MemoryError or ValueError
    where the losses span more than can be held.
    """
    settled = _settled(mechanisms, delta)
    if settled is not None:
        return settled
    kinds = gathered(mechanisms)
    if sum(len(m.mechanisms) if isinstance(m, Mixture) else 1 for m in kinds) > MANY:
        kinds = gathered(kinds, RATIO)
    interval = _interval(kinds, delta)
    with np.errstate(all="ignore"):
        visible = uses_of(kinds[0]) if len(kinds) == 1 else None
        if visible is not None:
            return visible_epsilon(*visible, delta)
        if len(kinds) == 1 and kinds[0].sampling == "fixed" and kinds[0].sampling_rate < 1:
            return fixed_size_epsilon(
                kinds[0].noise_multiplier, kinds[0].sampling_rate, kinds[0].steps, delta, interval
            )
        plain = [m for m in kinds if isinstance(m, Mechanism) and (m.sampling == "poisson" or m.sampling_rate == 1)]
        if len(plain) == len(kinds):
            return _poisson_pld(plain, delta, interval)
        return composed_epsilon(kinds, delta, interval)


def _interval(kinds: Mechanisms, delta: float) -> float:
    """Return the grid of losses: those in the thousands need no grid of 1e-4, and a coarser one is still on the safe side."""
    total = np.array([m.steps for m in kinds]) @ divergences(kinds)  # More orders only make the epsilon less.
    small = bool(epsilon_at(INTEGER_ORDERS, total, delta, "tight") <= 5)
    return max(1e-4, *map(coarsest_needed, kinds), 0.0 if small else 2e-5 * rdp(kinds, delta))


def _poisson_pld(kinds: Sequence[Mechanism], delta: float, interval: float) -> float:
    from dp_accounting.pld import PLDAccountant  # noqa: PLC0415

    accountant: Any = PLDAccountant(value_discretization_interval=interval)
    for mechanism in kinds:
        accountant.compose(Mechanism(mechanism.noise_multiplier, mechanism.sampling_rate, mechanism.steps).event())
    return float(accountant.get_epsilon(delta))


def best(mechanisms: Mechanisms, delta: float) -> tuple[float, str]:
    """Return (epsilon, accountant's name): `pld`, or `rdp` where that one fails."""
    try:
        epsilon = pld(mechanisms, delta)
    except InputError:
        raise
    except (ArithmeticError, MemoryError, ValueError):
        epsilon = math.inf
    if math.isfinite(epsilon):
        return epsilon, "pld"
    return rdp(mechanisms, delta), "rdp"


ACCOUNTANTS: dict[str, Accountant] = {
    "moments_2017": moments_2017,
    "rdp": rdp,
    "pld": pld,
    "zcdp": zcdp,
    "advanced": advanced,
    "basic": basic,
}
