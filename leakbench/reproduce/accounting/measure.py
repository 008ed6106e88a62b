"""Compute a printed number of accounting: a row for each reading, by its formula and by tight accountants.

The numbers are epsilons, rounds within a budget, the rounds of Geyer et al., and the epsilons of Flower's programs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize

from leakbench.core.behaviour import raised
from leakbench.core.errors import InputError
from leakbench.core.provenance import versions
from leakbench.core.words import epsilon_text
from leakbench.privacy.accountants import ORDERS_2017, pld, rdp
from leakbench.privacy.claim import CompositionClaim, FlowerClaim, GeyerClaim
from leakbench.privacy.claims_composed import sequence
from leakbench.privacy.compositions import composition_costs
from leakbench.privacy.curve import composition_curve, rounds_within, step_divergences
from leakbench.privacy.ledger import Schedule
from leakbench.privacy.mechanism import Mechanism, Mechanisms, merged
from leakbench.privacy.renyi import INTEGER_ORDERS, Reals, epsilon_at
from leakbench.reproduce.accounting.table import (
    AccountingClaim,
    Composed,
    OfEpsilons,
    OfFlower,
    OfGeyer,
    OfRounds,
    readings,
    row_of,
    schedule_of,
)
from leakbench.study.rows import Row
from leakbench.study.stale import COLUMN

__all__ = ["COUNTS", "computed", "first"]

WHOLE_2017 = tuple(int(a) for a in ORDERS_2017 if a == int(a))


@lru_cache(maxsize=16)
def _divergences_after(mechanisms: Mechanisms, orders: tuple[int, ...]) -> Reals:
    """Return (S, A): the Rényi divergence spent after each step; many claims share one sequence."""
    return step_divergences(mechanisms, orders)


def _curve(part: Composed, mechanisms: Mechanisms) -> Reals:
    """Return (S,): the epsilon that the claim's own formula gives after each single step."""
    if isinstance(part, CompositionClaim):
        return composition_curve(part.composition, mechanisms, part.delta, part.digits)
    return epsilon_at(WHOLE_2017, _divergences_after(mechanisms, WHOLE_2017), part.delta, "old")


def first(mechanisms: Mechanisms, steps: int) -> Mechanisms:
    """Return the first steps of a sequence."""
    singly = (dataclasses.replace(m, steps=1) for m in mechanisms for _ in range(m.steps))
    return merged(m for m, _ in zip(singly, range(steps), strict=False))


def _steps_that_give(printed: float, within: float, part: Composed, one: Mechanism) -> str:
    """Return how many steps of one mechanism give a printed epsilon, of up to twice as many as it has."""
    found = _curve(part, (dataclasses.replace(one, steps=2 * one.steps),))
    steps = 1 + np.flatnonzero(np.abs(found - printed) <= within)
    given = "no number of" if not steps.size else f"{steps[0]}" if steps.size == 1 else f"{steps[0]} to {steps[-1]}"
    return f"given by {given} steps, {one.steps} are counted"


def _epsilons(claim: AccountingClaim, given: OfEpsilons) -> Iterator[Row]:
    """Yield a row for each reading."""
    for reading in readings(given):
        claimed = reading.part(reading.schedule)
        [one] = claimed.mechanisms
        gives = claimed.epsilon is not None and abs(claimed.epsilon - claim.claimed) <= given.within
        why = reading.because or _steps_that_give(claim.claimed, given.within, reading.part, one)
        # Without sampling the amplified epsilon is that of a single release.
        alone = composition_costs((Mechanism(one.noise_multiplier, 1.0, 1),), reading.part.delta)[0, 0]
        tight = rdp((one,), given.delta), pld((one,), given.delta)
        yield row_of(reading.name, reading.stated, claimed.epsilon, tight, gives, why.format(alone=alone))


