"""Accountants: compose sampled and repeated Gaussian mechanisms. Each maps (mechanisms, delta) to epsilon.

`pld` and `rdp` are upper bounds. `moments_2017`, `zcdp`, `advanced` and `basic` reproduce the numbers that papers print. The
parameters of each mechanism are fixed before the training, so the order of the mechanisms does not matter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from leakbench.core.errors import InputError
from leakbench.privacy.compositions import advanced, basic, zcdp
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.group import Group
from leakbench.privacy.mechanism import (
    LEAST_NOISE,
    AnyMechanism,
    Gaussians,
    Mechanism,
    Mechanisms,
    Mixture,
    gathered,
    gaussians,
)
from leakbench.privacy.pairs import (
    coarsest_needed,
    composed_epsilon,
    fixed_size_epsilon,
    poisson_epsilon,
    uses_of,
    visible_epsilon,
)
from leakbench.privacy.renyi import INTEGER_ORDERS, Reals, by_quadrature, divergences, epsilon_at, of_mixture

__all__ = ["ACCOUNTANTS", "ORDERS_2017", "Accountant", "best", "moments_2017", "pld", "rdp"]

ORDERS_2017 = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)
# Finer than usual above 64, where a run of few steps has its best order.
ORDERS = (
    *sorted({*ORDERS_2017[:10], *(1 + x / 10 for x in range(1, 100))}),
    *range(11, 64),
    *range(64, 128, 4),
    *range(128, 256, 8),
    *range(256, 1025, 32),
)

FEW = 4
"""Largest number of kinds of mechanism for which all orders are used."""

MANY, RATIO = 128, 1.01
"""Largest number of kinds of mechanism that `pld` does not round, at 20 ms each, and the ratio of the grid for more."""

RELATIVE = 2e-5
"""Step of the grid of losses, relative to a large epsilon."""

Accountant: TypeAlias = Callable[[Mechanisms, float], float]


def _settled(mechanisms: Mechanisms, delta: float) -> float | None:
    """Return the epsilon if it is 0 or infinite, else None; raise InputError for a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
    telling = [m for m in mechanisms if not m.idle]
    if not telling:
        return 0.0
    return math.inf if min(m.noise_multiplier for m in telling) < LEAST_NOISE else None


def _renyi(mechanisms: Mechanisms, orders: Sequence[float]) -> tuple[tuple[float, ...], Reals]:
    """Return (orders used, Rényi divergences of all steps together); for more than `FEW` kinds, integer orders only."""
    whole = tuple(int(a) for a in orders if a == int(a) and a >= 2)
    total = np.array([m.steps for m in mechanisms]) @ divergences(mechanisms, whole)
    if len(mechanisms) > FEW:
        return whole, total
    rest = tuple(a for a in orders if a not in whole)
    sums = [sum(m.steps * _divergence(m, a) for m in mechanisms) for a in rest]
    return (*rest, *whole), np.array([*sums, *total])


def _divergence(mechanism: AnyMechanism, order: float) -> float:
    """Return the Rényi divergence of one step at any order above 1."""
    if isinstance(mechanism, DiscreteMechanism | Group):
        return float(mechanism.divergences([order])[0])
    if isinstance(mechanism, Mixture):
        inner = sum(m.steps * _divergence(m, order) for m in mechanism.mechanisms)
        return float(of_mixture(mechanism, [order], np.array([inner]))[0])
    return _gaussian_divergence(mechanism, order)


def _gaussian_divergence(mechanism: Mechanism, order: float) -> float:
    q, sigma = mechanism.sampling_rate, mechanism.noise_multiplier
    if q == 0:
        return 0.0
    if q == 1:
        return order / (2 * sigma**2)
    if mechanism.sampling == "visible":
        return float(np.logaddexp(math.log1p(-q), math.log(q) + order * (order - 1) / (2 * sigma**2))) / (order - 1)
    if mechanism.sampling == "fixed":  # Divergences are quasi-convex, so a unit in every sample has the largest one.
        return min(by_quadrature(q, sigma / 2, order), order / (2 * sigma**2))
    return by_quadrature(q, sigma, order)


@lru_cache(maxsize=256)
def moments_2017(mechanisms: Mechanisms, delta: float) -> float:
    """Return the epsilon at `delta` by the moments accountant of TensorFlow Privacy, which the papers used.

    Poisson sampling; orders 1.25 to 512, for more than `FEW` kinds of mechanism only the integers among them; conversion min over
    a of rdp(a) - ln(delta) / (a - 1) (Abadi et al., CCS 2016, Theorem 2; Mironov, CSF 2017, Proposition 3). Looser than `rdp`.

    Raises:
        InputError: For a sampling other than `poisson` or a delta outside (0, 1).
    """
    for mechanism in mechanisms:
        if isinstance(mechanism, Group):
            raise InputError("moments_2017: got several examples of one person, expected one example")
        if mechanism.sampling != "poisson":
            raise InputError(f"moments_2017: got sampling {mechanism.sampling!r}, expected 'poisson'")
    settled = _settled(mechanisms, delta)
    if settled is not None:
        return settled
    orders, total = _renyi(gathered(mechanisms), ORDERS_2017)
    return float(epsilon_at(orders, total, delta, "old"))


