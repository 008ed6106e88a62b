"""Epsilon after every round of a training, and how many rounds fit into a budget.

Letters: R rounds, S steps, A orders. Integer orders only, of any number of noise levels: valid, and a few hundredths
above what fractional orders or privacy loss distributions give at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakbench.errors import InputError
from leakbench.privacy.compositions import COMPOSITIONS, composition_costs
from leakbench.privacy.ledger import Phase, Schedule, Unit
from leakbench.privacy.mechanism import Mechanisms
from leakbench.privacy.observers import observations
from leakbench.privacy.renyi import INTEGER_ORDERS, Conversion, Reals, divergences, epsilon_at

__all__ = ["composition_curve", "epsilon_curve", "rounds_within", "spent", "step_divergences"]


def step_divergences(mechanisms: Mechanisms, orders: Sequence[int] = INTEGER_ORDERS) -> Reals:
    """Return (S, A): the Rényi divergence spent after each single step; S: the steps of all mechanisms together."""
    repeats = [m.steps for m in mechanisms]
    return np.cumsum(np.repeat(divergences(mechanisms, orders), repeats, axis=0), axis=0)


def spent(phases: Sequence[Phase], unit: Unit, schedule: Schedule, orders: Sequence[int] = INTEGER_ORDERS) -> Reals:
    """Return (R, A): the Rényi divergence that the observer of released models has after each round.

    Raises InputError where there is no guarantee, with the reason, and as `observations` does.
    """
    seen = observations(phases, unit, schedule)["global"]
    if isinstance(seen, str):
        raise InputError(f"defense: no epsilon after any round: {seen} (choose a defense with a guarantee)")
    found, before = list[Reals](), np.zeros(len(orders))
    for part in seen.parts:
        total = np.array([m.steps for m in part.drawn]) @ divergences(part.drawn, orders)
        found.append(before + np.arange(1, part.rounds + 1)[:, None] / part.rounds * total)
        before = found[-1][-1]
    return np.concatenate(found)


def epsilon_curve(
    phases: Sequence[Phase],
    unit: Unit,
    schedule: Schedule,
    delta: float = 1e-5,
    conversion: Conversion = "tight",
    orders: Sequence[int] = INTEGER_ORDERS,
) -> Reals:
    """Return (R,): the epsilon at `delta` after each round, for the observer of released models.

    Raises InputError for a delta out of (0, 1) and as `spent` does.
    """
    _checked("delta", delta)
    return epsilon_at(orders, spent(phases, unit, schedule, orders), delta, conversion)


def composition_curve(name: str, mechanisms: Mechanisms, delta: float, digits: int | None = None) -> Reals:
    """Return (S,): the epsilon of a composition theorem (a name of `COMPOSITIONS`) after each single step.

    Raises InputError as `composition_costs` does.
    """
    repeats = [m.steps for m in mechanisms]
    costs = np.cumsum(np.repeat(composition_costs(mechanisms, delta, digits), repeats, axis=0), axis=0)
    return COMPOSITIONS[name](costs, delta)


def rounds_within(curve: Reals, budget: float) -> int:
    """Return how many rounds fit into a budget: how many entries of a curve come before the first one above it.

    Args:
        curve: (R,) epsilons against a budget epsilon, or deltas at a fixed epsilon against a budget delta (where Geyer et al.
            2017 stop). Papers that print the round *in* which a target is passed print one more.
    """
    above = np.flatnonzero(~(np.asarray(curve) <= budget))
    return int(above[0]) if above.size else len(curve)


def _checked(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise InputError(f"{name}: got {value}, expected a number in (0, 1)")
