"""Epsilon after every round of a training, and the number of rounds within a budget.

Letters: R rounds, S steps, A orders. All functions use integer orders only, for any number of noise levels. The result is
valid, and
a few hundredths above that of fractional orders or privacy loss distributions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakbench.core.errors import InputError
from leakbench.privacy.compositions import COMPOSITIONS, composition_costs
from leakbench.privacy.ledger import Phase, Schedule, Unit
from leakbench.privacy.mechanism import Mechanisms
from leakbench.privacy.observers import observations
from leakbench.privacy.renyi import INTEGER_ORDERS, Conversion, Reals, divergences, epsilon_at

__all__ = ["composition_curve", "epsilon_curve", "rounds_within", "spent", "step_divergences"]


def step_divergences(mechanisms: Mechanisms, orders: Sequence[int] = INTEGER_ORDERS) -> Reals:
    """Return (S, A), the total Rényi divergence after each single step, where S counts the steps of all mechanisms."""
    repeats = [m.steps for m in mechanisms]
    return np.cumsum(np.repeat(divergences(mechanisms, orders), repeats, axis=0), axis=0)


def spent(phases: Sequence[Phase], unit: Unit, schedule: Schedule, orders: Sequence[int] = INTEGER_ORDERS) -> Reals:
    """Return (R, A), the total Rényi divergence against the observer of released models after each round.

    Raises:
        InputError: If no guarantee follows, with the reason, and as `observations` does.
    """
    seen = observations(phases, unit, schedule)["global"]
    if isinstance(seen, str):
        raise InputError(f"defense: no epsilon after any round: {seen} (choose a defense with a guarantee)")
    found, before = list[Reals](), np.zeros(len(orders))
    for part in seen.parts:
        # With turns, or rounds that are one release together, the first release may be in the first round.
        uses = np.array(
            [
                min(part.most, schedule.most_participations(unit, schedule.clients_per_round, r))
                for r in range(1, part.rounds + 1)
            ],
            dtype=np.float64,
        )
        released, share = part.drawn, uses / uses[-1]
        total = np.array([m.steps for m in released]) @ divergences(released, orders)
        found.append(before + share[:, None] * total)
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
    """Return (R,), the epsilon at `delta` against the observer of released models after each round.

    Raises:
        InputError: For a delta outside (0, 1), and as `spent` does.
    """
    _checked("delta", delta)
    return epsilon_at(orders, spent(phases, unit, schedule, orders), delta, conversion)


def composition_curve(name: str, mechanisms: Mechanisms, delta: float, digits: int | None = None) -> Reals:
    """Return (S,), the epsilon of a composition theorem after each single step.

    Args:
        name: A key of `COMPOSITIONS`.
        delta: As in `composition_costs`.
        digits: As in `composition_costs`.

    Raises:
        InputError: As `composition_costs` does.
    """
    repeats = [m.steps for m in mechanisms]
    costs = np.cumsum(np.repeat(composition_costs(mechanisms, delta, digits), repeats, axis=0), axis=0)
    return COMPOSITIONS[name](costs, delta)


def rounds_within(curve: Reals, budget: float) -> int:
    """Return the number of rounds within a budget: the number of entries before the first one above it.

    Papers that print the round *in* which a target is exceeded print one more.

    Args:
        curve: (R,), epsilons for a budget epsilon, or deltas at a fixed epsilon for a budget delta (Geyer et al. 2017).
    """
    above = np.flatnonzero(~(np.asarray(curve) <= budget))
    return int(above[0]) if above.size else len(curve)


def _checked(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise InputError(f"{name}: got {value}, expected a number in (0, 1)")