def _rounds(claim: AccountingClaim, given: OfRounds) -> Iterator[Row]:
    """Yield a row for each reading of printed rounds: the round in which a budget is exceeded under a falling sigma.

    A round that is begun counts; nan where the budget outlasts all rounds.
    """
    printed, schedule = int(claim.claimed), schedule_of(given.federation)
    trained, each = schedule.rounds, schedule.local_iterations
    for reading in readings(given):
        part = reading.part
        mechanisms = sequence(part.unit, part.noise_multiplier, reading.schedule)
        after = _curve(part, mechanisms)
        fit = rounds_within(after, given.budget)
        found = math.ceil((fit + 1) / each) if fit < len(after) else math.nan
        spent = _divergences_after(mechanisms, INTEGER_ORDERS)[printed * each - 1]
        tight = float(epsilon_at(INTEGER_ORDERS, spent, given.delta, "tight"))
        losses = pld(first(mechanisms, printed * each), given.delta) if given.losses else math.nan
        last = printed if fit < len(after) else trained
        spent = epsilon_text(after[last * each - 1], ".4g")
        why = f"epsilon {spent} of the budget {given.budget:g} after round {last} of {trained}"
        yield row_of(reading.name, reading.stated, found, (tight, losses), found == printed, why)


LONG = 2000
"""Rounds within which the threshold is passed."""


def _geyer_rounds(claim: AccountingClaim, given: OfGeyer) -> Iterator[Row]:
    """Yield the rows of Geyer et al. 2017, Table 1: rounds until delta at epsilon 8 exceeds its threshold.

    The paper prints no sigma. For each number of releases per round a row has the sigma that gives the printed rounds, and
    another the rounds of the released agent.
    """
    printed, sigma, cohort = int(claim.claimed), given.agent.sigma, given.agent.clients_per_round
    # 508.5 clients a round on average: counted in halves, since only their ratio to all clients enters.
    mean = round(2 * given.communication / printed)
    schedule = schedule_of(given.federation, clients=2 * given.clients, clients_per_round=mean)
    ends = [dataclasses.replace(schedule, rounds=printed + more) for more in (0, 1)]
    for releases in given.releases:
        agent = GeyerClaim(noise_multiplier=sigma, epsilon=given.epsilon, delta=given.delta, releases=releases)
        if any(_excess(0.3, agent, end) < 0 or _excess(30.0, agent, end) > 0 for end in ends):
            raise InputError(f"{claim.name}: printed: got {printed}, which no sigma from 0.3 to 30 gives")
        low, high = (optimize.brentq(_excess, 0.3, 30.0, args=(agent, end), xtol=1e-9) for end in ends)
        found = dataclasses.replace(agent, noise_multiplier=(low + high) / 2)
        own = f"no sigma is printed; {low:.4f} to {high:.4f} would give it, by {releases} release(s) a round"
        other = f"sigma {sigma:g} and {cohort} clients a round stop elsewhere"
        for part, halves, least, why in ((found, mean, low, own), (agent, 2 * cohort, sigma, other)):
            longer = dataclasses.replace(schedule, clients_per_round=halves, rounds=LONG)
            last = rounds_within(part.deltas(longer), part.delta)
            one = Mechanism(least, longer.client_rate, releases * printed)
            tight = rdp((one,), part.delta), pld((one,), part.delta)
            name = f"{'sigma looked for' if part is found else 'released agent'}, {releases} a round"
            yield row_of(name, False, last, tight, part is agent and last == printed, why)


def _excess(sigma: float, claim: GeyerClaim, schedule: Schedule) -> float:
    """Return the logarithm of delta after the last round, over its threshold."""
    last = dataclasses.replace(claim, noise_multiplier=sigma).deltas(schedule)[-1]
    return math.log(max(last, sys.float_info.min) / claim.delta)


UNNAMED = "unnamed"
"""The adjacency of a source that names none."""