@lru_cache(maxsize=256)
def rdp(mechanisms: Mechanisms, delta: float) -> float:
    """Return an upper bound of the epsilon at `delta`, by Rényi divergences and their tight conversion.

    Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12. `Mechanism.event` explains how a sample of fixed size is covered. For
    more than `FEW` kinds of mechanism only integer orders are used, which is valid and a few hundredths looser at most.

    Raises:
        InputError: For a delta outside (0, 1).
    """
    settled = _settled(mechanisms, delta)
    if settled is not None:
        return settled
    kinds = gathered(mechanisms)
    if len(kinds) > FEW or any(map(_whole_orders, kinds)):
        return float(epsilon_at(*_renyi(kinds, INTEGER_ORDERS), delta, "tight"))
    from dp_accounting.rdp import rdp_privacy_accountant  # noqa: PLC0415

    orders, total = _renyi(kinds, ORDERS)
    return float(rdp_privacy_accountant.compute_epsilon(orders, list(total), delta)[0])


@lru_cache(maxsize=256)
def pld(mechanisms: Mechanisms, delta: float) -> float:
    """Return an upper bound of the epsilon at `delta` by privacy loss distributions, the tightest of all accountants.

    For more than `MANY` kinds of mechanism, noise multipliers are rounded down to a grid of 1 %; the result is then the epsilon
    of at most 1 % less noise, still an upper bound.

    Raises:
        InputError: For a delta outside (0, 1).
        MemoryError: If the range of losses does not fit into memory; also ValueError.
        ValueError: For a `DiscreteMechanism`, of which only Rényi divergences are known.
    """
    settled = _settled(mechanisms, delta)
    if settled is not None:
        return settled
    kinds = gaussians(gathered(mechanisms))
    if sum(len(m.mechanisms) if isinstance(m, Mixture) else 1 for m in kinds) > MANY:
        kinds = gaussians(gathered(kinds, RATIO))
    interval = _interval(kinds, delta)
    with np.errstate(all="ignore"):
        visible = uses_of(kinds[0]) if len(kinds) == 1 else None
        if visible is not None:
            return visible_epsilon(*visible, delta)
        first = kinds[0]
        if len(kinds) == 1 and isinstance(first, Mechanism) and first.sampling == "fixed" and first.sampling_rate < 1:
            return fixed_size_epsilon(first.noise_multiplier, first.sampling_rate, first.steps, delta, interval)
        plain = [m for m in kinds if isinstance(m, Mechanism) and (m.sampling == "poisson" or m.sampling_rate == 1)]
        if len(plain) == len(kinds):
            return poisson_epsilon(plain, delta, interval)
        found = composed_epsilon(kinds, delta, interval)
        if not any(map(_whole_orders, kinds)):
            return found
        # Rényi divergences overestimate the epsilon of a person, and so the step of the grid. Every result is an upper bound.
        least = max(1e-4, *map(coarsest_needed, kinds))
        while (finer := max(least, RELATIVE * found)) < interval / 2:
            found, interval = min(found, composed_epsilon(kinds, delta, finer)), finer
        return found


def _interval(kinds: Gaussians, delta: float) -> float:
    """Return the step of the grid of losses: 1e-4, or a coarser one for large losses, which still gives an upper bound."""
    similar = gaussians(tuple(map(_similar, kinds)))
    total = np.array([m.steps for m in similar]) @ divergences(similar)  # More orders can only decrease the epsilon.
    small = bool(epsilon_at(INTEGER_ORDERS, total, delta, "tight") <= 5)
    return max(1e-4, *map(coarsest_needed, kinds), 0.0 if small else RELATIVE * rdp(similar, delta))


def _similar(mechanism: AnyMechanism) -> AnyMechanism:
    """Return a mechanism with a similar epsilon for which Rényi divergences are useful; any but a person's is returned as it is."""
    if isinstance(mechanism, Mixture):
        inner = tuple(m.similar() if isinstance(m, Group) else m for m in mechanism.mechanisms)
        return dataclasses.replace(mechanism, mechanisms=inner)
    return mechanism.similar() if isinstance(mechanism, Group) else mechanism


def _whole_orders(mechanism: AnyMechanism) -> bool:
    """Return whether the Rényi divergences of a mechanism are computed for integer orders only."""
    several = mechanism.mechanisms if isinstance(mechanism, Mixture) else (mechanism,)
    return any(isinstance(m, Group) for m in several)


def best(mechanisms: Mechanisms, delta: float) -> tuple[float, str]:
    """Return (epsilon, accountant's name): `pld`, or `rdp` if `pld` fails."""
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
