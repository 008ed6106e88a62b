"""Geyer et al. 2017, Table 1: the rounds until delta at epsilon 8 passes its threshold; sigma is not printed, and so looked for."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator

from scipy import optimize

from leakbench.errors import InputError
from leakbench.privacy.accountants import pld, rdp
from leakbench.privacy.claim import GeyerClaim
from leakbench.privacy.curve import rounds_within
from leakbench.privacy.ledger import Schedule
from leakbench.privacy.mechanism import Mechanism
from leakbench.reproduce.accounting.readings import Row, row_of, schedule_of
from leakbench.reproduce.accounting.table import Claim

__all__ = ["geyer_rounds"]

LONG = 2000
"""Rounds within which the threshold is passed."""


def geyer_rounds(claim: Claim) -> Iterator[Row]:
    """Yield, for each count of releases a round, the sigma that gives the printed rounds, and the released agent's rounds.

    given: `epsilon`, `delta`, `clients`, `communication` (uploads in all), `releases`, `agent` {sigma, clients_per_round}.
    """
    given, printed = claim.given, int(claim.claimed)
    sigma, cohort = given["agent"]["sigma"], given["agent"]["clients_per_round"]
    # 508.5 clients a round on average: counted in halves, since only their ratio to all clients enters.
    mean = round(2 * given["communication"] / printed)
    schedule = schedule_of(given, clients=2 * given["clients"], clients_per_round=mean)
    ends = [dataclasses.replace(schedule, rounds=printed + more) for more in (0, 1)]
    for releases in given["releases"]:
        agent = GeyerClaim(noise_multiplier=sigma, epsilon=given["epsilon"], delta=given["delta"], releases=releases)
        if any(excess(0.3, agent, end) < 0 or excess(30.0, agent, end) > 0 for end in ends):
            raise InputError(f"{claim.name}: printed: got {printed}, which no sigma from 0.3 to 30 gives")
        low, high = (optimize.brentq(excess, 0.3, 30.0, args=(agent, end), xtol=1e-9) for end in ends)
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


def excess(sigma: float, claim: GeyerClaim, schedule: Schedule) -> float:
    """Return the logarithm of delta after the last round, over its threshold."""
    last = dataclasses.replace(claim, noise_multiplier=sigma).deltas(schedule)[-1]
    return math.log(max(last, sys.float_info.min) / claim.delta)
