"""Printed epsilons of a training with one sigma: by the claim's own formula, and the tight epsilon of the same steps."""

from __future__ import annotations

from collections.abc import Iterator

from leakbench.privacy.accountants import pld, rdp
from leakbench.privacy.compositions import composition_costs
from leakbench.privacy.mechanism import Mechanism
from leakbench.reproduce.accounting.curves import steps_that_give
from leakbench.reproduce.accounting.readings import Row, readings, row_of
from leakbench.reproduce.accounting.table import Claim

__all__ = ["epsilons"]


def epsilons(claim: Claim) -> Iterator[Row]:
    """Yield a row for each reading.

    given: `within`, how near a formula's epsilon is that gives the printed one; `delta` of the tight epsilon.
    """
    within, delta = claim.given["within"], claim.given["delta"]
    for reading in readings(claim.given):
        claimed = reading.part(reading.schedule)
        [one] = claimed.mechanisms
        gives = claimed.epsilon is not None and abs(claimed.epsilon - claim.claimed) <= within
        why = reading.because or steps_that_give(claim.claimed, within, reading.part, one)
        # Of a sum without sampling the amplified epsilon is that of the sum alone.
        alone = composition_costs((Mechanism(one.noise_multiplier, 1.0, 1),), reading.part.delta)[0, 0]
        tight = rdp((one,), delta), pld((one,), delta)
        yield row_of(reading.name, reading.stated, claimed.epsilon, tight, gives, why.format(alone=alone))
