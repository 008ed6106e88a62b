"""Epsilons step by step: what a claim's formula gives after each, and how many steps would give a printed number."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np

from leakbench.privacy.accountants import ORDERS_2017
from leakbench.privacy.claim import CompositionClaim
from leakbench.privacy.curve import composition_curve, step_divergences
from leakbench.privacy.mechanism import Mechanism, Mechanisms, merged
from leakbench.privacy.renyi import Reals, epsilon_at
from leakbench.reproduce.accounting.readings import Composed

__all__ = ["curve", "divergences_after", "first", "steps_that_give"]

WHOLE_2017 = tuple(int(a) for a in ORDERS_2017 if a == int(a))


@lru_cache(maxsize=16)
def divergences_after(mechanisms: Mechanisms, orders: tuple[int, ...]) -> Reals:
    """Return (S, A): the Rényi divergence spent after each step; many claims share one sequence."""
    return step_divergences(mechanisms, orders)


def curve(part: Composed, mechanisms: Mechanisms) -> Reals:
    """Return (S,): the epsilon that the claim's own formula gives after each single step."""
    if isinstance(part, CompositionClaim):
        return composition_curve(part.composition, mechanisms, part.delta, part.digits)
    return epsilon_at(WHOLE_2017, divergences_after(mechanisms, WHOLE_2017), part.delta, "old")


def first(mechanisms: Mechanisms, steps: int) -> Mechanisms:
    """Return the first steps of a sequence."""
    singly = (dataclasses.replace(m, steps=1) for m in mechanisms for _ in range(m.steps))
    return merged(m for m, _ in zip(singly, range(steps), strict=False))


def steps_that_give(printed: float, within: float, part: Composed, one: Mechanism) -> str:
    """Return how many steps of one mechanism give a printed epsilon, of up to twice as many as it has."""
    found = curve(part, (dataclasses.replace(one, steps=2 * one.steps),))
    steps = 1 + np.flatnonzero(np.abs(found - printed) <= within)
    given = "no number of" if not steps.size else f"{steps[0]}" if steps.size == 1 else f"{steps[0]} to {steps[-1]}"
    return f"given by {given} steps, {one.steps} are counted"
