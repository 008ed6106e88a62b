"""Printed rounds in which a budget is passed under a falling sigma, and the epsilon that is really spent by then."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leakbench.privacy.accountants import pld
from leakbench.privacy.claims_composed import sequence
from leakbench.privacy.curve import rounds_within
from leakbench.privacy.renyi import INTEGER_ORDERS, epsilon_at
from leakbench.reproduce.accounting.curves import curve, divergences_after, first
from leakbench.reproduce.accounting.readings import Row, readings, row_of, schedule_of
from leakbench.reproduce.accounting.table import Claim

__all__ = ["rounds"]


def rounds(claim: Claim) -> Iterator[Row]:
    """Yield a row for each reading; a round that is begun counts, and none (nan) where the budget outlasts all.

    given: `budget`; `delta` and `losses` (whether privacy losses are computed) of the tight epsilon after the printed round.
    """
    given, printed = claim.given, int(claim.claimed)
    trained, each = schedule_of(given).rounds, schedule_of(given).local_iterations
    for reading in readings(given):
        part = reading.part
        mechanisms = sequence(part.unit, part.noise_multiplier, reading.schedule)
        after = curve(part, mechanisms)
        fit = rounds_within(after, given["budget"])
        found = math.ceil((fit + 1) / each) if fit < len(after) else math.nan
        spent = divergences_after(mechanisms, INTEGER_ORDERS)[printed * each - 1]
        tight = float(epsilon_at(INTEGER_ORDERS, spent, given["delta"], "tight"))
        losses = pld(first(mechanisms, printed * each), given["delta"]) if given.get("losses") else math.nan
        last = printed if fit < len(after) else trained
        why = f"epsilon {after[last * each - 1]:.4g} of the budget {given['budget']:g} after round {last} of {trained}"
        yield row_of(reading.name, reading.stated, found, (tight, losses), found == printed, why)
