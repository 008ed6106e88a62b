"""Accountants: what a Gaussian mechanism, sampled and repeated, adds up to. Each maps (mechanism, delta) to epsilon.

`pld` and `rdp` are upper bounds by today's mathematics; `moments_2017` is what papers of the field printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from leakbench.errors import InputError
from leakbench.privacy.pairs import fixed_size_epsilon, visible_epsilon

__all__ = ["ACCOUNTANTS", "Accountant", "Mechanism", "best", "moments_2017", "pld", "rdp"]

ORDERS_2017 = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)
# Finer than usual above 64, where the best order of a run of few steps lies.
ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *range(64, 128, 4),
    *range(128, 256, 8),
    *range(256, 1025, 32),
)

LEAST_NOISE = 1e-6
"""Noise multiplier under which an epsilon, of at least 1e11, is called infinite."""


@dataclass(frozen=True)
class Mechanism:
    """A sum with Gaussian noise, released `steps` times.

    noise_multiplier: standard deviation of the noise over the largest L2 norm that one unit adds to the sum; >= 0.
    sampling_rate: probability, in [0, 1], that the unit is in one sum.  steps: number of releases, >= 0.
    sampling: `poisson`: every unit by its own coin (adjacency: add or remove one unit); `fixed`: a fixed number of
        units without replacement (zero-out: the unit's contribution becomes zero); `visible`: by coin, but the release
        shows whether the unit is in (zero-out).
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    sampling: Literal["poisson", "fixed", "visible"] = "poisson"

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0:
            raise InputError(f"noise_multiplier: got {self.noise_multiplier}, expected a number >= 0")
        if not 0 <= self.sampling_rate <= 1:
            raise InputError(f"sampling_rate: got {self.sampling_rate}, expected a number in [0, 1]")
        if self.steps < 0:
            raise InputError(f"steps: got {self.steps}, expected a whole number >= 0")

    def event(self) -> Any:
        """Return a dp_accounting DpEvent, for adjacency ADD_OR_REMOVE_ONE, that is at least as revealing.

        A sample of fixed size is covered by Poisson sampling at half the noise: the output moves by up to twice a
        contribution when one unit takes another's place. A visible use has no such event: raises InputError.
        """
        import dp_accounting  # noqa: PLC0415  (takes a second)

        if self.sampling == "visible":
            raise InputError("sampling: got 'visible', expected 'poisson' or 'fixed' for a DpEvent")
        half = 0.5 if self.sampling == "fixed" and self.sampling_rate < 1 else 1.0
        gaussian = dp_accounting.GaussianDpEvent(half * self.noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(self.sampling_rate, gaussian), self.steps
        )


Accountant: TypeAlias = Callable[[Mechanism, float], float]


def _settled(mechanism: Mechanism, delta: float) -> float | None:
    """Return the epsilon where no accountant is needed, else None; raise InputError for a delta out of (0, 1)."""
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
    if mechanism.sampling_rate == 0 or mechanism.steps == 0 or mechanism.noise_multiplier == math.inf:
        return 0.0
    return math.inf if mechanism.noise_multiplier < LEAST_NOISE else None


def _renyi(mechanism: Mechanism, orders: tuple[float, ...]) -> tuple[list[float], list[float]]:
    """Return (orders used, Rényi divergences of all steps together)."""
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    orders = tuple(a for a in orders if _converges(a, mechanism))
    if mechanism.sampling == "visible":
        q, sigma, a = mechanism.sampling_rate, mechanism.noise_multiplier, np.array(orders)
        unused = math.log1p(-q) if q < 1 else -math.inf
        moment = np.logaddexp(unused, math.log(q) + a * (a - 1) / (2 * sigma**2))
        return list(orders), list(mechanism.steps * moment / (a - 1))
    accountant = RdpAccountant(orders)
    accountant.compose(mechanism.event())
    # Under very much noise a divergence of 1e-20 comes out of the logarithms as -1e-20.
    return list(orders), list(np.maximum(accountant.rdp, 0.0))


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
def moments_2017(mechanism: Mechanism, delta: float) -> float:
    """Return the epsilon at `delta` of the moments accountant as TensorFlow Privacy had it: what the papers printed.

    Poisson sampling; orders 1.25 to 512; conversion min over a of rdp(a) - ln(delta) / (a - 1) (Abadi et al., CCS 2016,
    Theorem 2; Mironov, CSF 2017, Proposition 3). Looser than `rdp`. Raises InputError for another sampling or a delta
    out of (0, 1).
    """
    if mechanism.sampling != "poisson":
        raise InputError(f"moments_2017: got sampling {mechanism.sampling!r}, expected 'poisson'")
    settled = _settled(mechanism, delta)
    if settled is not None:
        return settled
    orders, divergences = _renyi(mechanism, ORDERS_2017)
    return float(min(r - math.log(delta) / (a - 1) for a, r in zip(orders, divergences, strict=True)))


@lru_cache(maxsize=256)
def rdp(mechanism: Mechanism, delta: float) -> float:
    """Return the epsilon at `delta` by Rényi divergences and their tight conversion.

    Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12. A sample of fixed size is covered as `Mechanism.event`
    says. Raises InputError for a delta out of (0, 1).
    """
    settled = _settled(mechanism, delta)
    if settled is not None:
        return settled
    from dp_accounting.rdp import rdp_privacy_accountant  # noqa: PLC0415

    orders, divergences = _renyi(mechanism, ORDERS)
    return float(rdp_privacy_accountant.compute_epsilon(orders, divergences, delta)[0])


@lru_cache(maxsize=256)
def pld(mechanism: Mechanism, delta: float) -> float:
    """Return the epsilon at `delta` by privacy loss distributions, the tightest of the three, rounded to the safe side.

    Raises InputError for delta out of (0, 1), MemoryError or ValueError where the losses span more than can be held.
    """
    settled = _settled(mechanism, delta)
    if settled is not None:
        return settled
    sigma, q, steps = mechanism.noise_multiplier, mechanism.sampling_rate, mechanism.steps
    # Losses in the thousands need no grid of 1e-4; a coarser one is still on the safe side.
    interval = max(1e-4, 2e-5 * rdp(mechanism, delta))
    with np.errstate(all="ignore"):
        if mechanism.sampling == "visible":
            return visible_epsilon(sigma, q, steps, delta)
        if mechanism.sampling == "fixed" and q < 1:
            return fixed_size_epsilon(sigma, q, steps, delta, interval)
        from dp_accounting.pld import PLDAccountant  # noqa: PLC0415

        accountant = PLDAccountant(value_discretization_interval=interval)
        accountant.compose(mechanism.event())
        return float(accountant.get_epsilon(delta))


def best(mechanism: Mechanism, delta: float) -> tuple[float, str]:
    """Return (epsilon, accountant's name): `pld`, or `rdp` where that one fails."""
    try:
        epsilon = pld(mechanism, delta)
    except InputError:
        raise
    except (ArithmeticError, MemoryError, ValueError):
        epsilon = math.inf
    if math.isfinite(epsilon):
        return epsilon, "pld"
    return rdp(mechanism, delta), "rdp"


ACCOUNTANTS: dict[str, Accountant] = {"moments_2017": moments_2017, "rdp": rdp, "pld": pld}