def _flower_epsilons(claim: AccountingClaim, given: OfFlower) -> Iterator[Row]:
    """Yield the tight epsilon of each adjacency; a number is reproduced where it is at least that epsilon by privacy losses.

    The programs are the script of Flower's documentation and its accountant since 1.35. The script gives Rényi divergences
    of sampling without replacement, a bound for the replacement of one client, at the noise multiplier z = noise / clip.
    Replacing a client moves the clipped sum by up to two clips, so that z / 2 would be right. The accountant uses z too
    where clients are drawn without replacement; for Poisson samples and add or remove one client, one clip is right.
    Raises InputError where the formula is not that program's.
    """
    formula = _by_program(given)
    if abs(formula - claim.claimed) > given.within:
        raise InputError(f"{claim.name}: printed: got {claim.claimed:g}, its formula gives {formula:.6g}")
    schedule, z = schedule_of(given.federation), given.noise_multiplier
    q, rounds = schedule.client_rate, schedule.rounds
    # Where all others send -C and the one +C or -C, the pair of Poisson sampling at z / 2 is attained: no bound is lower.
    replaced = ("one client replaced", Mechanism(z / 2, q, rounds))
    zeroed = ("one client's update made zero", Mechanism(z, q, rounds, "fixed"))
    added = ("one client added or removed", Mechanism(z, q, rounds))
    tried = (added,) if given.program == "poisson" else (replaced, zeroed)
    if given.adjacency not in (UNNAMED, *(name for name, _ in tried)):
        raise InputError(
            f"{claim.name}: adjacency: got {given.adjacency!r}, expected {UNNAMED} or {' or '.join(name for name, _ in tried)}"
        )
    for name, one in tried:
        tight, losses = rdp((one,), given.delta), pld((one,), given.delta)
        why = f"the epsilon of {name} is {epsilon_text(losses, '.4g')}"
        yield row_of(name, name == given.adjacency, formula, (tight, losses), claim.claimed >= losses, why)


def _by_program(given: OfFlower) -> float:
    """Return the epsilon as the program computes it."""
    schedule, z, delta = schedule_of(given.federation), given.noise_multiplier, given.delta
    if given.program == "script":
        return float(FlowerClaim(noise_multiplier=z, delta=delta)(schedule).epsilon or 0.0)
    import dp_accounting  # noqa: PLC0415  (takes a second)
    from absl import logging  # noqa: PLC0415
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    if given.program == "poisson":
        sampled, said = RdpAccountant(), logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)  # It warns of each order whose series it breaks off.
        try:
            mechanism = Mechanism(z, schedule.client_rate, schedule.rounds)
            return float(sampled.compose(mechanism.event()).get_epsilon(delta))
        finally:
            logging.set_verbosity(said)
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    sizes, gaussian = (schedule.clients, schedule.clients_per_round), dp_accounting.GaussianDpEvent(z)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(*sizes, gaussian), schedule.rounds)
    return float(accountant.get_epsilon(delta))


COUNTS: dict[str, Callable[[AccountingClaim, Any], Iterator[Row]]] = {
    "epsilons": _epsilons,
    "rounds": _rounds,
    "geyer_rounds": _geyer_rounds,
    "flower_epsilons": _flower_epsilons,
}
"""{what the numbers of a table are: what computes the rows of one}."""

DIGITS = 6
"""Kept behind the point."""


def computed(claim: AccountingClaim) -> list[Row]:
    """Return the rows of a claim, with its hash, how long they took and the versions of what made them."""
    began = time.monotonic()
    found = list(COUNTS[claim.counts](claim, claim.facts))
    made = {
        "hash": claim.hash,
        **({COLUMN: json.dumps(versions_above)} if (versions_above := raised(claim.versions)) else {}),
        "wall_minutes": round((time.monotonic() - began) / 60, 2),
        "versions": json.dumps(versions(), sort_keys=True),
    }
    short = [{k: round(v, DIGITS) if isinstance(v, float) else v for k, v in row.items()} for row in found]
    return [{"cell": claim.name, "claimed": claim.claimed, **row, **made} for row in short]
