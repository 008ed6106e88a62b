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
from leakbench.privacy.mechanism import LEAST_NOISE, Mechanism, Mechanisms, gathered
from leakbench.privacy.pairs import composed_epsilon, fixed_size_epsilon, visible_epsilon
from leakbench.privacy.renyi import INTEGER_ORDERS, Reals, divergences, epsilon_at

__all__ = ["ACCOUNTANTS", "ORDERS_2017", "Accountant", "best", "moments_2017", "pld", "rdp"]

ORDERS_2017 = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)
# Finer than usual above 64, where the best order of a run of few steps lies.
ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *range(64, 128, 4),
    *range(128, 256, 8),
    *range(256, 1025, 32),
)

FEW = 4
"""Kinds of mechanism up to which no order is left out, at 0.1 to 0.3 s each."""

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
    if len(mechanisms) > FEW:
        whole = tuple(int(a) for a in orders if a == int(a) and a >= 2)
        return whole, np.array([m.steps for m in mechanisms]) @ divergences(mechanisms, whole)
    kept = tuple(a for a in orders if all(_converges(a, m) for m in mechanisms))
    return kept, np.asarray(np.sum([_one_renyi(m, kept) for m in mechanisms], axis=0))


def _one_renyi(mechanism: Mechanism, orders: tuple[float, ...]) -> Reals:
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    if mechanism.sampling == "visible":
        q, sigma, a = mechanism.sampling_rate, mechanism.noise_multiplier, np.array(orders)
        unused = math.log1p(-q) if q < 1 else -math.inf
        moment = np.logaddexp(unused, math.log(q) + a * (a - 1) / (2 * sigma**2))
        return np.asarray(mechanism.steps * moment / (a - 1))
    # Closed forms of all integer orders at once take a hundredth of the time of the series one by one.
    whole = tuple(int(a) for a in orders if a == int(a) and a >= 2)
    rest = tuple(a for a in orders if a not in whole)
    found: dict[float, float] = dict(zip(whole, mechanism.steps * divergences([mechanism], whole)[0], strict=True))
    if rest:
        accountant = RdpAccountant(rest)
        accountant.compose(mechanism.event())
        # Under very much noise a divergence of 1e-20 comes out of the logarithms as -1e-20.
        found |= dict(zip(rest, np.maximum(accountant.rdp, 0.0), strict=True))
    return np.array([found[a] for a in orders])


def _converges(order: float, mechanism: Mechanism) -> bool:
    """Tell whether the series for this order ends within its 1000 terms; integer orders are closed forms.

    The n-th term shrinks like n^-(order + 2) times a Gaussian in n up to z0 (Mironov, Talwar and Zhang 2019, section
    3.3) and is dropped below exp(-30); 6 more for the constants. Every order gives a bound, so that one left out makes
    epsilon no less valid.
    """
    q = mechanism.sampling_rate
    if order == int(order) or q in (0.0, 1.0):
        return True
    sigma = mechanism.noise_multiplier * (0.5 if mechanism.sampling == "fixed" else 1.0)
    z0 = abs(sigma**2 * math.log(1 / q - 1) + 0.5)
    reached = min(z0, 1000.0)
    return (order + 2) * math.log(1000) + reached * (z0 - reached / 2) / sigma**2 > 36


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
    if len(kinds) > MANY:
        kinds = gathered(kinds, RATIO)
    interval = _interval(kinds, delta)
    with np.errstate(all="ignore"):
        if len(kinds) == 1 and kinds[0].sampling == "visible":
            return visible_epsilon(kinds[0].noise_multiplier, kinds[0].sampling_rate, kinds[0].steps, delta)
        if len(kinds) == 1 and kinds[0].sampling == "fixed" and kinds[0].sampling_rate < 1:
            return fixed_size_epsilon(
                kinds[0].noise_multiplier, kinds[0].sampling_rate, kinds[0].steps, delta, interval
            )
        if all(m.sampling == "poisson" or m.sampling_rate == 1 for m in kinds):
            return _poisson_pld(kinds, delta, interval)
        return composed_epsilon(kinds, delta, interval)


def _interval(kinds: Mechanisms, delta: float) -> float:
    """Return the grid of losses: those in the thousands need no grid of 1e-4, and a coarser one is still on the safe side."""
    total = np.array([m.steps for m in kinds]) @ divergences(kinds)  # More orders only make the epsilon less.
    return 1e-4 if epsilon_at(INTEGER_ORDERS, total, delta, "tight") <= 5 else max(1e-4, 2e-5 * rdp(kinds, delta))


def _poisson_pld(kinds: Mechanisms, delta: float, interval: float) -> float:
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
