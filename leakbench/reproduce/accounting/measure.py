"""Compute a claim: a row for each of its readings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

from leakbench.behaviour import raised
from leakbench.provenance import versions
from leakbench.reproduce.accounting.epsilons import epsilons
from leakbench.reproduce.accounting.flower import flower_epsilons
from leakbench.reproduce.accounting.geyer import geyer_rounds
from leakbench.reproduce.accounting.readings import Row
from leakbench.reproduce.accounting.rounds import rounds
from leakbench.reproduce.accounting.table import Claim
from leakbench.reproduce.recorded import COLUMN

__all__ = ["COUNTS", "computed"]

COUNTS: dict[str, Callable[[Claim], Iterator[Row]]] = {
    "epsilons": epsilons,
    "rounds": rounds,
    "geyer_rounds": geyer_rounds,
    "flower_epsilons": flower_epsilons,
}
"""{what the numbers of a table are: what computes the rows of one}."""

DIGITS = 6
"""Kept behind the point."""


def computed(claim: Claim) -> list[Row]:
    """Return the rows of a claim, with its hash, how long they took and the versions of what made them."""
    began = time.monotonic()
    found = list(COUNTS[claim.counts](claim))
    made = {
        "hash": claim.hash,
        **({COLUMN: json.dumps(versions_above)} if (versions_above := raised(claim.versions)) else {}),
        "wall_minutes": round((time.monotonic() - began) / 60, 2),
        "versions": json.dumps(versions(), sort_keys=True),
    }
    short = [{k: round(v, DIGITS) if isinstance(v, float) else v for k, v in row.items()} for row in found]
    return [{"cell": claim.name, "claimed": claim.claimed, **row, **made} for row in short]
